"""A project of one's own on EMR Serverless: its code arrives as the archive that `deploy` uploads.

The job runs in a Python without packages, on PySpark's own archives, as in AWS's image, with the
properties that `deploy` sends: only files of the image and of S3 are elsewhere.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from emr_service import EmrServerless, deployed, in_image, serving
from pyspark import cloudpickle
from python_project import write_project
from test_emr_job import START, Submitted, WithEmr, submit

from topicberg.clients.catalog import ensure_namespace
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.orchestration import definitions
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.orchestration.assets.partitions import RANGE_END, RANGE_START
from topicberg.orchestration.resources import lakehouse
from topicberg.settings import Settings, settings
from topicberg.testing import create_table, spark_session, topic_frame
from topicberg.topics import load_topics
from topicberg_deploy.aws import archive
from topicberg_deploy.aws.bucket import CODE
from topicberg_deploy.aws.emr import PYTHON

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

HOUR = f"{START:%Y-%m-%d-%H:00}"
PARCELS = [
    {"$$timestamp": START, "number": 1, "country": "de"},
    {"$$timestamp": START, "number": 2, "country": "nz"},
]


@pytest.fixture
def service(
    stack: Endpoints, own_project: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmrServerless]:
    """The service of a project, which finds the packed code in the folder of a job."""
    write_project(own_project.project_root)
    settings.cache_clear()
    place, path, jobs = tmp_path / "packed", list(sys.path), list[Submitted]()
    with archive.built(own_project.project_root) as packed, tarfile.open(packed) as tar:
        tar.extractall(place, filter="data")

    entry = tmp_path / archive.ENTRY_POINT
    entry.write_text(archive.entry_point())
    uploaded = f"s3://{own_project.bucket}/{CODE}1a2b"
    archives = f"--conf spark.archives={uploaded}/{archive.ARCHIVE}#{archive.UNPACKED}"
    places = {
        f"{uploaded}/{archive.ENTRY_POINT}": str(entry),
        PYTHON: f"{sys.base_prefix}/bin/python3",
        archives: "",  # the service unpacks it into the folder of a job
    }

    def execute(request: dict[str, Any]) -> Submitted:
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        (folder / archive.UNPACKED).symlink_to(place)
        jobs.append(submit(in_image(request, places), stack, folder))
        return jobs[-1]

    with serving(execute) as opened:
        for name, text in deployed(own_project, "1a2b").items():
            monkeypatch.setenv(name, text)
        elsewhere = WithEmr(**dict(stack), emr=opened.url)
        monkeypatch.setattr(lakehouse, "connect", lambda: elsewhere)
        try:
            yield opened
        finally:
            for job in jobs:
                job.process.kill()
                job.process.wait()
    sys.path[:] = path
    forget()


def forget() -> None:
    """Let the next run import the modules of the project again."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("parcels", "rates")]:
        del sys.modules[name]
    cloudpickle.cloudpickle._PICKLE_BY_VALUE_MODULES.clear()


def materialized(root: Path) -> list[dict[str, Any]]:
    """Compute the table in a run of Dagster, and return its rows."""
    forget()
    defs = definitions(project=root)
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    table = lake.table(lake.derived_by_name["labels"])
    asset = defs.resolve_assets_def(table.key("iceberg"))
    with dg.instance_for_test() as instance:
        tags = {RANGE_START: HOUR, RANGE_END: HOUR}
        dg.materialize([asset], instance=instance, tags=tags)
    held = lakehouse.connect().catalog(settings()).load_table(table.identifier).scan()
    return sorted(held.to_arrow().to_pylist(), key=lambda row: int(row["number"]))


def test_job_run_of_a_project_has_its_packages_and_libraries(
    stack: Endpoints, own_project: Settings, service: EmrServerless
) -> None:
    catalog, root = stack.catalog(settings()), own_project.project_root
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    source = lake.origin("parcels").identifier
    with spark_session() as spark:
        ensure_namespace(catalog, source[0])
        create_table(spark, topic_frame(spark, "parcels", PARCELS), source, "$$timestamp")
    try:
        found = [(row["label"], row["price"]) for row in materialized(root)]
        assert found == [("1 to de for 2", 2), ("2 to nz for 36", 36)]
        assert service.operations().count("StartJobRun") == 1
        # The code of the application is that of before.
        (root / "src/rates.py").write_text("FACTOR = 3\n")
        with pytest.raises(TopicbergError, match="the code of the EMR Serverless application is"):
            materialized(root)
    finally:
        for name in (source, (source[0], "labels")):
            if catalog.table_exists(name):
                catalog.purge_table(name)
