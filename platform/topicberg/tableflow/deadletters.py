"""Mode LOG: records that cannot be decoded go to a dead-letter topic, each one once.

The dead-letter topic is a topic like any other: it has a spec (see
:func:`topicberg.topics.deadletters.dead_letter_spec`), and so a table.

They are produced before the batch is published, and the topic's end offsets are kept in the
published table. After a crash in between, what lies behind those offsets was already produced.

Source: Confluent's "Configure a Dead Letter Queue", which Tableflow's mode ``log`` shares; columns
in ``platform/schemas/error_log.avsc``.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro

from topicberg import kafka
from topicberg.endpoints import CATALOG, Endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.tableflow.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.rows import PROBLEM
from topicberg.tableflow.subjects import WIRE_BYTES, wire_prefix
from topicberg.topics.deadletters import dead_letter_spec

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, Row

    from topicberg.topics import TopicSpec

LOGGED_OFFSETS = "topicberg.dead-letter-offsets"
"""Table property: ends of the dead-letter topic's partitions when the table last changed."""
CANNOT_DECODE = 1
PROCESSOR = "topicberg.tableflow"
_READ_SECONDS = 30.0

Place = tuple[int, int]
"""Partition and offset of a record in its topic."""


class DeadLetters:
    """The dead-letter topic of one topic."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
        self.spec = spec
        self.target = dead_letter_spec(spec)
        self._endpoints = endpoints
        self._config = config

    def write(self, table: Table, topic_id: str, broken: DataFrame) -> dict[str, str]:
        """Produce the broken records that are not there yet.

        :param broken: Kafka's columns and :data:`topicberg.tableflow.rows.PROBLEM`
        :returns: table properties to change when the batch is published
        :raises TopicbergError: the dead-letter topic does not take them
        """
        ensured = kafka.ensure_topic(self.target, self._endpoints, self._config)
        assert ensured.value_schema_id is not None  # noqa: S101  its spec has a schema file
        prefix = wire_prefix(ensured.value_schema_id)
        schema = self._schema()
        logged = self._logged_since(table, topic_id, schema)
        producer = self._producer()
        failures: list[str] = []

        def delivered(error: Any, _message: Message) -> None:
            if error is not None:
                failures.append(str(error))

        rows = broken.select(
            "partition", "offset", "timestamp", "timestampType", "headers", "key", "value", PROBLEM
        )
        for row in rows.toLocalIterator():
            place = f"{self.spec.name}-{row['partition']}-{row['offset']}".encode()
            if (row["partition"], row["offset"]) in logged:
                continue
            buffer = BytesIO(prefix)
            buffer.seek(0, 2)
            fastavro.schemaless_writer(buffer, schema, self._entry(row, topic_id))
            kafka.produce(producer, self.target.name, buffer.getvalue(), place, delivered)
        unsent = producer.flush(_READ_SECONDS)
        if unsent or failures:
            raise TopicbergError(
                f"topic {self.spec.name}: {unsent + len(failures)} broken records could not be "
                f"written to the dead-letter topic {self.target.name}: "
                f"{failures[0] if failures else 'no answer'}",
                hint="nothing of the batch was committed, it is tried again",
            )
        ends = kafka.end_offsets(self._endpoints, self.target.name)
        return {LOGGED_OFFSETS: dump_offsets(ends)}

    def _schema(self) -> Any:
        path = self.target.value_schema_path(self._config)
        assert path is not None  # noqa: S101  its spec has a schema file
        return fastavro.parse_schema(json.loads(path.read_text()))

    def _producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer({**self._endpoints.kafka_config(), "enable.idempotence": True})

    def _entry(self, row: Row, topic_id: str) -> dict[str, Any]:
        problem = row[PROBLEM]
        details = {"topic_id": topic_id}
        if problem["schema_id"] is not None:
            details["schema_id"] = str(problem["schema_id"])
        headers = {header["key"]: header["value"] for header in row["headers"] or ()}
        return {
            "error_timestamp": datetime.now(UTC),
            "error_code": CANNOT_DECODE,
            "error_reason": "the record cannot be decoded",
            "error_message": problem["reason"],
            "error_details": details,
            "processor": PROCESSOR,
            "affected_type": "key" if problem["reason"].startswith("the key") else "value",
            "affected_catalog": CATALOG,
            "affected_database": self.spec.table_identifier(self._config)[0],
            "affected_name": self.spec.name,
            "source_record": {
                "topic": self.spec.name,
                "partition": row["partition"],
                "offset": row["offset"],
                "timestamp_type": "LOG_APPEND_TIME" if row["timestampType"] else "CREATE_TIME",
                "timestamp": row["timestamp"].astimezone(UTC),
                "headers": headers,
                "key": _bytes(row["key"]),
                "value": _bytes(row["value"]),
            },
        }

    def _logged_since(self, table: Table, topic_id: str, schema: Any) -> set[Place]:
        """Records of this topic that were produced after the table last changed."""
        known = table.properties.get(LOGGED_OFFSETS)
        start = parse_offsets(known) if known else {}
        found: set[Place] = set()
        for message in _read(self._endpoints, self.target.name, start):
            value = message.value()
            if value is None or len(value) < WIRE_BYTES:
                continue
            entry: Any = fastavro.schemaless_reader(BytesIO(value[WIRE_BYTES:]), schema, None)
            source = entry["source_record"]
            if (source["topic"], entry["error_details"].get("topic_id")) == (
                self.spec.name,
                topic_id,
            ):
                found.add((source["partition"], source["offset"]))
        return found


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _read(endpoints: Endpoints, topic: str, start: Offsets) -> list[Message]:
    """Everything in a topic from ``start`` (a partition not in it: its beginning) to its end."""
    from confluent_kafka import Consumer, TopicPartition

    beginning = kafka.beginning_offsets(endpoints, topic)
    ends = kafka.end_offsets(endpoints, topic)
    wanted = {p: (max(start.get(p, 0), beginning[p]), end) for p, end in ends.items()}
    wanted = {p: (first, end) for p, (first, end) in wanted.items() if first < end}
    found: list[Message] = []
    if not wanted:
        return found
    consumer = Consumer(
        {
            **endpoints.kafka_config(),
            "group.id": f"topicberg-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    deadline = time.monotonic() + _READ_SECONDS
    try:
        consumer.assign([TopicPartition(topic, p, first) for p, (first, _) in wanted.items()])
        while wanted and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                found.append(message)
            for position in consumer.position([TopicPartition(topic, p) for p in wanted]):
                if position.offset >= wanted[position.partition][1]:
                    del wanted[position.partition]
    finally:
        consumer.close()
    if wanted:
        raise TopicbergError(
            f"the dead-letter topic {topic} cannot be read: no answer in {_READ_SECONDS:.0f} s",
            hint="nothing was committed, it is tried again",
        )
    return found
