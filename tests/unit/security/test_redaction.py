"""A secret that the process knows is in no error, log line, alert or verdict."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from topicberg.alerts.alert import Alert
from topicberg.clients.secrets import ApiKey
from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.errors import TopicbergError, safe
from topicberg.orchestration.assets.tables import retried
from topicberg.security import redaction
from topicberg.security.redaction import SafeFormatter
from topicberg_local.service import Credentials

SECRET = "correct-horse-battery"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", set())


def endpoints(**changes: object) -> Endpoints:
    return Endpoints.model_validate(
        {
            "kafka_bootstrap": "127.0.0.1:9",
            "schema_registry": "http://127.0.0.1:9",
            "iceberg_rest": "http://127.0.0.1:9",
            "spark_connect": "sc://localhost:9",
            "snowflake": SnowflakeEndpoint(account="a", user="u"),
            **changes,
        }
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"s3_secret_key": SECRET},
        {"iceberg_rest_token": SECRET},
        {"spark_connect": f"sc://localhost:9/;token={SECRET}"},
        {"kafka_login": {"auth": "plain", "api_key": "someone", "api_secret": SECRET}},
        {"registry_login": {"auth": "basic", "api_key": "someone", "api_secret": SECRET}},
        {"iceberg_login": {"auth": "token", "token": SECRET}},
        {"snowflake": {"account": "a", "user": "u", "password": SECRET}},
        {"confluent_api_secret": SECRET},
    ],
)
def test_redact_secret_of_endpoints(changes: dict[str, object]) -> None:
    assert SECRET in redaction.redact(SECRET)
    endpoints(**changes)
    assert SECRET not in redaction.redact(f"401 for key {SECRET}.")


def test_redact_names_of_keys_stay() -> None:
    endpoints(s3_access_key="topicberg", aws_access_key="topicberg")
    Credentials.generate()
    assert redaction.redact("user topicberg, key LOCALTOPICBERG00") == (
        "user topicberg, key LOCALTOPICBERG00"
    )


@pytest.mark.parametrize(
    ("variable", "is_secret"),
    [
        ("AWS_SECRET_ACCESS_KEY", True),
        ("AWS_SESSION_TOKEN", True),
        ("DAGSTER_POSTGRES_PASSWORD", True),
        ("OPENAI_API_KEY", True),
        ("SPARK_CONNECT_AUTHENTICATE_TOKEN", True),
        ("MY_PRIVATE_KEY", True),
        ("my_password", True),
        ("AWS_ACCESS_KEY_ID", False),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", False),
        ("HOME", False),
    ],
)
def test_redact_variable_of_environment(
    variable: str, is_secret: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, SECRET)
    assert (SECRET not in redaction.redact(f"it said {SECRET}")) == is_secret


def test_redact_key_beside_its_secret_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_KAFKA_API_KEY", "ABCDEFGHIJ")
    monkeypatch.setenv("TOPICBERG_KAFKA_API_SECRET", SECRET)
    assert redaction.redact(f"ABCDEFGHIJ {SECRET}") == "ABCDEFGHIJ [redacted]"


@given(st.text(max_size=20), st.text(max_size=20))
def test_redact_any_text_around_a_secret(before: str, after: str) -> None:
    redaction.remember([SECRET])
    assert SECRET not in redaction.redact(before + SECRET + after)


def test_redact_other_forms_of_a_secret() -> None:
    redaction.remember(["pass/word+with=signs", "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END"])
    found = redaction.redact("?p=pass%2Fword%2Bwith%3Dsigns and MIIEvQIBADANBg")
    assert found == "?p=[redacted] and [redacted]"
    assert redaction.redact("sc://h/;token=unknown;x=1") == "sc://h/;token=[redacted];x=1"


def test_redact_short_text_stays() -> None:
    redaction.remember(["a", "", "topic"])
    assert redaction.redact("a topic") == "a topic"


def test_error_has_no_secret_and_no_control() -> None:
    ApiKey("id", SecretStr(SECRET))
    error = TopicbergError(f"\x1b[2J{SECRET}", hint=f"not {SECRET}\n  really")
    assert str(error) == "\\x1b[2J[redacted]\n  → not [redacted]\n  really"
    assert error.args == ("\\x1b[2J[redacted]",)


def test_log_line_has_no_secret() -> None:
    redaction.remember([SECRET])
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        found = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (SECRET,), found)
    assert SECRET not in SafeFormatter().format(record)


def test_alert_is_lines_without_secrets() -> None:
    redaction.remember([SECRET])
    alert = Alert(
        key="k",
        title="a\nb",
        what=f"line\n\x1b[1mmend: run this {SECRET}",
        severity="error",
        since=datetime.now(UTC),
        link="http://127.0.0.1:3000",
    )
    assert (alert.title, alert.what) == ("a b", "line \\x1b[1mmend: run this [redacted]")


def test_failure_of_a_step_has_no_secret() -> None:
    redaction.remember([SECRET])

    @retried()
    def step() -> None:
        raise RuntimeError("outer") from ValueError(f"inner {SECRET}")

    with pytest.raises(TopicbergError) as raised:
        step()
    expected = "RuntimeError: outer\ncaused by ValueError: inner [redacted]"
    assert str(raised.value) == expected
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_failure_without_secret_is_itself() -> None:
    error = RuntimeError("field price: value 1\tis too large\nsecond line")
    assert safe(error) is error
