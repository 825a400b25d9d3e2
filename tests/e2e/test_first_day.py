"""A new user's first day: a topic of her own, mistakes, evolution, a derived table, recovery.

Another domain than the examples: parcels in nested JSON Schema, upserted by key, with tombstones.
Each step uses the commands of docs/add-a-topic.md and docs/add-a-pipeline.md; each mistake must be
explained by its message.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from project_copy import copy_project
from waiting import wait_until

from topicberg.endpoints import load_endpoints
from topicberg.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

SCHEMA = "platform/schemas/parcels.json"
SPEC = "platform/topics/parcels.yaml"
PIPELINE = "assets/pipelines/post.py"

PARCEL: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Parcel",
    "type": "object",
    "additionalProperties": False,
    "required": ["parcel_id", "handed_over_at", "weight", "to"],
    "properties": {
        "parcel_id": {"type": "string"},
        "handed_over_at": {"type": "string", "format": "date-time"},
        "weight": {"type": "number", "description": "kilograms"},
        "to": {
            "type": "object",
            "additionalProperties": False,
            "required": ["city"],
            "properties": {"city": {"type": "string"}, "street": {"type": "string"}},
        },
        "scans": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"depot": {"type": "string"}, "seconds": {"type": "integer"}},
            },
        },
    },
}
TOPIC = """\
name: parcels
pipeline: post
description: Parcels on their way.
schema: {format: FORMAT, file: parcels.json, DATE_TIMES}
key: {format: string}
partitions: 2
write_mode: upsert
event_time: handed_over_at
table: {partitioning: [day(handed_over_at)]}
derived_partitions: {granularity: hourly, start: "2026-03-01"}
owners: ["team:post"]
"""
FUNCTION = '''\
"""Derived tables of the post."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from topicberg import derived_table


@derived_table(
    source="parcels",
    time_column="hour",
    lineage={"hour": ("handed_over_at",), "city": ("to",), "kilograms": ("weight",)},
)
def weight_by_city(parcels: DataFrame) -> DataFrame:
    """Weight of the parcels of an hour by city."""
    return parcels.groupBy(
        F.date_trunc("hour", "handed_over_at").alias("hour"), F.col("COLUMN.city").alias("city")
    ).agg(F.sum("weight").alias("kilograms"))
