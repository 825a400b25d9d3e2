"""How fast a topic becomes a table: topicberg's engine beside what one would write instead.

    .venv/bin/python tests/benchmarks/ingest.py [--records 1000000] [--rounds 3] [--kafka-connect]

Against the running local stack. Each contender reads the same topic from its beginning, decodes it
and commits it to a fresh Iceberg table; the rounds take turns, and the best time of each counts, so
that what else the machine does hits all alike. Spark's sessions are kept between rounds, as the
engine's service does: the first round starts them and Spark's Python workers. Printed are rows a
second and ratios to the engine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import kafka_connect
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from rich.console import Console
from rich.table import Table

from topicberg import kafka
from topicberg.endpoints import CATALOG, Endpoints, load_endpoints
from topicberg.formats.subjects import wire_prefix
from topicberg.settings import Settings, settings
from topicberg.spark import new_session, quote
from topicberg.tableflow import columnar
from topicberg.tableflow.engine import Ingestor
from topicberg.tableflow.sessions import Sessions
from topicberg.topics import TopicSpec

FIELDS = [
    {"name": "side", "type": "string"},
    {"name": "quantity", "type": "int"},
    {"name": "symbol", "type": "string"},
    {"name": "price", "type": "int"},
    {"name": "account", "type": "string"},
    {"name": "userid", "type": "string"},
]
AVRO = {"type": "record", "name": "Trade", "fields": FIELDS}
JSON = {
    "type": "object",
    "properties": {
        field["name"]: {
            "type": "string" if field["type"] == "string" else "integer",
            **({} if field["type"] == "string" else {"connect.type": "int32"}),
        }
        for field in FIELDS
    },
}
PROTO = """
syntax = "proto3";
message Trade {
  string side = 1;
  int32 quantity = 2;
  string symbol = 3;
  int32 price = 4;
  string account = 5;
  string userid = 6;
}
"""
PARTITIONS = 6
NAMESPACE = "benchmark"
CONNECT = "Kafka Connect"


def trade(number: int) -> dict[str, Any]:
    return {
        "side": "BUY" if number % 2 else "SELL",
        "quantity": number % 5000,
        "symbol": f"ZT{number % 7}ZT",
        "price": number % 1000,
        "account": f"ACC{number % 3}",
        "userid": f"User_{number % 9}",
    }


def _avro(row: dict[str, Any]) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, _PARSED, row)
    return buffer.getvalue()


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode()


def _proto(row: dict[str, Any]) -> bytes:
    from google.protobuf import message_factory

    from topicberg.formats import protoc

    if "Trade" not in _MESSAGES:
        file = protoc.compiled("trade.proto", PROTO)
        _MESSAGES["Trade"] = message_factory.GetMessageClass(file.message_types_by_name["Trade"])
    return b"\x00" + _MESSAGES["Trade"](**row).SerializeToString()


_PARSED = fastavro.parse_schema(json.loads(json.dumps(AVRO)))
_MESSAGES: dict[str, Any] = {}
FORMATS: dict[str, tuple[Schema, Callable[[dict[str, Any]], bytes]]] = {
    "avro": (Schema(json.dumps(AVRO), "AVRO"), _avro),
    "json": (Schema(json.dumps(JSON), "JSON"), _json),
    "protobuf": (Schema(PROTO, "PROTOBUF"), _proto),
}


def make_topic(endpoints: Endpoints, kind: str, numbers: range, mode: str = "append") -> TopicSpec:
    """A topic with a record for each number; keys ``k<number>``."""
    name = f"benchmark_{kind}_{uuid.uuid4().hex[:6]}"
    spec = TopicSpec.model_validate(
        {
            "name": name,
            "pipeline": NAMESPACE,
            "schema": {"format": kind, "file": "from-the-registry"},
            "key": {"format": "string"},
            "partitions": PARTITIONS,
            "write_mode": mode,
        }
    )
    admin = endpoints.kafka_admin()  # kept: its futures die with it
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(30)
    produce(endpoints, spec, kind, numbers)
    return spec


def produce(endpoints: Endpoints, spec: TopicSpec, kind: str, numbers: Iterable[int]) -> None:
    schema, encode = FORMATS[kind]
    registry = endpoints.schema_registry_client()
    prefix = wire_prefix(registry.register_schema(spec.value_subject, schema))
    producer = Producer({**endpoints.kafka_config(), "linger.ms": 50, "compression.type": "lz4"})
    values = [prefix + encode(trade(number)) for number in range(1000)]
    for number in numbers:
        value, key = values[number % 1000], f"k{number}"
        kafka.produce(producer, spec.name, value, key.encode(), lambda *_: None)
    producer.flush(120)


# --- contenders: each ingests the whole topic into a new table ---


@cache
def _sessions() -> Sessions:
    """What the engine's service keeps between batches."""
    return Sessions(load_endpoints(settings()), settings())


