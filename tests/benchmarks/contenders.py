"""What reads a topic of the ingest benchmark into a new Iceberg table, and three limits.

Each contender reads the topic from its beginning, decodes its records and commits them to a new
table with the key, the record's fields, topic, partition, headers, offset and timestamp. Clients,
sessions and JVMs stay open between calls, as a service's do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import flink
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from workloads import CHECKED, NAMESPACE, Topic

from topicberg.endpoints import CATALOG, Endpoints
from topicberg.iceberg.data_files import compression, repeated
from topicberg.iceberg.summaries import ROWS_SKIPPED
from topicberg.kafka import topics as kafka
from topicberg.kafka.fetch import fetcher
from topicberg.kafka.records import Records
from topicberg.settings import Settings
from topicberg.spark import new_session, quote
from topicberg.tableflow.decode.plan import CONSUMER
from topicberg.tableflow.decode.sessions import Sessions
from topicberg.tableflow.service.engine import Ingestor, spark_sessions

_READ_ROWS, _READ_BYTES = 131_072, 16 * 1024 * 1024


@dataclass
class Lab:
    """What stays open between calls."""

    endpoints: Endpoints
    config: Settings
    flink: flink.Cluster | None = None
    source: tuple[str, ...] = ()
    """A table with the rows of the topic, for the limits."""
    rows: pa.Table | None = None
    """The same rows in memory."""
    letters: dict[str, int] = field(default_factory=dict)
    """Topic → its records in the dead-letter topic so far."""

    @cached_property
    def sessions(self) -> Sessions:
        """The engine's sessions of Spark."""
        return spark_sessions(self.endpoints, self.config)

    @cached_property
    def registry(self) -> Any:
        """The engine's client of the schema registry."""
        return self.endpoints.schema_registry_client()

    @cached_property
    def spark(self) -> Any:
        """The session that verifies and copies tables."""
        spark = new_session(self.endpoints.spark_connect)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
        return spark

    @cached_property
    def catalog(self) -> Any:
        catalog = self.endpoints.catalog(self.config)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return catalog


class Contender(Protocol):
    """Reads a topic into a new table, whose identifier it returns."""

    def __call__(self, lab: Lab, topic: Topic) -> tuple[str, ...]: ...


def new_name(of: str) -> str:
    return f"{of}_{uuid.uuid4().hex[:8]}"


# --- topicberg ---


def engine(lab: Lab, topic: Topic) -> tuple[str, ...]:
    """Ingest by the engine, with its defaults."""
    spec, endpoints = topic.spec, lab.endpoints
    ends = kafka.end_offsets(endpoints, spec.name)
    ingestor = Ingestor(spec, endpoints, lab.config, lab.sessions, lab.registry)
    while ingestor.step().end_offsets != ends:
        pass
    return tuple(spec.table_identifier(lab.config))


# --- Flink ---


def flink_by_hand(lab: Lab, topic: Topic) -> tuple[str, ...]:
    """Ingest by Flink, with a decoder written for this record: Avro's binary to ``RowData``.

    Flink 2.1.1 in one warm JVM (3 GB, parallel collector), parallelism 2, object reuse, one row
    object, checkpoints each 10 s and at the end, large fetches (``flink.KAFKA``), Iceberg's sink
    without a shuffle (distribution mode ``none``). The decoder ignores schema ids; a record at
    which it fails is left out.
    """
    return _flink(lab, topic, topic.workload.flink)


def flink_own(lab: Lab, topic: Topic) -> tuple[str, ...]:
    """Ingest by Flink, with its own Avro classes, as its SQL format ``avro-confluent`` has them. As
    :func:`flink_by_hand`. The registry's client is replaced by a constant."""
    return _flink(lab, topic, "own")


def _flink(lab: Lab, topic: Topic, decoder: str) -> tuple[str, ...]:
    assert lab.flink is not None
    name = new_name("flink")
    lab.catalog.create_table((NAMESPACE, name), table_schema(topic))
    lab.flink.ask(
        {
            "topic": topic.spec.name,
            "namespace": NAMESPACE,
            "table": name,
            "decoder": decoder,
            "schema": topic.shape.schema("avro").schema_str,
        }
    )
    return NAMESPACE, name


def table_schema(topic: Topic) -> Schema:
    """Return the table's schema: those of the record, and what Kafka says of it."""
    columns: list[tuple[str, IcebergType]] = [
        ("key", BinaryType()),
        *((one["name"], _type(one["type"])) for one in topic.shape.avro["fields"]),
        ("topic", StringType()),
        ("partition", IntegerType()),
        ("headers", MapType(101, StringType(), 102, BinaryType(), value_required=False)),
        ("offset", LongType()),
        ("timestamp", TimestamptzType()),
        ("timestamp_type", StringType()),
    ]
    return Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(columns, 1)))


def _type(avro: Any) -> IcebergType:
    """Return the type of a column; the catalog numbers the nested fields again."""
    simple: dict[str, IcebergType] = {
        "string": StringType(),
        "int": IntegerType(),
        "long": LongType(),
        "double": DoubleType(),
        "boolean": BooleanType(),
    }
    if isinstance(avro, str):
        return simple[avro]
    if isinstance(avro, list):
        return _type(avro[1])
    if avro["type"] == "array":
        return ListType(201, _type(avro["items"]), element_required=False)
    fields = avro["fields"]
    return StructType(
        *(NestedField(301 + n, one["name"], _type(one["type"])) for n, one in enumerate(fields))
    )


