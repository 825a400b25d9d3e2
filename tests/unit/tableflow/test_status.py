"""The snapshots that engines report, as the sensor of a fleet reads them every few seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

from topicberg.settings import Settings
from topicberg.tableflow.service.status import (
    TopicStatus,
    remove_status,
    reported_snapshot,
    status_file,
    write_status,
)


def test_reported_snapshot_is_that_of_the_last_status(tmp_path: Path) -> None:
    config = Settings(state_dir=tmp_path)
    assert reported_snapshot(config, "orders") is None
    for snapshot in range(5):
        write_status(config, TopicStatus(topic="orders", snapshot_id=snapshot))
        assert reported_snapshot(config, "orders") == snapshot
        time.sleep(0.02)  # file systems have times of a few milliseconds
    remove_status(config, "orders")
    assert reported_snapshot(config, "orders") is None


def test_reported_snapshot_of_a_damaged_status_is_none(tmp_path: Path) -> None:
    config = Settings(state_dir=tmp_path)
    write_status(config, TopicStatus(topic="orders", snapshot_id=1))
    status_file(config, "orders").write_text("{")
    assert reported_snapshot(config, "orders") is None


def test_reported_snapshot_of_an_unchanged_status_is_kept(tmp_path: Path) -> None:
    """A tick costs what changed: of the other statuses only the state of the file is read."""
    config = Settings(state_dir=tmp_path)
    write_status(config, TopicStatus(topic="orders", snapshot_id=1))
    assert reported_snapshot(config, "orders") == 1
    file = status_file(config, "orders")
    before = file.stat()
    file.write_text(file.read_text().replace(":1", ":2"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reported_snapshot(config, "orders") == 1
