"""What ``topicberg deploy`` prints, and which resources a target means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, SSOTokenLoadError
from snowflake.connector.errors import ProgrammingError
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy.cli import commands as deploy
from topicberg_deploy.cli import output as deploy_output
from topicberg_deploy.cli.commands import _targeted
from topicberg_deploy.cli.output import show_plan, show_status, step_document
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Action, Live, Resource, Step


@pytest.fixture(scope="module")
def graph() -> list[Resource]:
    return resources(Settings(), load_topics())


def test_plan_is_shown_by_vendor_with_old_and_new_values(
    graph: list[Resource], capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"partitions": (3, 6), "cleanup.policy": ("delete", "compact")}
    steps = [Step(one, Action.CHANGE, changes) for one in reversed(graph)]
    assert show_plan(steps, everything=False) == len(graph)
    lines = capsys.readouterr().out.splitlines()
    vendors = [line for line in lines if not line.startswith((" ", "~"))]
    assert vendors[:4] == [
        "Confluent Cloud",
        "API keys, in AWS Secrets Manager",
        "AWS",
        "Snowflake",
    ]
    assert "      partitions: 3 → 6" in lines
    assert "      cleanup.policy: delete → compact" in lines
    assert vendors[4:] == [f"{len(graph)} to change; 0 are up to date"]


def test_target_brings_what_it_needs(graph: list[Resource]) -> None:
    by_key = {resource.key: resource for resource in graph}
    found = _targeted(graph, ["confluent/topic/stock_trades", "aws/"])
    keys = [resource.key for resource in found]
    assert "confluent/topic/stock_trades" in keys
    assert {key for key in by_key if key.startswith("aws/")} <= set(keys)
    assert not any(key.startswith("confluent/connector/") for key in keys)
    for resource in found:
        assert {need for need in resource.needs if need in by_key} <= set(keys)
    assert keys == [key for key in by_key if key in keys]
    assert _targeted(graph, None) == graph


def test_target_that_is_unknown_names_a_similar_one(graph: list[Resource]) -> None:
    with pytest.raises(TopicbergError, match="did you mean confluent/topic/stock_trades"):
        _targeted(graph, ["confluent/topic/stock_trade"])


def test_status_shows_where_tableflow_has_a_table(
    graph: list[Resource], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    (table,) = [one for one in graph if one.key == "confluent/tableflow/stock_trades"]
    path = "s3://b/10011010/lkc-1/v1/0c1b"
    context: Any = SimpleNamespace(live={table.key: Live("stock_trades", {}, {"table_path": path})})
    step = Step(table, Action.KEEP)
    assert step_document(context, step)["table_path"] == path
    show_status(context, [step])
    assert path in capsys.readouterr().out


@pytest.mark.parametrize("action", [Action.KEEP, Action.WAIT])
def test_status_with_markup_in_a_reason_shows_it_as_it_is(
    graph: list[Resource], capsys: pytest.CaptureFixture[str], action: Action
) -> None:
    """Reasons quote vendors, and rich interprets markup in plain strings."""
    context: Any = SimpleNamespace(live={})
    show_status(context, [Step(graph[0], action, reason="for [red] and [/red]")])
    assert "[red] and [/red]" in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ClientError({"Error": {"Code": "AccessDenied"}}, "PutParameter"), "(AccessDenied)"),
        (ProgrammingError("Insufficient privileges"), "Insufficient privileges"),
        (SSOTokenLoadError(error_msg="expired"), "run `aws sso login --profile work`"),
    ],
)
def test_errors_of_vendors_are_messages(
    monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(deploy, "_open", refuse)
    raised = CliRunner().invoke(app, ["deploy", "rotate", "--profile", "work"]).exception
    assert isinstance(raised, TopicbergError)
    assert shown in str(raised)


def test_reasons_to_wait_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    context: Any = SimpleNamespace(waiting={"a": "for the administrator", "b": "for records"})
    context.waiting["c"] = "for the administrator"
    deploy_output.list_waiting(context)
    assert capsys.readouterr().out.splitlines() == [
        "2 wait for the administrator: run `topicberg deploy create` again after that",
        "1 wait for records: run `topicberg deploy create` again after that",
    ]