'''
FIRST_HOUR = datetime(2026, 3, 2, 8, tzinfo=UTC)


class Day:
    """Her checkout, her shell, her producer, and what her table must hold."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TOPICBERG_STATE_DIR": str(project / "state"),
            "TOPICBERG_ENV_FILE": os.devnull,
            "PYTHONPATH": f"{project}:{project / 'platform'}",
            "DAGSTER_HOME": str(project / "home"),
            "COLUMNS": "200",
            "TZ": "UTC",
        }
        (project / "home").mkdir()
        self.parcels: dict[str, dict[str, Any]] = {}

    def begin(self) -> None:
        self.runs("topicberg up")
        self.stack = load_endpoints(Settings(state_dir=self.project / "state"))
        self.producer = Producer(self.stack.kafka_config(writes=True))

    def end(self) -> None:
        self.runs("topicberg down")
        self.runs("topicberg reset --yes")

    def runs(self, command: str) -> str:
        done = self._run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return " ".join(done.stdout.split())

    def says(self, command: str) -> str:
        done = self._run(command)
        return " ".join((done.stdout + done.stderr).split())

    def fails(self, command: str, *expected: str) -> None:
        """A mistake: one message with all that she must know, and no stack trace."""
        done = self._run(command)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode != 0, f"{command}\n{said}"
        assert "Traceback" not in said, f"{command}\n{said}"
        for words in expected:
            assert words in said, f"{command}: not {words!r}\n{said}"

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command),
            cwd=self.project,
            env=self.environment,
            input="y\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )

    def rows(self, sql: str, engine: str = "duckdb") -> list[dict[str, Any]]:
        done = self._run(
            shlex.join(["topicberg", "query", "--engine", engine, "--format", "json", sql])
        )
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def write(self, path: str, text: str) -> None:
        (self.project / path).write_text(text)

    def send(self, parcels: list[dict[str, Any]]) -> None:
        """With Confluent's serializer, and the version that is registered."""
        serializer = JSONSerializer(
            None,
            self.stack.schema_registry_client(),
            conf={"auto.register.schemas": False, "use.latest.version": True},
        )
        context = SerializationContext("parcels", MessageField.VALUE)
        for parcel in parcels:
            key = parcel["parcel_id"]
            self.producer.produce("parcels", serializer(parcel, context), key)
            self.parcels[key] = parcel
        assert self.producer.flush(30) == 0

    def cancel(self, parcel_id: str) -> None:
        self.producer.produce("parcels", None, parcel_id)
        assert self.producer.flush(30) == 0
        del self.parcels[parcel_id]

    def expected_weights(self) -> dict[tuple[str, str], float]:
        """(hour, city) → kilograms."""
        weights: dict[tuple[str, str], float] = defaultdict(float)
        for parcel in self.parcels.values():
            weights[parcel["handed_over_at"][:13], parcel["to"]["city"]] += parcel["weight"]
        return dict(weights)

    def weights(self) -> dict[tuple[str, str], float]:
        rows = self.rows(
            "SELECT strftime(hour, '%Y-%m-%dT%H') AS hour, city, kilograms FROM weight_by_city"
        )
        return {(row["hour"], row["city"]): row["kilograms"] for row in rows}


def parcel(number: int, **more: Any) -> dict[str, Any]:
    handed_over = FIRST_HOUR + timedelta(minutes=number)
    return {
        "parcel_id": f"P-{number}",
        "handed_over_at": handed_over.isoformat().replace("+00:00", "Z"),
        "weight": number / 4,
        "to": {"city": ("Kiel", "Ulm", "Graz")[number % 3]},
        "scans": [{"depot": "north", "seconds": number}],
        **more,
    }


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Day]:
    day = Day(copy_project(tmp_path))
    try:
        day.begin()
        yield day
    finally:
        day.end()


def test_first_day(day: Day) -> None:
    add_the_topic(day)
    fill_it(day)
    evolve_its_schema(day)
    break_it(day)
    derive_a_table(day)
    query_it(day)
    remove_it(day)


def add_the_topic(day: Day) -> None:
    day.write(SCHEMA, json.dumps(PARCEL))
    day.write(SPEC, TOPIC.replace("FORMAT", "avro").replace(", DATE_TIMES", ""))
    day.fails("topicberg topics validate", "parcels.yaml", "format: json")
    day.write(SPEC, TOPIC.replace("FORMAT", "json").replace(", DATE_TIMES", ""))
    day.fails("topicberg topics validate", "handed_over_at", "date_times: timestamp")
    right = TOPIC.replace("FORMAT", "json").replace("DATE_TIMES", "date_times: timestamp")
    day.write(SPEC, right.replace("day(handed_over_at)", "day(handed_over)"))
    day.fails("topicberg topics validate", "handed_over", "handed_over_at")
    day.write(SPEC, right.replace("{format: string}", "string"))
    day.fails("topicberg topics validate", "key: must be a mapping with the fields format,")
    day.write(SPEC, f"{right}topic_config: {{retention.ms: week}}\n")
    day.fails("topicberg topics validate", "retention.ms must be an integer, not 'week'")
    day.write(SPEC, right)
    day.runs("topicberg topics validate")
    day.fails("env TOPICBERG_BUCKET=b topicberg topics list", "TOPICBERG_BUCKET", "found 'b'")
    day.fails("topicberg tableflow status parcel", "parcels")
    day.runs("topicberg topics register parcels")
    wait_until(lambda: "RUNNING" in day.says("topicberg tableflow status parcels"), 120)


def fill_it(day: Day) -> None:
    day.send([parcel(number) for number in range(300)])
    day.runs("topicberg tableflow run parcels --once")
    assert "P-" in day.runs("topicberg peek parcels -n 2")
    day.send([parcel(number, weight=1000.5) for number in range(20)])
    for number in range(20, 30):
        day.cancel(f"P-{number}")
    day.runs("topicberg tableflow run parcels --once")
    assert_table_is_right(day)


def evolve_its_schema(day: Day) -> None:
    changed = json.loads(json.dumps(PARCEL))
    changed["properties"]["to"]["properties"]["country"] = {"type": "string"}
    day.write(SCHEMA, json.dumps(changed))
    assert "topicberg topics register parcels" in day.says("topicberg topics validate")
    day.runs("topicberg topics register parcels")
    day.send([parcel(300, to={"city": "Ulm", "country": "DE"})])
    day.runs("topicberg tableflow run parcels --once")
    (row,) = day.rows("SELECT \"to\".country AS country FROM parcels WHERE parcel_id = 'P-300'")
    assert row == {"country": "DE"}
    retyped = json.loads(json.dumps(changed))
    retyped["properties"]["weight"] = {"type": "string"}
    day.write(SCHEMA, json.dumps(retyped))
    day.fails("topicberg topics register parcels", "weight", "compatib")
    day.fails("topicberg topics pull parcels", "restore the file")
    day.write(SCHEMA, json.dumps(changed))
    day.runs("topicberg topics pull parcels")
    day.runs("topicberg topics validate")
    assert_table_is_right(day)


def break_it(day: Day) -> None:
    day.producer.produce("parcels", b"no record", "P-9999")
    assert day.producer.flush(30) == 0
    day.fails(
        "topicberg tableflow run parcels --once", "partition", "offset", "--error-handling LOG"
    )
    assert "SUSPENDED" in day.runs("topicberg tableflow status")
    day.runs("topicberg tableflow enable parcels --error-handling LOG")
    day.send([parcel(301)])
    day.runs("topicberg tableflow run parcels --once")
    assert_table_is_right(day)
    day.runs("topicberg tableflow run error_log --once")
    (row,) = day.rows("SELECT error_message FROM error_log WHERE source_record.topic = 'parcels'")
    assert row["error_message"]


def derive_a_table(day: Day) -> None:
    day.write(PIPELINE, FUNCTION.replace("from topicberg import", "from topicbreg import"))
    day.fails("topicberg pipelines check", "assets/pipelines/post.py, line 6", "topicbreg")
    day.write(PIPELINE, FUNCTION.replace("source=", "lookback=5, source="))
    day.fails("topicberg pipelines check", "weight_by_city: lookback is 5", "use a timedelta")
    day.write(PIPELINE, FUNCTION.replace("COLUMN", "too"))
    day.fails("topicberg pipelines check", "too")
    wrong = FUNCTION.replace("COLUMN", "to").replace('("weight",)', '("wieght",)')
    day.write(PIPELINE, wrong)
    day.fails("topicberg pipelines check", "no column wieght; did you mean weight?")
    day.write(PIPELINE, FUNCTION.replace("COLUMN", "to"))
    assert "weight_by_city" in day.runs("topicberg pipelines check")
    first, last = (FIRST_HOUR + timedelta(hours=hours) for hours in (0, 5))
    backfill = (
        "dagster asset materialize -f definitions.py --select 'key:\"iceberg/weight_by_city\"' "
        f"--partition-range {first:%Y-%m-%d-%H:00}...{last:%Y-%m-%d-%H:00}"
    )
    day.runs(backfill)
    assert day.weights() == day.expected_weights()
    day.send([parcel(1, parcel_id="P-late", weight=7.25)])  # into an hour that was computed
    day.cancel("P-200")
    day.runs("topicberg tableflow run parcels --once")
    day.runs(backfill)
    assert day.weights() == day.expected_weights()
    assert "weight_by_city" in day.runs("topicberg checks")


def query_it(day: Day) -> None:
    day.fails('topicberg query "SELECT parcel_idd FROM parcels"', "parcel_id")
    day.fails('topicberg query "SELECT count(*) FROM parcel"', "parcels")
    day.fails(
        "topicberg query 'SELECT \"to\".cty FROM parcels'", 'did you mean the column "to".city'
    )
    day.fails('topicberg query "SELECT $$offset FROM parcels"', '"$$offset"')
    day.fails(
        'topicberg query --engine snowflake "SELECT count(*) FROM PARCELS"',
        "materialize a snowflake/",
    )
    day.runs("topicberg sync parcels")
    (row,) = day.rows("SELECT count(*) AS n FROM PARCELS", "snowflake")
    assert row["N"] == len(day.parcels)


def remove_it(day: Day) -> None:
    day.runs("topicberg tableflow disable parcels --drop-table")
    day.fails('topicberg query "SELECT count(*) FROM parcels"', "parcels")


def assert_table_is_right(day: Day) -> None:
    rows = day.rows(
        'SELECT parcel_id, weight, "to".city AS city, '
        "strftime(handed_over_at, '%Y-%m-%dT%H:%M:%SZ') AS handed_over_at FROM parcels"
    )
    found = {row["parcel_id"]: (row["weight"], row["city"], row["handed_over_at"]) for row in rows}
    assert len(found) == len(rows)
    assert found == {
        key: (one["weight"], one["to"]["city"], one["handed_over_at"])
        for key, one in day.parcels.items()
    }
