"""What reads a topic of the ingest benchmark into a new Iceberg table, and three limits.

Clients, sessions and JVMs stay open between calls, as a service's do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
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


def new_name(of: str) -> str:
    return f"{of}_{uuid.uuid4().hex[:8]}"


def engine(lab: Lab, topic: Topic) -> tuple[str, ...]:
    """Ingest by the engine, with its defaults."""
    spec, endpoints = topic.spec, lab.endpoints
    ends = kafka.end_offsets(endpoints, spec.name)
    ingestor = Ingestor(spec, endpoints, lab.config, lab.sessions, lab.registry)
    while ingestor.step().end_offsets != ends:
        pass
    return tuple(spec.table_identifier(lab.config))


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

LIMITS: dict[str, Callable[[Lab, Topic], tuple[str, ...] | None]] = {
    "reading": raw_reading,
    "reading and writing": reading_and_writing,
    "copy by Spark": copy_by_spark,
}


def verify(lab: Lab, topic: Topic, table: tuple[str, ...]) -> None:
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
            f"{topic.workload.name}: rows and checksum are {tuple(row)}, expected {expected}"
        )
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