@cache
def _spark() -> Any:
    """The session of plain Spark and of Structured Streaming."""
    return new_session(load_endpoints(settings()).spark_connect)


def engine(endpoints: Endpoints, spec: TopicSpec, config: Settings) -> None:
    ends = kafka.end_offsets(endpoints, spec.name)
    ingestor = Ingestor(spec, endpoints, config, _sessions())
    while ingestor.step().end_offsets != ends:
        pass


def by_expressions(endpoints: Endpoints, spec: TopicSpec, config: Settings) -> None:
    """The engine without columns."""
    engine(endpoints, spec, config.model_copy(update={"engine_decoder": "spark"}))


def drop(endpoints: Endpoints, spec: TopicSpec, config: Settings) -> None:
    endpoints.catalog(config).purge_table(spec.table_identifier(config))


def _decoded(frame: Any, endpoints: Endpoints, spec: TopicSpec) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    registry = endpoints.schema_registry_client()
    text = registry.get_latest_version(spec.value_subject).schema.schema_str or ""
    record = from_avro(F.expr("substring(value, 6)"), text)
    names = [field["name"] for field in FIELDS]
    return frame.withColumn("r", record).select(
        "key",
        *(F.col("r").getField(name).alias(name) for name in names),
        "topic",
        "partition",
        F.map_from_entries("headers").alias("headers"),
        "offset",
        "timestamp",
        F.col("timestampType").cast("string").alias("timestamp_type"),
    )


def plain_spark(endpoints: Endpoints, spec: TopicSpec, config: Settings) -> None:
    """The same read, decode and write with Spark's defaults."""
    spark = _spark()
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", endpoints.kafka_bootstrap)
        .option("subscribe", spec.name)
        .option("includeHeaders", "true")
        .load()
    )
    target = f"{CATALOG}.{quote(NAMESPACE, 'plain_' + uuid.uuid4().hex[:6])}"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
    _decoded(frame, endpoints, spec).writeTo(target).create()
    spark.sql(f"DROP TABLE {target} PURGE")


def structured_streaming(endpoints: Endpoints, spec: TopicSpec, config: Settings) -> None:
    """Structured Streaming, everything that is there, with a checkpoint."""
    spark = _spark()
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", endpoints.kafka_bootstrap)
        .option("subscribe", spec.name)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    decoded = _decoded(frame, endpoints, spec)
    name = "stream_" + uuid.uuid4().hex[:6]
    target = f"{CATALOG}.{NAMESPACE}.{name}"
    columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in decoded.schema)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
    spark.sql(f"CREATE TABLE {target} ({columns}) USING iceberg")
    checkpoint = tempfile.mkdtemp(prefix="topicberg-benchmark-")
    query = (
        decoded.writeStream.format("iceberg")
        .option("checkpointLocation", f"file://{checkpoint}")
        .trigger(availableNow=True)
        .toTable(target)
    )
    query.awaitTermination()
    spark.sql(f"DROP TABLE {target} PURGE")
    shutil.rmtree(checkpoint, ignore_errors=True)


