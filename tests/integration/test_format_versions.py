"""Tables of other format versions of Iceberg: what topicberg does not support is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka_topics import ORDER, Topic

from topicberg.endpoints import CATALOG
from topicberg.errors import TableFormatError
from topicberg.iceberg.maintenance import maintain
from topicberg.spark import new_session, quote

pytestmark = pytest.mark.integration

KEYED = {"write_mode": "upsert", "key": {"format": "string"}}


def send(topic: Topic, first: int, rows: int = 5) -> None:
    values = [{"id": number, "note": f"n{number}"} for number in range(first, first + rows)]
    topic.send(ORDER, values, key=lambda number: f"k{number}".encode())


def spark_sql(topic: Topic, statement: str) -> None:
    """Run a statement of another writer; ``{}`` is the table."""
    config, endpoints = topic.config, topic.endpoints
    conf, _ = endpoints.spark_session(config)
    session = new_session(endpoints.spark_connect, conf)
    try:
        name = quote(CATALOG, *topic.spec.table_identifier(config))
        session.sql(statement.format(name)).collect()
    finally:
        session.stop()


def upgrade(topic: Topic, version: int) -> None:
    spark_sql(topic, f"ALTER TABLE {{}} SET TBLPROPERTIES ('format-version' = '{version}')")


@pytest.mark.parametrize("fields", [{}, KEYED], ids=["append", "upsert"])
def test_newer_format_version_is_reported(
    make_topic: Callable[..., Topic], fields: dict[str, Any]
) -> None:
    topic = make_topic(**fields)
    send(topic, 0)
    topic.ingest()
    upgrade(topic, 4)
    send(topic, 5)
    for work in (
        topic.ingest,
        lambda: maintain(topic.spec, topic.endpoints, topic.config),
        topic.table,
    ):
        with pytest.raises(TableFormatError, match="format version 4") as raised:
            work()
        assert topic.spec.name in raised.value.message
        assert raised.value.hint


def test_upsert_on_version_3_is_reported(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic(**KEYED)
    send(topic, 0)
    topic.ingest()
    upgrade(topic, 3)
    send(topic, 3)
    with pytest.raises(TableFormatError, match="format version 3"):
        topic.ingest()