# --- limits ---

Consume = Callable[[int, int, int], None]
"""Called with the number of a thread, and how many of its records are read before and after."""


def _read(lab: Lab, name: str, consume: Consume = lambda *_: None) -> int:
    """Read a topic by librdkafka into arrays, in two threads; return the number of its records."""
    ends = kafka.end_offsets(lab.endpoints, name)
    config = {**lab.endpoints.kafka_tuning("consumer"), **lab.endpoints.kafka_config(), **CONSUMER}

    def read(half: int) -> int:
        ranges = {p: (0, end) for p, end in ends.items() if p % 2 == half}
        count = 0
        with fetcher(config, name, ranges) as reader:
            for records in reader.fill(Records(_READ_ROWS, _READ_BYTES)):
                consume(half, count, count + records.count)
                count += records.count
        return count

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(read, (0, 1)))


def _read_all(lab: Lab, topic: Topic, consume: Consume = lambda *_: None) -> None:
    if (found := _read(lab, topic.spec.name, consume)) != topic.records:
        raise RuntimeError(f"librdkafka read {found} of {topic.records} records")


def raw_reading(lab: Lab, topic: Topic) -> None:
    """Read the topic by librdkafka into arrays, in two threads, and do nothing with it."""
    _read_all(lab, topic)


def reading_and_writing(lab: Lab, topic: Topic) -> None:
    """Read the topic as :func:`raw_reading` does, and write the table's rows meanwhile. Each thread
    writes one file to the object store by Arrow's Parquet writer, with the engine's compression and
    dictionaries: for the records that it reads, as many rows, which are in memory."""
    table, rows = lab.catalog.load_table(lab.source), lab.rows
    assert rows is not None
    share, columns = len(rows) / topic.records, parquet_path_to_id_mapping(table.schema())
    paths = [f"{table.location()}/data/{new_name('limit')}.parquet" for _ in range(2)]
    writers: dict[int, tuple[Any, pq.ParquetWriter]] = {}

    def write(half: int, before: int, after: int) -> None:
        first = half * topic.records // 2  # the halves of a topic may differ by a few records
        part = rows.slice(int((first + before) * share), int((after - before) * share))
        if half not in writers:
            stream = table.io.new_output(paths[half]).create()
            writers[half] = (
                stream,
                pq.ParquetWriter(
                    stream,
                    rows.schema,
                    use_dictionary=repeated(part, columns),
                    compression=compression(table.properties),
                    store_schema=False,
                ),
            )
        writers[half][1].write_table(part)

    _read_all(lab, topic, write)
    for stream, writer in writers.values():
        writer.close()
        stream.close()
    for path in paths:
        table.io.delete(path)


def copy_by_spark(lab: Lab, topic: Topic) -> tuple[str, ...]:
    """Copy a table with the topic's rows by Spark: a vectorized reader, nothing to decode."""
    name = new_name("copy")
    writer = lab.spark.table(f"{CATALOG}.{quote(*lab.source)}")
    writer = writer.writeTo(f"{CATALOG}.{quote(NAMESPACE, name)}")
    writer.tableProperty("write.distribution-mode", "none").create()
    return NAMESPACE, name


# --- all of them ---

OURS = "topicberg"
CONTENDERS: dict[str, Contender] = {
    OURS: engine,
    "Flink by hand": flink_by_hand,
    "Flink": flink_own,
}
LIMITS: dict[str, Callable[[Lab, Topic], tuple[str, ...] | None]] = {
    "reading": raw_reading,
    "reading and writing": reading_and_writing,
    "copy by Spark": copy_by_spark,
}


def contenders(lab: Lab, topic: Topic) -> list[str]:
    """Return the contenders that read the topic; Flink's own classes only clean topics of Avro."""
    if lab.flink is None:
        return [OURS]
    is_clean = topic.workload.name == topic.workload.clean and topic.workload.kind == "avro"
    return [OURS, *["Flink by hand"] * bool(topic.workload.flink), *["Flink"] * is_clean]


def verify(lab: Lab, topic: Topic, table: tuple[str, ...], contender: str) -> None:
    """Compare a table's rows, their checksum, and what was left out with what was produced.

    :raises RuntimeError: they differ
    """
    text, source = topic.shape.text_sql, f"{CATALOG}.{quote(*table)}"
    number = "cast(substr(cast(key as string), 2) as bigint)"
    crc = f"(crc32(cast({text} as binary)) % {CHECKED}) * ({number} % {CHECKED})"
    expected = topic.rows, topic.checksum
    row = lab.spark.sql(f"SELECT count(*), sum({crc}) FROM {source}").head()
    if tuple(row) != expected:
        raise RuntimeError(
            f"{contender}, {topic.workload.name}: rows and checksum are {tuple(row)}, "
            f"expected {expected}"
        )
    if contender != OURS:
        return
    left_out = int(lab.catalog.load_table(table).properties.get(ROWS_SKIPPED, 0))
    if left_out != topic.rejected:
        raise RuntimeError(f"{topic.workload.name}: {left_out} of {topic.rejected} are left out")
    handling = topic.spec.tableflow.error_handling
    if handling.mode == "LOG":
        assert handling.target is not None
        letters = _read(lab, handling.target)
        new = letters - lab.letters.get(topic.spec.name, 0)
        lab.letters[topic.spec.name] = letters
        if new != topic.rejected:
            raise RuntimeError(f"{topic.workload.name}: {new} of {topic.rejected} dead letters")
