"""Commands of ``topicberg tableflow`` for a topic whose table the engine has not created yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import typer
from pyiceberg.exceptions import NoSuchTableError
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.errors import SpecError


@pytest.fixture
def empty_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_table(_: object) -> None:
        raise NoSuchTableError

    endpoints = SimpleNamespace(catalog=lambda _: SimpleNamespace(load_table=load_table))
    monkeypatch.setattr("topicberg.cli.tableflow.load_endpoints", lambda _: endpoints)


@pytest.mark.usefixtures("empty_catalog")
@pytest.mark.parametrize(
    "arguments", [["acknowledge"], ["skip", "0", "17"], ["reread"], ["upgrade"]], ids=lambda a: a[0]
)
def test_topic_without_table_is_reported(arguments: list[str]) -> None:
    command, *rest = arguments
    result = CliRunner().invoke(app, ["tableflow", command, "stock_trades", *rest])
    assert isinstance(result.exception, SpecError)
    assert "topic stock_trades has no table yet" in str(result.exception)


def test_help_of_commands_has_no_fields_of_docstrings() -> None:
    groups: Any = typer.main.get_command(app)
    commands = [*groups.commands.values()]
    commands += [one for group in commands for one in getattr(group, "commands", {}).values()]
    assert not [one.name for one in commands if ":raises" in (one.help or "")]
