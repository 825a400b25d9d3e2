"""Faults that a newcomer must be able to fix from what checks and alerts say alone.

Each one is really made; the checks and the alerts run; their text names the fault and a command;
exactly that command is run, and all is well again.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema
from operators import COMMAND, PATIENCE_SECONDS, Operator
from pyiceberg.table import Table
from waiting import wait_until

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.names import table_path
from topicberg.catalogs.snowflake.tables import SnowflakeTable, read_back
from topicberg.checks import catalogs
from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.resources import Snowflake
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import run_once
from topicberg.tableflow.service.status import read_status
from topicberg.tableflow.service.wait import wait_for
from topicberg.topics import load_topic
from topicberg.topics.spec import Freshness
from topicberg_local.datagen.runner import run_here

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3000)]

TOPIC = "airline.sunset"
NAME = "airline_sunset"
SPEC = load_topic(TOPIC).model_copy(update={"upsert_views": {}})
"""Nobody computes its views here."""
ICEBERG, GLUE, SNOWFLAKE = (f"{system}/{NAME}" for system in ("iceberg", "glue", "snowflake"))


def run(command: str) -> None:
    """Exactly what the message says, in a shell's words."""
    program, *arguments = shlex.split(command)
    environment = {**os.environ, "TOPICBERG_STATE_DIR": str(settings().state_dir)}
    done = subprocess.run(
        [str(Path(sys.executable).parent / program), *arguments],
        env=environment,
        cwd=settings().project_root,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def sync() -> None:
    run(f"topicberg sync {NAME}")


def committed(stack: Endpoints) -> Table:
    """The table with records that came now. The engine alone commits them: of two the slower one
    stages its batch, which is a newer state."""
    run_here(settings(), TOPIC, rate=0, count=5)
    table = stack.catalog(settings()).load_table(SPEC.table_identifier(settings()))
    assert wait_for(table, kafka.end_offsets(stack, TOPIC), PATIENCE_SECONDS)
    return table.refresh()


@pytest.fixture
def hasty_catalogs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Glue and Snowflake may not be behind for a moment."""
    with monkeypatch.context() as patch:
        patch.setenv("TOPICBERG_CATALOGS_PATIENCE_SECONDS", "0")
        settings.cache_clear()
        yield
    settings.cache_clear()


@pytest.fixture
def operator(stack: Endpoints) -> Iterator[Operator]:
    """A topic with records, in every catalog, and nothing wrong with it."""
    run_here(settings(), TOPIC, rate=0, count=50)
    run_once(SPEC, stack, settings())
    wait_until(lambda: not read_status(settings(), TOPIC).suspended, PATIENCE_SECONDS)
    sync()
    with dg.instance_for_test() as instance:
        operator = Operator(instance, SPEC)
        assert not operator.failing()
        assert not operator.alerts()
        yield operator


def test_stale_topic(operator: Operator) -> None:
    """Nobody produces any more; the spec allows a minute."""
    limits = Freshness(warn_minutes=1, fail_minutes=2)
    late = Operator(operator.instance, SPEC.model_copy(update={"freshness": limits}))
    wait_until(lambda: f"{ICEBERG}:freshness" in late.failing(), PATIENCE_SECONDS)
    command = late.diagnose(f"{ICEBERG}:freshness", "no record was produced to it for")
    assert command == f"topicberg datagen start {TOPIC}"
    try:
        run(command)
        late.await_green()
    finally:
        run(f"topicberg datagen stop {TOPIC}")


def test_schema_break(operator: Operator, stack: Endpoints) -> None:
    """Somebody registers a version in which a number is a text."""
    spec, registry = SPEC, stack.schema_registry_client()
    newest = registry.get_latest_version(spec.value_subject).schema
    broken = json.loads(newest.schema_str or "")
    for field in broken["fields"]:
        if field["name"] == "ticket_price":
            field["type"] = "string"
    registry.set_compatibility(spec.value_subject, "NONE")
    registry.register_schema(spec.value_subject, Schema(json.dumps(broken), "AVRO"))
    run_here(settings(), TOPIC, rate=0, count=1)  # of the version before
    wait_until(lambda: read_status(settings(), TOPIC).suspended, PATIENCE_SECONDS)
    command = operator.diagnose(f"{ICEBERG}:tableflow", "ticket_price")
    assert command == f"topicberg topics restore-schema {TOPIC}"
    run(f"{command} --yes")
    run(f"topicberg tableflow resume {TOPIC}")  # it would try by itself within half a minute
    run_once(spec, stack, settings())
    sync()
    operator.await_green()


def test_malformed_record(operator: Operator, stack: Endpoints) -> None:
    """A record that is no Avro: the topic stops before it, and goes on without it."""
    producer = Producer(stack.kafka_config())
    producer.produce(TOPIC, b"\x01this is no record")
    assert producer.flush(30) == 0
    try:
        wait_until(lambda: read_status(settings(), TOPIC).suspended, PATIENCE_SECONDS)
        command = operator.diagnose(f"{ICEBERG}:tableflow", r"partition \d+, offset \d+")
        assert command == f"topicberg tableflow enable {TOPIC} --error-handling LOG"
        run(command)
        skipped = f"{ICEBERG}:skipped_rows"
        wait_until(lambda: list(operator.failing()) == [skipped], PATIENCE_SECONDS)
        reported = operator.alerts()
        assert {(n.state, n.alert.key) for n in reported} == {
            ("resolved", f"check {ICEBERG}:tableflow"),
            ("firing", f"check {skipped}"),
        }
        assert any("error_log" in n.alert.what for n in reported)
        (acknowledge,) = {
            c
            for n in reported
            if n.state == "firing"
            for c in COMMAND.findall(n.alert.remediation or "")
        }
        assert acknowledge == f"topicberg tableflow acknowledge {TOPIC}"
        found = run_query(
            "SELECT error_message, source_record.topic FROM error_log", "duckdb", stack, settings()
        )
        assert [topic for message, topic in found.rows if message] == [TOPIC]
        run(acknowledge)
        sync()
        operator.await_green()
    finally:
        control.enable(settings(), TOPIC)  # as the spec says again


def test_glue_pointer_moved_by_hand(operator: Operator, stack: Endpoints) -> None:
    config, client = settings(), stack.boto3("glue", settings())
    table = stack.catalog(config).load_table(SPEC.table_identifier(config))
    body = glue.table_input(table, SPEC.glue_name, None)
    body["Parameters"] = {
        **body["Parameters"],
        glue.METADATA_LOCATION: table.metadata_location + ".elsewhere",
    }
    client.update_table(DatabaseName=config.cluster_id, TableInput=body)
    command = operator.diagnose(f"{GLUE}:pointer", "another writer moved the pointer")
    assert command == f"topicberg sync {NAME}"
    run(command)
    operator.await_green()


def test_glue_pointer_of_an_older_state(
    operator: Operator, stack: Endpoints, hasty_catalogs: None
) -> None:
    """Somebody restores Glue: a state that the table had, which all who read Glue take for new."""
    config, client, table = settings(), stack.boto3("glue", settings()), committed(stack)
    sync()
    body = glue.table_input(table, SPEC.glue_name, None)
    older = table.metadata.metadata_log[-1].metadata_file
    body["Parameters"] = {**body["Parameters"], glue.METADATA_LOCATION: older}
    client.update_table(DatabaseName=config.cluster_id, TableInput=body)
    command = operator.diagnose(f"{GLUE}:pointer", "Glue points to an old state of the table")
    assert command == f"topicberg sync {NAME}"
    run(command)
    operator.await_green()


def test_snowflake_counts_too_few_rows(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it reads the newest state, and counts a row less than that has."""

    def short(*asked: Any) -> SnowflakeTable:
        seen = read_back(*asked)
        return replace(seen, rows=seen.rows - 1)

    with monkeypatch.context() as patch:
        patch.setattr(catalogs, "read_back", short)
        says = r"the table has [\d,]+ rows, Snowflake counts [\d,]+: a data file is not"
        assert operator.diagnose(f"{SNOWFLAKE}:parity", says) == f"topicberg sync {NAME}"
    operator.await_green()


def test_snowflake_table_stale(
    operator: Operator, stack: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Glue follows a commit and Snowflake does not; the patience is over at once."""
    config, client = settings(), stack.boto3("glue", settings())
    glue.register(client, committed(stack), config.cluster_id, SPEC.glue_name)
    with monkeypatch.context() as patch:
        patch.setenv("TOPICBERG_CATALOGS_PATIENCE_SECONDS", "0")
        settings.cache_clear()
        command = operator.diagnose(f"{SNOWFLAKE}:parity", "the Snowflake table is stale")
        assert command == f"topicberg sync {NAME}"
        run(command)
        operator.await_green()
    settings.cache_clear()


def test_derived_table_that_is_stale(stack: Endpoints) -> None:
    """Nobody computes it any more; the spec allows a minute."""
    (derived,) = (table for table in find_derived() if table.name == "flagged_stock_trades")
    limits = Freshness(warn_minutes=1, fail_minutes=600)
    spec = load_topic("stock_trades").model_copy(update={"freshness": limits})
    asset, check = f"iceberg/{derived.name}", f"iceberg/{derived.name}:up_to_date"

    def produce() -> None:
        run_here(settings(), spec.name, rate=0, count=50)
        run_once(spec, stack, settings())

    produce()
    hour = f"{datetime.now(UTC):%Y-%m-%d-%H:00}"
    materialize = f"dagster asset materialize -f definitions.py --select 'key:\"{asset}\"'"
    run(f"{materialize} --partition {hour}")
    run(f"topicberg sync {derived.name}")
    produce()
    with dg.instance_for_test() as instance:
        behind = Operator(instance, spec, derived)
        wait_until(lambda: check in behind.failing(), PATIENCE_SECONDS)
        text = behind.failing()[check].description or ""
        assert "were not read yet" in text
        commands = COMMAND.findall(text)
        assert [command.split()[0] for command in commands] == ["dagster", "topicberg"]
        for command in commands:
            run(command)
        assert check not in behind.failing()


def test_derived_table_dropped(stack: Endpoints) -> None:
    """In Iceberg's catalog; Glue and Snowflake go on showing what it held."""
    (derived,) = (table for table in find_derived() if table.name == "flagged_stock_trades")
    spec, check = load_topic("stock_trades"), f"iceberg/{derived.name}:up_to_date"
    run_here(settings(), spec.name, rate=0, count=50)
    run_once(spec, stack, settings())
    hour = f"{datetime.now(UTC):%Y-%m-%d-%H:00}"
    select = f"--select 'key:\"iceberg/{derived.name}\"' --partition {hour}"
    run(f"dagster asset materialize -f definitions.py {select}")
    run(f"topicberg sync {derived.name}")
    with dg.instance_for_test() as instance:
        operator = Operator(instance, spec, derived)
        assert check not in operator.failing()
        operator.alerts()  # of other drills
        table = Lake(settings(), (spec,), (derived,)).table(derived)
        stack.catalog(settings()).drop_table(table.identifier)
        failing = operator.failing()
        assert {check, f"glue/{derived.name}:pointer"} <= failing.keys()
        text = failing[check].description or ""
        assert "the table is gone" in text
        assert [n.alert.key for n in operator.alerts()] == [f"check {check}"]
        for command in COMMAND.findall(text):
            run(command)
        assert not {check, f"glue/{derived.name}:pointer"} & operator.failing().keys()
        (notice,) = operator.alerts()
        assert (notice.state, notice.alert.key) == ("resolved", f"check {check}")


def test_snowflake_table_dropped(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_CATALOGS_PATIENCE_SECONDS", "0")
    settings.cache_clear()
    name = table_path(settings(), SPEC.snowflake_name, (settings().cluster_id, SPEC.glue_name)).sql
    with Snowflake().connection() as connection:
        connection.cursor().execute(f"DROP ICEBERG TABLE {name}")
    run(operator.diagnose(f"{SNOWFLAKE}:parity", "Snowflake has no Iceberg table"))
    operator.await_green()
    settings.cache_clear()
