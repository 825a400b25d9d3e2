"""Tables of a project that compute in Python: what its functions import is on Spark's workers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bare_python import bare_python
from pyspark import cloudpickle
from pyspark.sql.connect.session import SparkSession
from python_project import write_project

from topicberg.clients.catalog import ensure_namespace
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg.hours import BEFORE_EVERYTHING
from topicberg.orchestration.assets.derived import code_version, derivation
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.project import VARIABLE
from topicberg.settings import settings
from topicberg.shipping.project import send
from topicberg.spark import new_session
from topicberg.testing import create_table, rows, spark_session, topic_frame
from topicberg.topics import load_topics
from topicberg.transforms.derived import write_window
from topicberg.transforms.versions import computed_by
from topicberg.transforms.windows import Window

pytestmark = [pytest.mark.integration]

START = datetime(2026, 1, 1, 10, tzinfo=UTC)
WINDOW = Window(START, START + timedelta(hours=1))
PARCELS = [
    {"$$timestamp": START, "number": 1, "country": "de"},
    {"$$timestamp": START, "number": 2, "country": "nz"},
]


def _forget() -> None:
    """Let the next run import the modules again, as a new process does."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("parcels", "rates")]:
        del sys.modules[name]
    cloudpickle.cloudpickle._PICKLE_BY_VALUE_MODULES.clear()
    # A session that another test closed: modules are imported where there is none.
    SparkSession._active_session.session = None
    SparkSession._default_session = None
    importlib.invalidate_caches()


@pytest.fixture
def project(stack: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = list(sys.path)
    monkeypatch.setenv(VARIABLE, str(write_project(tmp_path)))
    settings.cache_clear()
    yield tmp_path
    sys.path[:] = path
    _forget()
    settings.cache_clear()


@contextmanager
def _lake() -> Iterator[Lake]:
    _forget()
    yield Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))


def _computed(stack: Endpoints) -> tuple[list[dict[str, Any]], str]:
    """Compute the table as a run does; return its rows and the version of its code."""
    catalog = stack.catalog(settings())
    with _lake() as lake, spark_session() as spark:
        source = lake.origin("parcels").identifier
        if not catalog.table_exists(source):
            ensure_namespace(catalog, source[0])
            create_table(spark, topic_frame(spark, "parcels", PARCELS), source, "$$timestamp")
        plan = derivation(lake.derived_by_name["labels"], lake)
        write_window(spark, catalog, plan, WINDOW)
        table = catalog.load_table(plan.target)
        found = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["number"])
        assert computed_by(table)[0][0] == BEFORE_EVERYTHING
        return found, code_version(lake.derived_by_name["labels"], lake)


@pytest.fixture
def _no_tables(stack: Endpoints) -> Iterator[None]:
    yield
    catalog = stack.catalog(settings())
    for namespace in catalog.list_namespaces():
        for name in catalog.list_tables(namespace):
            if name[-1] in ("parcels", "labels"):
                catalog.purge_table(name)


@pytest.mark.usefixtures("_no_tables")
def test_table_with_python_functions_follows_its_helpers(stack: Endpoints, project: Path) -> None:
    before, version = _computed(stack)
    assert [(row["label"], row["price"]) for row in before] == [
        ("1 to de for 2", 2),
        ("2 to nz for 36", 36),
    ]
    rates = project / "src/rates.py"
    rates.write_text("FACTOR = 5\n")
    after, changed = _computed(stack)
    assert [row["price"] for row in after] == [5, 90]
    assert [row["label"] for row in after] == ["1 to de for 5", "2 to nz for 90"]
    assert changed != version
    (project / "src/parcels/zones.json").write_text('{"de": 10, "nz": 9}')
    assert [row["price"] for row in _computed(stack)[0]] == [50, 90]


@pytest.mark.usefixtures("project")
def test_python_functions_run_on_workers_without_topicberg(
    stack: Endpoints, tmp_path: Path
) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    conf = {"spark.sql.execution.pyspark.python": str(bare_python(folder))}
    spark = new_session(stack.spark_connect, conf)
    try:
        with _lake() as lake:
            send(spark, settings().project_root)
            parcels = topic_frame(spark, "parcels", PARCELS)
            found = rows(lake.derived_by_name["labels"].transform(parcels))
    finally:
        spark.stop()
    assert [(row["label"], row["price"]) for row in found] == [
        ("1 to de for 2", 2),
        ("2 to nz for 36", 36),
    ]


@pytest.mark.usefixtures("_no_tables")
def test_module_that_workers_lack_is_named(stack: Endpoints, project: Path) -> None:
    prices, text = project / "src/parcels/prices.py", "    import no_such_module\n\n    zones"
    prices.write_text(prices.read_text().replace("    zones", text))
    with pytest.raises(TopicbergError, match="have no module no_such_module") as caught:
        _computed(stack)
    assert "table post.labels" in caught.value.message
    assert "`dependencies`" in str(caught.value.hint)
