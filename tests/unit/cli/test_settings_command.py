"""``topicberg settings``: all of them, and no secret."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.cli.settings import _OTHERS, HIDDEN, every_setting, known
from topicberg.settings import DEPLOYED_LINK, deployment_parameter
from topicberg.settings.environment import Concern

SECRET = "hush-hush"


def test_every_setting_is_shown_with_what_it_is() -> None:
    found = every_setting({}, {}, {})
    names = {one.variable for one in found}
    # AWS's own variables are their names.
    stated = {name.partition("__")[0] for name in known() - _OTHERS}
    assert stated - names <= {"TOPICBERG_PROFILE", "TOPICBERG_AWS_ENDPOINT_URL"}
    assert {one.origin for one in found} == {"default"}
    assert not sorted(one.variable for one in found if not one.description)
    (workers,) = (one for one in found if one.variable == "TOPICBERG_ENGINE_WORKERS")
    assert workers.value == "8"
    assert len(names) <= 110, "more than users can know"


@pytest.mark.parametrize(
    ("variable", "concern"),
    [
        ("PREFIX", Concern.DEPLOYMENT),
        ("KAFKA_API_KEY", Concern.KAFKA),
        ("KAFKA_BOOTSTRAP", Concern.KAFKA),
        ("BUCKET", Concern.AWS),
        ("SPARK_REMOTE", Concern.COMPUTE),
        ("EMR_JOBS", Concern.COMPUTE),
        ("SNOWFLAKE_USER", Concern.SNOWFLAKE),
        ("ALERT_SLACK_URL", Concern.ALERTS),
        ("DAY_COUNT", Concern.DEPLOY),
        ("PORTS", Concern.LOCAL),
    ],
)
def test_setting_is_listed_under_its_concern(variable: str, concern: Concern) -> None:
    found = {one.variable: one.concern for one in every_setting({}, {}, {})}
    assert found[f"TOPICBERG_{variable}"] == concern


def test_concerns_are_listed_in_their_order_and_none_is_empty() -> None:
    assert list(dict.fromkeys([one.concern for one in every_setting({}, {}, {})])) == list(Concern)


@pytest.mark.parametrize("source", ["environment", ".env"])
def test_no_secret_is_shown(source: str) -> None:
    given = dict.fromkeys(known(), f"https://user:{SECRET}@host/path")
    environment, file = (given, {}) if source == "environment" else ({}, given)
    found = every_setting(environment, file, {})
    assert {one.origin for one in found} == {source}
    assert SECRET not in json.dumps([vars(one) for one in found])
    shown = {one.variable: one.value for one in found}
    groups = ("CATALOG", "ICEBERG_REST_OAUTH")
    for name in ("ALERT_SLACK_URL", "ICEBERG_REST_HEADERS", "KAFKA_API_SECRET", *groups):
        assert shown[f"TOPICBERG_{name}"] == HIDDEN
    assert shown["TOPICBERG_ALERT_UI_URL"] == f"https://{HIDDEN}@host/path"


def test_value_of_the_environment_precedes_the_file_and_the_deployment() -> None:
    name = "TOPICBERG_BUCKET"
    for sources, expected in (
        (({name: "a"}, {name: "b"}, {name: "c"}), ("a", "environment")),
        (({name: ""}, {name: "b"}, {name: "c"}), ("b", ".env")),
        (({}, {}, {name: "c"}), ("c", "topicberg deploy")),
    ):
        (found,) = (one for one in every_setting(*sources) if one.variable == name)
        assert (found.value, found.origin) == expected


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.env"
    file.write_text(f"TOPICBERG_BUCKET=of-the-file\nTOPICBERG_ALERT_SMTP__PASSWORD={SECRET}\n")
    monkeypatch.setenv("TOPICBERG_ENV_FILE", str(file))
    monkeypatch.setenv("TOPICBERG_REGION", "")
    shown = CliRunner().invoke(app, ["settings", "--changed", "--json"])
    assert shown.exit_code == 0, shown.output
    values = {one["variable"]: one["value"] for one in json.loads(shown.output)}
    assert (values["TOPICBERG_BUCKET"], values["TOPICBERG_ALERT_SMTP"]) == ("of-the-file", HIDDEN)
    assert SECRET not in shown.output
    monkeypatch.setenv("COLUMNS", "160")
    table = CliRunner().invoke(app, ["settings", "bucket"]).output
    assert "AWS" in table
    assert "TOPICBERG_BUCKET" in table
    assert ".env" in table
    assert "TOPICBERG_ALERT" not in table


def test_settings_command_shows_the_choice_of_the_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    for name, value in (("DEPLOYMENT", "cloud"), ("STATE_DIR", str(tmp_path)), ("PREFIX", "older")):
        monkeypatch.setenv(f"TOPICBERG_{name}", value)
    with mock_aws():
        boto3.client("ssm", region_name="us-east-1").put_parameter(
            Name=deployment_parameter("older"),
            Value=json.dumps({DEPLOYED_LINK: False}),
            Type="String",
        )
        (shown,) = json.loads(CliRunner().invoke(app, ["settings", "linked", "--json"]).output)
    assert (shown["value"], shown["origin"]) == ("False", "topicberg deploy")
