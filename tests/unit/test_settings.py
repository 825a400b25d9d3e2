"""Every invalid setting is one line that names its variable, wherever it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from topicberg.alerts.settings import alert_settings
from topicberg.endpoints.cloud import connect
from topicberg.errors import TopicbergError
from topicberg.logins import from_environment
from topicberg.logins.kafka import KafkaSettings
from topicberg.settings import Settings, emr_settings
from topicberg_local import python_services
from topicberg_local.python_services import alert_environment


@pytest.mark.parametrize(
    ("name", "value", "found", "expected"),
    [
        ("BUCKET", "b", "'b'", "String should match pattern"),
        ("DEPLOYMENT", "prod", "'prod'", "Input should be 'local' or 'cloud'"),
        ("ENGINE_WORKERS", "many", "'many'", "Input should be a valid integer"),
        ("PORTS", "9092", "9092", "Input should be a valid dictionary"),
        ("PORTS", "kafka=9092", "'kafka=9092'", "Input should be a JSON object"),
        ("PORTS", '{"kafka": "x"}', "'x'", "Input should be a valid integer"),
    ],
)
def test_settings_name_the_invalid_variable(
    name: str, value: str, found: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TOPICBERG_{name}", value)
    with pytest.raises(TopicbergError) as caught:
        Settings()
    assert caught.value.message.startswith(f"invalid setting: TOPICBERG_{name}")
    assert f": {expected}" in caught.value.message
    assert f"(found '{'x' if '{' in value else value}')".replace("'9092'", "9092") in str(
        caught.value
    )
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert "in the environment or in" in caught.value.hint


def test_settings_name_each_invalid_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_BUCKET", "b")
    monkeypatch.setenv("TOPICBERG_TABLEFLOW", "x")
    with pytest.raises(TopicbergError) as caught:
        Settings()
    lines = caught.value.message.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [
        "invalid settings",
        "TOPICBERG_TABLEFLOW",
        "TOPICBERG_BUCKET",
    ]


@pytest.mark.parametrize(
    ("read", "variable"),
    [
        (alert_settings, "ALERT_SMTP__PORT"),
        (lambda: from_environment(KafkaSettings, "Kafka", "docs"), "KAFKA_EXTENSIONS"),
        (lambda: from_environment(KafkaSettings, "Kafka", "docs"), "KAFKA_OAUTH__TOKEN_URI"),
        (lambda: connect(Settings(deployment="cloud")), "S3_ENDPOINT"),
        (lambda: connect(Settings(deployment="cloud")), "CATALOG__URI"),
        (emr_settings, "EMR_JOBS__APPLICATION_ID"),
    ],
)
def test_other_settings_name_the_variable_and_no_value(
    read: Callable[[], object], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TOPICBERG_{variable}", "S3CRET")
    with pytest.raises(TopicbergError, match=f"TOPICBERG_{variable}") as caught:
        read()
    assert "s3cret" not in str(caught.value).lower()


def test_group_is_read_from_its_fields_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_ALERT_SMTP__HOST", "mail")
    monkeypatch.setenv("TOPICBERG_ALERT_SMTP__PASSWORD", "s3cret")
    fields = alert_settings()
    assert (fields.smtp.host, fields.smtp.port) == ("mail", 587)
    passed_on = alert_environment()["TOPICBERG_ALERT_SMTP"]
    assert json.loads(passed_on) == {"host": "mail", "password": "s3cret"}
    for name in ("HOST", "PASSWORD"):
        monkeypatch.delenv(f"TOPICBERG_ALERT_SMTP__{name}")
    monkeypatch.setenv("TOPICBERG_ALERT_SMTP", passed_on)
    assert alert_settings().smtp == fields.smtp


def test_services_of_the_stack_have_the_settings_of_who_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"tags": {"team": "data"}, "emr": {"max_vcpu": 8}, "engine_group": "a"}
    config = Settings.model_validate(given)
    context: Any = SimpleNamespace(config=config)
    for name, value in python_services._settings(context).items():
        monkeypatch.setenv(name, value)
    assert Settings() == config
