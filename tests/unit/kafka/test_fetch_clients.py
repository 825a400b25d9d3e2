"""Which client of Kafka fills the arrays."""

from __future__ import annotations

from typing import Any

import pytest

from topicberg.formats.columnar.program import NotCoveredError
from topicberg.kafka import fetch, librdkafka


class Client:
    """Stands for the Python client."""

    def __init__(self, *_: Any) -> None:
        pass


def test_without_librdkafka_the_python_client_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise NotCoveredError("confluent-kafka is installed without librdkafka")

    for module in (fetch, librdkafka):
        monkeypatch.setattr(module, "library", missing)
    monkeypatch.setattr(fetch, "_ClientFetcher", Client)
    monkeypatch.setattr(fetch, "_warned", set())
    librdkafka.compile_gather()
    for _ in range(2):
        assert isinstance(fetch.fetcher({}, "orders", {0: (0, 1)}), Client)
    assert caplog.text.count("is installed without librdkafka") == 1
