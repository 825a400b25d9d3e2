"""The dashboard for Grafana: its queries name metrics and labels that the engine has."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from repository import PROJECT_ROOT

from topicberg.tableflow.service.metrics import StatusCollector
from topicberg.tableflow.service.status import COUNTERS, OpenTransaction, TopicStatus

DASHBOARD = json.loads((PROJECT_ROOT / "docs/production/grafana-dashboard.json").read_text())
PANELS: list[Any] = DASHBOARD["panels"]
FUNCTIONS = {"sum", "max", "by", "rate", "increase", "label_values"}


def samples() -> dict[str, set[str]]:
    """Name of every sample → its labels."""
    status = TopicStatus(
        topic="orders", reader="process", lag={0: 1}, committed_at_ms=1,
        open_transactions={0: OpenTransaction(offset=1, since_ms=0)},
    )  # fmt: skip
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: [status], "one"))
    found: dict[str, set[str]] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    variables = DASHBOARD["templating"]["list"]
    return [*found, *(one["query"]["query"] for one in variables if one["type"] == "query")]


@pytest.mark.parametrize("query", queries())
def test_query_names_metrics_and_labels_that_exist(query: str) -> None:
    known = samples()
    text = re.sub(r'"[^"]*"|\[[^]]*\]', "", query)
    names = re.findall(r"[a-z_]{2,}", text)
    metrics = {name for name in names if name.startswith("topicberg_")}
    assert metrics
    assert metrics <= known.keys()
    labels = {*names} - metrics - FUNCTIONS
    for metric in metrics:
        assert labels <= known[metric], query


def test_every_counter_has_a_panel() -> None:
    text = " ".join(queries())
    assert [name for name in COUNTERS if f"_{name}_total" not in text] == []


def test_gauges_of_a_status_have_its_values() -> None:
    status = TopicStatus(
        topic="orders", phase="RUNNING", lag={0: 3, 1: 0}, committed_at_ms=1, data_files=4,
        open_transactions={0: OpenTransaction(offset=7, since_ms=0)},
    )  # fmt: skip
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: [status]))

    def value(name: str, **labels: str) -> float | None:
        labels["topic"] = "orders"
        return registry.get_sample_value(f"topicberg_tableflow_{name}", labels)

    assert (value("consumer_lag_records", partition="0"), value("data_files")) == (3, 4)
    assert [value("phase", phase=phase) for phase in ("RUNNING", "FAILED", "SUSPENDED")] == [
        1,
        0,
        0,
    ]
    assert (value("open_transaction_seconds", partition="0") or 0) > 10**9
    assert (value("commit_lag_seconds") or 0) > 10**9
