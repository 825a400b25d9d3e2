"""Many records while the engine and Spark are killed: every one of them once."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable

import pytest
import shared_stack
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema
from conftest import KillService

from topicberg.endpoints import Endpoints
from topicberg.formats.framing import wire_prefix
from topicberg.kafka import topics as kafka
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.tableflow.values.commit import committed
from topicberg.topics import load_topic

pytestmark = [pytest.mark.integration, pytest.mark.project, pytest.mark.alone]

RECORDS = int(os.environ.get("TOPICBERG_TEST_RECORDS", 60_000))
"""The whole million takes two minutes; it is run with TOPICBERG_TEST_RECORDS=1000000.

Fewer by default: later tests compute and publish tables of the same topic.
"""


def zigzag(number: int) -> bytes:
    """Avro's encoding of an int or long."""
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def text(value: str) -> bytes:
    return zigzag(len(value)) + value.encode()


def produce(endpoints: Endpoints, count: int, failures: list[object]) -> None:
    """An outside producer: the record's number is in ``userid``, so that each can be identified."""
    spec = load_topic("stock_trades")
    schema = (settings().schemas_dir / "stock_trades.avsc").read_text()
    schema_id = endpoints.schema_registry_client().register_schema(
        spec.value_subject, Schema(json.dumps(json.loads(schema)), "AVRO")
    )
    head = (
        wire_prefix(schema_id) + text("BUY") + zigzag(7) + text("ZVV") + zigzag(9) + text("ABC123")
    )
    producer = Producer({**endpoints.kafka_config(), "linger.ms": 20, "enable.idempotence": True})

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(count):
        value = head + text(f"outside_{number}")
        while True:
            try:
                producer.produce(
                    "stock_trades", value, str(number % 97).encode(), callback=delivered
                )
                break
            except BufferError:
                producer.poll(0.2)
        if number % 5000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(1)


@pytest.mark.parametrize(
    "killed",
    [
        ("tableflow", "spark"),
        pytest.param(("tableflow", "spark", "spark", "tableflow"), marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_kills_lose_nothing_and_double_nothing(
    stack: Endpoints, kill_service: KillService, killed: tuple[str, ...]
) -> None:
    spec, config = load_topic("stock_trades"), settings()
    kafka.ensure_topic(spec, stack, config)
    failures: list[object] = []
    producing = threading.Thread(target=produce, args=(stack, RECORDS, failures))
    producing.start()
    for service in killed:
        time.sleep(6)
        kill_service(service, wait=False)
    producing.join()
    shared_stack.up(config)  # whatever was killed last may still be starting
    assert failures == []
    end = kafka.end_offsets(stack, "stock_trades")

    def caught_up() -> bool:
        held = committed(stack.catalog(config).load_table(spec.table_identifier(config))).offsets
        return all(held.get(p, 0) >= offset for p, offset in end.items())

    wait(caught_up, 180)
    outside = (
        "SELECT count(*), count(DISTINCT userid) FROM stock_trades WHERE userid LIKE 'outside_%'"
    )
    assert run_query(outside, "duckdb", stack, config).rows == [(RECORDS, RECORDS)]
    everything = "SELECT count(*) FROM stock_trades"
    assert run_query(everything, "duckdb", stack, config).scalar() == sum(end.values())
