"""Every invalid setting is one line that names its variable, wherever it is read."""

from __future__ import annotations

import pytest

from topicberg.alerts.settings import alert_settings
from topicberg.endpoints.cloud import connect
from topicberg.errors import TopicbergError
from topicberg.logins import from_environment
from topicberg.logins.kafka import KafkaSettings
from topicberg.settings import Settings
from topicberg.settings.emr import emr_settings


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
    assert caught.value.message.startswith(f"invalid setting: TOPICBERG_{name}: {expected}")
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


def test_other_settings_name_the_variable_and_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_ALERT_SMTP__PORT", "s3cret")
    monkeypatch.setenv("TOPICBERG_KAFKA_EXTENSIONS", "s3cret")
    monkeypatch.setenv("TOPICBERG_S3_ENDPOINT", "s3cret")
    monkeypatch.setenv("TOPICBERG_EMR_JOBS__APPLICATION_ID", "S3CRET!")
    for read, variable in (
        (alert_settings, "TOPICBERG_ALERT_SMTP__PORT"),
        (lambda: from_environment(KafkaSettings, "Kafka", "docs"), "TOPICBERG_KAFKA_EXTENSIONS"),
        (lambda: connect(Settings(deployment="cloud")), "TOPICBERG_S3_ENDPOINT"),
        (emr_settings, "TOPICBERG_EMR_JOBS__APPLICATION_ID"),
    ):
        with pytest.raises(TopicbergError, match=variable) as caught:
            read()
        assert "s3cret" not in str(caught.value).lower()