def python_loop(endpoints: Endpoints, spec: TopicSpec, config: Settings) -> None:
    """confluent-kafka, fastavro and PyIceberg: batches of 100,000."""
    catalog = endpoints.catalog(config)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    names = [field["name"] for field in FIELDS]
    kinds = {"string": pa.string(), "int": pa.int32()}
    schema = pa.schema(
        [
            ("key", pa.binary()),
            *((field["name"], kinds[field["type"]]) for field in FIELDS),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
        ]
    )
    identifier = (NAMESPACE, "loop_" + uuid.uuid4().hex[:6])
    table = catalog.create_table(identifier, schema)
    ends = kafka.end_offsets(endpoints, spec.name)
    consumer = Consumer({**endpoints.kafka_config(), "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(spec.name, partition, 0) for partition in ends])
    left = sum(ends.values())
    while left:
        columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        while left and len(columns["key"]) < 100_000:
            for message in consumer.consume(10_000, 1.0):
                value = message.value() or b""
                row: Any = fastavro.schemaless_reader(BytesIO(value[5:]), _PARSED, None)
                columns["key"].append(message.key())
                for name in names:
                    columns[name].append(row[name])
                columns["partition"].append(message.partition())
                columns["offset"].append(message.offset())
                columns["timestamp"].append(message.timestamp()[1] * 1000)
                left -= 1
        table.append(pa.table(columns, schema=schema))
    consumer.close()
    catalog.purge_table(identifier)


CONTENDERS: dict[str, Callable[[Endpoints, TopicSpec, Settings], None]] = {
    "topicberg": engine,
    "topicberg, by Spark's expressions": by_expressions,
    "plain Spark, defaults": plain_spark,
    "Structured Streaming": structured_streaming,
    "Python loop": python_loop,
}


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def append_benchmark(
    records: int, rounds: int, connect: kafka_connect.Worker | None
) -> dict[str, float]:
    """Rows a second of each contender, Avro; and of the engine for the other formats.

    :param connect: None: without Kafka Connect
    """
    config = settings()
    endpoints = load_endpoints(config)
    columnar.wait_ready()
    best: dict[str, float] = {}
    spec = make_topic(endpoints, "avro", range(records))
    others = {kind: make_topic(endpoints, kind, range(records)) for kind in ("json", "protobuf")}
    for _ in range(rounds):
        if connect is not None:
            seconds = connect.ingest(spec.name, records, NAMESPACE)
            best[CONNECT] = max(best.get(CONNECT, 0.0), records / seconds)
        for name, contender in CONTENDERS.items():
            seconds = timed(lambda run=contender: run(endpoints, spec, config))  # type: ignore[misc]
            best[name] = max(best.get(name, 0.0), records / seconds)
            if contender in (engine, by_expressions):
                drop(endpoints, spec, config)
        for kind, other in others.items():
            seconds = timed(lambda it=other: engine(endpoints, it, config))  # type: ignore[misc]
            best[f"topicberg, {kind}"] = max(best.get(f"topicberg, {kind}", 0.0), records / seconds)
            drop(endpoints, other, config)
    return best


def upsert_benchmark(rows: int, rounds: int) -> tuple[float, float]:
    """Seconds to upsert 1 % of a table of ``rows`` rows, and to append as many rows."""
    config = settings()
    endpoints = load_endpoints(config)
    upserted = make_topic(endpoints, "avro", range(rows), "upsert")
    appended = make_topic(endpoints, "avro", range(rows))
    for spec in (upserted, appended):
        engine(endpoints, spec, config)
    best = {"append": float("inf"), "upsert": float("inf")}
    for number in range(rounds):
        step = range(number, rows, 100)  # spread over all files
        for mode, spec in (("append", appended), ("upsert", upserted)):
            produce(endpoints, spec, "avro", step)
            seconds = timed(lambda it=spec: engine(endpoints, it, config))  # type: ignore[misc]
            best[mode] = min(best[mode], seconds)
    for spec in (upserted, appended):
        drop(endpoints, spec, config)
    return best["upsert"], best["append"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--upsert-rows", type=int, default=10_000_000, help="0: no upsert")
    parser.add_argument(
        "--kafka-connect", action="store_true", help="also Iceberg's sink; fetches its jars"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to a file")
    arguments = parser.parse_args()
    with ExitStack() as started:
        connect = None
        if arguments.kafka_connect:
            folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
            worker = kafka_connect.worker(folder, load_endpoints(), settings())
            connect = started.enter_context(worker)
        speeds = append_benchmark(arguments.records, arguments.rounds, connect)
    ours = speeds["topicberg"]
    shown = Table("contender", "rows/s", "topicberg is", title=f"{arguments.records:,} records")
    for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        shown.add_row(name, f"{speed:,.0f}", f"{ours / speed:.2f} times as fast")
    Console().print(shown)
    numbers: dict[str, Any] = {"rows_per_second": speeds}
    if arguments.upsert_rows:
        upsert, append = upsert_benchmark(arguments.upsert_rows, arguments.rounds)
        Console().print(
            f"1 % of {arguments.upsert_rows:,} rows: upsert {upsert:.2f} s, append {append:.2f} s, "
            f"{upsert / append:.2f} times"
        )
        numbers["upsert_over_append"] = upsert / append
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2))


if __name__ == "__main__":
    main()
