"""Commands of ``topicberg tableflow`` for a topic whose table the engine has not created yet."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from pyiceberg.exceptions import NoSuchTableError
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.endpoints import runtime_file
from topicberg.errors import SpecError
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.status import (
    TopicStatus,
    note_observation,
    remove_status,
    write_status,
)


@pytest.fixture
def empty_catalog(serve_endpoints: Callable[[object], None]) -> None:
    def load_table(_: object) -> None:
        raise NoSuchTableError

    serve_endpoints(SimpleNamespace(catalog=lambda _: SimpleNamespace(load_table=load_table)))


@pytest.mark.usefixtures("empty_catalog")
@pytest.mark.parametrize(
    "arguments", [["acknowledge"], ["skip", "0", "17"], ["reread"], ["upgrade"]], ids=lambda a: a[0]
)
def test_topic_without_table_is_reported(arguments: list[str]) -> None:
    command, *rest = arguments
    result = CliRunner().invoke(app, ["tableflow", command, "stock_trades", *rest])
    assert isinstance(result.exception, SpecError)
    assert "topic stock_trades has no table yet" in str(result.exception)


@pytest.fixture
def lost_stack() -> Iterator[Settings]:
    """A machine that lost power: its files are there, or damaged, and nothing answers."""
    config = settings()
    runtime_file(config).write_text("{}")
    write_status(config, TopicStatus(topic="stock_trades", engine="here", phase="RUNNING"))
    note_observation(config)
    yield config
    runtime_file(config).unlink(missing_ok=True)
    remove_status(config, "stock_trades")


@pytest.mark.parametrize("age", [None, 31, 0])
def test_status_of_an_engine_that_is_gone_is_not_running(
    lost_stack: Settings, age: int | None
) -> None:
    observed = lost_stack.state_dir / "tableflow" / "observed"
    if age is None:
        runtime_file(lost_stack).unlink()  # `topicberg down`
    else:
        os.utime(observed, (time.time() - age, time.time() - age))
    phase = "RUNNING" if age == 0 else "STOPPED"
    result = CliRunner().invoke(app, ["tableflow", "status", "stock_trades", "--json"])
    assert json.loads(result.stdout)[0]["phase"] == phase
    result = CliRunner().invoke(app, ["tableflow", "status", "stock_trades"])
    assert phase in result.stdout
    said = "the local stack is stopped" if age is None else "no engine runs on this machine"
    assert (said in result.output) == (phase == "STOPPED")


def test_help_of_commands_has_no_fields_of_docstrings() -> None:
    groups: Any = typer.main.get_command(app)
    commands = [*groups.commands.values()]
    commands += [one for group in commands for one in getattr(group, "commands", {}).values()]
    assert not [one.name for one in commands if ":raises" in (one.help or "")]
