"""Which tables the engine's service maintains, and when."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clocks import Clock

from topicberg.settings import Settings
from topicberg.tableflow.service import service
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.topics import load_topic


def test_keeper_inspects_tables_that_change_most_often(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path
) -> None:
    config = Settings(state_dir=tmp_path)
    nothing = cast("Any", None)
    topic = Ingestion(load_topic("stock_trades", config), nothing, config, nothing)
    report = SimpleNamespace(changed=False)
    runs: list[float] = []

    def maintain(*_: object) -> Any:
        runs.append(clock.now)
        return report

    monkeypatch.setattr(service, "maintain", maintain)
    one = service.MaintenanceScheduler(nothing, config, nothing, threading.Event())

    def minutes(number: int) -> list[float]:
        """Return in which of the next minutes the table was maintained."""
        runs.clear()
        began = clock.now
        for _ in range(number):
            clock.now += 60.0
            one._maintain(topic)
        return [(at - began) / 60 for at in runs]

    assert minutes(40) == [1, 16, 31]
    topic.report.status = topic.report.status.model_copy(update={"snapshot_id": 7})
    assert minutes(200) == [1, 16, 31, 46, 106, 166]
    report.changed = True
    topic.report.status = topic.report.status.model_copy(update={"snapshot_id": 8})
    assert minutes(3) == [1, 2, 3]
    report.changed = False
    assert minutes(20) == [1, 16]


def test_keeper_maintains_several_tables_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two tables that wait for each other are both maintained, and each of all tables once."""
    config = Settings(state_dir=tmp_path, engine_workers=8)
    nothing = cast("Any", None)
    spec = load_topic("stock_trades", config)
    specs = [spec.model_copy(update={"name": f"topic_{number}"}) for number in range(6)]
    topics = {each.name: Ingestion(each, nothing, config, nothing) for each in specs}
    pair, done, ended = threading.Barrier(2, timeout=30), list[str](), threading.Event()

    def maintain(spec: Any, *_: object) -> Any:
        pair.wait()
        done.append(spec.name)
        if len(done) == len(topics):
            ended.set()
        return SimpleNamespace(changed=False)

    monkeypatch.setattr(service, "maintain", maintain)
    monkeypatch.setattr(service, "PAUSE_SECONDS", 0.0)
    one = service.MaintenanceScheduler(
        nothing, config, cast("Any", SimpleNamespace(topics=topics)), ended
    )
    one.run()
    assert sorted(done) == sorted(topics)
