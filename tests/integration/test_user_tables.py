"""Every version of a user is kept, and a trade gets the one of its time."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from found_topics import AVRO_TOPIC
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from assets.pipelines.users import TRADE_COLUMNS
from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.iceberg import summaries
from topicberg.kafka import topics as kafka
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import run_once
from topicberg.tableflow.service.history import history_table, ingest_history
from topicberg.tableflow.values import skips
from topicberg.topics import load_topic
from topicberg_local.datagen.producer import avro_encoder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Row = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)
USERS = st.sampled_from(["User_1", "User_2", None])


def ordered(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: repr(sorted(row.items())))


def reference(trades: list[Row], users: list[Row]) -> list[Row]:
    found = []
    for trade in trades:
        known = [
            user
            for user in users
            if user["userid"] == trade["userid"] is not None
            and user["$$timestamp"] <= trade["$$timestamp"]
        ]
        user = max(known, key=lambda u: (u["$$timestamp"], u["$$offset"]), default={})
        found.append(
            {
                "trade_timestamp": trade["$$timestamp"],
                **{column: trade.get(column) for column in TRADE_COLUMNS},
                "regionid": user.get("regionid"),
                "gender": user.get("gender"),
                "user_valid_from": user.get("$$timestamp"),
            }
        )
    return found


def test_the_history_has_every_record(stack: Endpoints, spark: SparkSession) -> None:
    """Those that an upsert replaced, those of one batch, and tombstones; each once."""
    name = f"users{uuid.uuid4().hex[:8]}"
    spec = load_topic("sample_data_users").model_copy(update={"name": name, "partitions": 1})
    ensured = kafka.ensure_topic(spec, stack)
    path = spec.schema_path("value")
    assert path is not None
    encode = avro_encoder(path.read_text(), ensured.value_schema_id or 0)

    def send(*regions: str | None) -> None:
        producer = Producer(stack.kafka_config())
        for region in regions:
            user = {"registertime": 1, "userid": "u", "regionid": region, "gender": "OTHER"}
            producer.produce(name, encode(user) if region else None, b"u")
        assert producer.flush(30) == 0

    def history() -> list[tuple[int, str | None, str]]:
        table = ingest_history(spec, stack, settings())
        found = table.scan().to_arrow().to_pylist()
        return sorted((row["$$offset"], row["regionid"], row["key"]) for row in found)

    send("a", "b")
    assert history() == [(0, "a", "u"), (1, "b", "u")]
    send(None, "c")
    run_once(spec, stack, settings())
    for _ in range(2):
        assert history() == [(0, "a", "u"), (1, "b", "u"), (2, None, "u"), (3, "c", "u")]
    newest = stack.catalog(settings()).load_table(spec.table_identifier()).scan().to_arrow()
    assert newest["regionid"].to_pylist() == ["c"]
    producer = Producer(stack.kafka_config())
    producer.produce(name, b"\x01this is no record", b"u")
    assert producer.flush(30) == 0
    send("d")
    with pytest.raises(TableflowError, match="offset 4"):
        history()
    broken = stack.catalog(settings()).load_table(spec.table_identifier())
    assert skips.request(broken, stack, name, (0, 4), "a test")  # as `tableflow skip` does
    for _ in range(2):
        assert [offset for offset, *_ in history()] == [0, 1, 2, 3, 5]
    producer.produce(name, b"\x01nor is this", b"u")
    assert producer.flush(30) == 0
    send("e")
    logs = {"error_handling": {"mode": "LOG"}}
    control.enable(settings(), name, logs, "upsert", discovered=AVRO_TOPIC)
    try:  # what was asked for since holds for it as well; the dead letters are the topic's own
        assert [offset for offset, *_ in history()] == [0, 1, 2, 3, 5, 7]
        table = stack.catalog(settings()).load_table(history_table(spec))
        assert table.properties[summaries.ROWS_SKIPPED] == "2"
    finally:
        control.disable(settings(), name)
