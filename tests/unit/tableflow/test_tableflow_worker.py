"""What keeps a topic's worker going."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from topicberg.errors import UnreachableError
from topicberg.settings import Settings
from topicberg.tableflow import service
from topicberg.tableflow.status import read_status
from topicberg.topics import load_topic


def test_a_status_that_cannot_be_written_is_written_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = Settings(state_dir=tmp_path)
    topic = load_topic("stock_trades", config)
    worker = service.Worker(topic, cast("Any", None), config)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(service, "write_status", full)
        worker._report(phase="RUNNING")
    assert worker.status.phase == "RUNNING"
    assert read_status(config, topic.name).phase == "PENDING"
    worker._report()
    assert read_status(config, topic.name).phase == "RUNNING"


def test_worker_after_a_change_counts_on(tmp_path: Path) -> None:
    """`topicberg tableflow enable` of a topic that runs: another worker, the same counters."""
    config = Settings(state_dir=tmp_path)
    spec = load_topic("stock_trades", config)
    old = service.Worker(spec, cast("Any", None), config)
    old.run = old._stop_requested.wait  # type: ignore[method-assign, assignment]
    old.start()
    old._report(rows_committed=7, commits=2)
    changed = spec.model_copy(update={"owners": ()})
    workers = {spec.name: old}
    assert service._stop_outdated(workers, {spec.name: spec}, config) == {}
    counters = service._stop_outdated(workers, {spec.name: changed}, config)
    assert workers == {}
    status = service.Worker(changed, cast("Any", None), config, counters[spec.name]).status
    assert (status.rows_committed, status.commits) == (7, 2)
    assert status.error_handling == spec.tableflow.error_handling.mode


def test_unreadable_table_is_not_a_failure_of_delta(tmp_path: Path) -> None:
    """And a topic without Delta looks at nothing."""

    class Silent:
        def table(self) -> None:
            raise UnreachableError("the schema registry does not answer")

    config, silent = Settings(state_dir=tmp_path), cast("Any", Silent())
    topic = load_topic("stock_trades", config)
    for formats in (("ICEBERG",), ("ICEBERG", "DELTA")):
        tableflow = topic.tableflow.model_copy(update={"table_formats": formats})
        spec = topic.model_copy(update={"tableflow": tableflow})
        worker = service.Worker(spec, cast("Any", None), config)
        if "DELTA" in formats:
            with pytest.raises(UnreachableError):
                worker._sync_delta(silent)
        else:
            worker._sync_delta(silent)
        assert not worker.status.failing_table_formats
