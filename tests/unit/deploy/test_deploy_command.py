"""What ``topicberg deploy`` prints, and which resources a target means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, SSOTokenLoadError
from snowflake.connector.errors import ProgrammingError
from specs import Project, minimal
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.errors import TopicbergError
from topicberg.settings import Settings, settings
from topicberg.topics import check_topics, load_topics
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


NO_LOGIN = (
    *(f"TOPICBERG_CONFLUENT_API_{name}" for name in ("KEY", "SECRET")),
    *(f"AWS_{name}" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE")),
    "TOPICBERG_ADMIN_USER_SECRETS_ROOT_PATH",
)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The cloud deployment on a machine without a login."""
    for name in NO_LOGIN:
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / name))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("TOPICBERG_DEPLOYMENT", "cloud")
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.usefixtures("cloud")
def test_plan_without_logins_creates_everything_and_names_what_to_set(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    planned = CliRunner().invoke(app, ["deploy", "plan", "--out", str(file)])
    assert planned.exit_code == 0, planned.output
    assert planned.output.startswith("The accounts were not read, because no login is set")
    for name in ("TOPICBERG_CONFLUENT_API_SECRET", "AWS: no credentials", NO_LOGIN[-1]):
        assert name in planned.output
    steps = json.loads(file.read_text())
    assert {step["action"] for step in steps} == {"create"}
    assert f"{len(steps)} to create" in planned.output
    assert "a month (order of magnitude" in planned.output


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize(
    ("command", "flags", "problem"),
    [
        ("create", (), "TOPICBERG_CONFLUENT_API_KEY"),
        ("status", (), "TOPICBERG_CONFLUENT_API_KEY"),
        ("plan", ("--confluent-api-key", "K"), "TOPICBERG_CONFLUENT_API_SECRET"),
        ("plan", ("--day-count", "0"), "TOPICBERG_DAY_COUNT"),
        ("plan", ("--profile", "nobody"), "AWS_PROFILE"),
    ],
)
def test_deploy_with_incomplete_logins_refuses(
    command: str, flags: tuple[str, ...], problem: str
) -> None:
    refused = CliRunner().invoke(app, ["deploy", command, *flags])
    assert isinstance(refused.exception, TopicbergError)
    assert problem in str(refused.exception)


def test_plan_of_the_local_deployment_says_first_that_it_is_for_emulators() -> None:
    refused = CliRunner().invoke(app, ["deploy", "plan"])
    assert refused.output.startswith("This plan is for the emulators of the local stack")
    assert "stack is not running" in str(refused.exception)


def test_impossible_specs_are_what_the_cloud_deployment_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path)
    project.schema("plain.json", json.dumps({"type": "object", "properties": {"at": {}}}))
    plain = {"format": "json", "file": "plain.json", "framing": "none"}
    event_time = {"field": "side", "format": "seconds"}
    project.topic(minimal(name="plain", schema=plain, event_time="$$timestamp"))
    project.topic(minimal(name="changes", changelog={"format": "debezium"}))
    project.topic(minimal(name="timed", event_time=event_time))
    project.topic(minimal(name="possible"))
    deploy_output.list_impossible(project.config)
    shown = capsys.readouterr().out
    config = project.config.model_copy(update={"deployment": "cloud"})
    refused = [str(problem) for problem in check_topics(config)[1]]
    own = [str(problem) for problem in check_topics(project.config)[1]]
    assert [line.strip() for line in shown.splitlines()[1:]] == [
        problem for problem in refused if problem not in own
    ]
    for field in ("plain.yaml: schema.framing", "changes.yaml: changelog", "timed.yaml: event"):
        assert field in shown
    assert "possible" not in shown
    deploy_output.list_impossible(project.config.model_copy(update={"tableflow": "topicberg"}))
    assert not capsys.readouterr().out


def test_report_that_cannot_be_written_is_refused_before_anything_is_tried(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "probe.json"
    refused = CliRunner().invoke(app, ["deploy", "probe", "--report", str(file)])
    assert refused.exit_code == 2
    assert "No such file or directory" in refused.output
