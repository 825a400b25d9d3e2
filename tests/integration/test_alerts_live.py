"""Schedules, checks and alerts as they are run for months: by Dagster's own daemon."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dagster_dev import Dagster, dagster_dev
from pyiceberg.table import StaticTable
from waiting import wait_until

from topicberg.alerts.alert import Notice
from topicberg.alerts.channels import alerts_file
from topicberg.catalogs import glue
from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg.tableflow.service.engine import run_once
from topicberg.topics import load_topic
from topicberg_local.datagen.runner import run_here

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(2400)]

TOPIC, NAME = "airline.sunset", "airline_sunset"
CHECK = f"check glue/{NAME}:pointer"
SCHEDULE_SECONDS, ALERT_SECONDS = 300.0, 60.0
PATIENCE_SECONDS = SCHEDULE_SECONDS + ALERT_SECONDS + 600.0
_RUNS = """
{ runsOrError(filter: {pipelineName: "check_tables"}) {
    ... on Runs { results { tags { key value } } } } }
"""


def test_failing_check_is_sent_once_and_once_when_resolved(stack: Endpoints) -> None:
    """The schedule finds a Glue pointer that was moved manually, and later that it was fixed."""
    config, spec = settings(), load_topic(TOPIC)
    client = stack.boto3("glue", config)
    run_here(config, TOPIC, rate=0, count=20)
    run_once(spec, stack, config)
    table = stack.catalog(config).load_table(spec.table_identifier(config))

    def in_step() -> bool:
        found = glue.get_table(client, config.cluster_id, spec.glue_name)
        location = glue.metadata_location(found) if found else None
        if location is None:
            return False
        # Runs that read the table tag its snapshots: that alone does not move the pointer.
        registered = StaticTable.from_metadata(location, table.io.properties)
        return glue.visible_state(registered) == glue.visible_state(table.refresh())

    file = alerts_file(config)
    seen = len(file.read_text().splitlines()) if file.exists() else 0

    def sent() -> list[Notice]:
        lines = file.read_text().splitlines()[seen:] if file.exists() else []
        return [Notice.model_validate_json(line) for line in lines]

    def ours() -> list[Notice]:
        return [notice for notice in sent() if notice.alert.key == CHECK]

    with dagster_dev(config) as dagster:
        wait_until(lambda: in_step() and not dagster.runs(), PATIENCE_SECONDS)
        moved = glue.table_input(table, spec.glue_name, None)
        moved["Parameters"] = {
            **moved["Parameters"],
            glue.METADATA_LOCATION: f"{table.metadata_location}.elsewhere",
        }
        client.update_table(DatabaseName=config.cluster_id, TableInput=moved)

        wait_until(ours, PATIENCE_SECONDS)
        time.sleep(3 * ALERT_SECONDS)
        (notice,) = ours()
        assert notice.state == "firing"
        assert notice.alert.severity == "error"
        assert "another writer moved the pointer" in notice.alert.what
        assert f"/assets/glue/{NAME}?view=checks&checkDetail=pointer" in notice.alert.link
        command = notice.alert.remediation or ""
        assert f"`topicberg sync {NAME}`" in command
        assert command in notice.text
        assert notice.alert.link in notice.text
        assert_by_schedule(dagster)
        # What follows from it, and what passes, is not sent.
        assert [n.alert.key for n in sent() if NAME in n.alert.key] == [CHECK]
        assert not [n for n in sent() if n.alert.key.startswith(("run ", "tick "))]

        fix(f"topicberg sync {NAME}")
        wait_until(lambda: len(ours()) > 1, PATIENCE_SECONDS)
        time.sleep(3 * ALERT_SECONDS)
        assert [n.state for n in ours()] == ["firing", "resolved"]
        assert ours()[-1].text.startswith("resolved: check pointer of ")


def assert_by_schedule(dagster: Dagster) -> None:
    runs: list[dict[str, Any]] = dagster.ask(_RUNS)["runsOrError"]["results"]
    assert runs
    for run in runs:
        tags = {tag["key"]: tag["value"] for tag in run["tags"]}
        assert tags["dagster/schedule_name"] == "check_tables_schedule"


def fix(command: str) -> None:
    program, *arguments = shlex.split(command)
    subprocess.run([str(Path(sys.executable).with_name(program)), *arguments], check=True)
