"""A misspelled setting gets a warning; those of the documentation are all known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from repository import PROJECT_ROOT

from topicberg import cli
from topicberg.cli import env as commands
from topicberg.cli import settings as variables

_NAME = re.compile(r"^(?:export )?(TOPICBERG_[A-Z0-9_]+)=", re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TOPICBERG_SNOWFLAKE_CATALGO", "did you mean TOPICBERG_SNOWFLAKE_CATALOG?"),
        ("TOPICBERG_KAFKA_BOOSTRAP", "did you mean TOPICBERG_KAFKA_BOOTSTRAP?"),
        ("topicberg_alert_slack_urll", "did you mean TOPICBERG_ALERT_SLACK_URL?"),
        ("TOPICBERG_SCHEMA_REGISTRY_TOKN", "did you mean TOPICBERG_SCHEMA_REGISTRY_TOKEN?"),
        (
            "TOPICBERG_SCHEMA_REGISTRY_TOKEN_URI",
            "did you mean TOPICBERG_SCHEMA_REGISTRY_OAUTH__TOKEN_URI?",
        ),
        ("TOPICBERG_SNOWFLAKE_ROLE_ARN", "did you mean TOPICBERG_IAM__SNOWFLAKE_ROLE_ARN?"),
        ("TOPICBERG_BUCKET_KMS_KEY_ARN", "did you mean TOPICBERG_KMS__BUCKET_KEY_ARN?"),
        ("TOPICBERG_EMR_ROLE_ARN", "did you mean TOPICBERG_IAM__EMR_ROLE_ARN?"),
        ("TOPICBERG_SNOWFLAKE_PROTOCOL", "it has no effect"),
        ("TOPICBERG_QWERTZ", "it has no effect"),
    ],
)
def test_misspelled_setting_is_named(name: str, meant: str) -> None:
    assert variables.problems([name, "PATH"]) == [
        f"{name.upper()} is not a setting of topicberg; {meant}"
    ]


def test_services_of_kubernetes_get_no_warning() -> None:
    ours = ["TOPICBERG_PORT", "TOPICBERG_SERVICE_HOST", "TOPICBERG_SERVICE_PORT_GRPC"]
    assert variables.problems([*ours, "TOPICBERG_ENGINE_PORT_9464_TCP_ADDR"]) == []


def test_settings_of_the_documentation_are_known() -> None:
    pages = [*PROJECT_ROOT.glob("*.md"), *(PROJECT_ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in _NAME.findall(page.read_text())}
    assert len(named) > 20
    assert variables.problems(named) == []


def test_variables_that_the_stack_gives_are_known() -> None:
    exported = set(re.findall(r'"(TOPICBERG_[A-Z_]+)":', Path(commands.__file__).read_text()))
    assert len(exported) > 5
    assert variables.problems(exported) == []


def test_command_warns_of_the_environment_and_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / ".env"
    file.write_text("TOPICBERG_PREFX=shop\n")
    monkeypatch.setenv("TOPICBERG_ENV_FILE", str(file))
    monkeypatch.setenv("TOPICBERG_DEPLOYMNT", "cloud")
    monkeypatch.setattr("sys.argv", ["topicberg", "topics", "list"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    shown = capsys.readouterr().err
    for name in ("PREFIX", "DEPLOYMENT"):
        assert f"did you mean TOPICBERG_{name}?" in shown


def test_aws_variables_of_the_file_get_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / ".env"
    file.write_text("AWS_PROFILE=work\nAWS_REGION=eu-west-1\nAWS_CA_BUNDLE=ca.pem\n")
    monkeypatch.setenv("TOPICBERG_ENV_FILE", str(file))
    for name in ("AWS_PROFILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert variables.without_effect({*variables.in_file()}) == [
        f"AWS_CA_BUNDLE in {file} has no effect; set it in the environment",
        f"AWS_PROFILE in {file} has no effect, except on `topicberg deploy`; set it in the "
        "environment",
    ]
