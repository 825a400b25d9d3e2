"""A disk, database or service that cannot be used is one message at the command line."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from topicberg.cli import run
from topicberg.settings import Settings, settings


@pytest.fixture
def shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], None]], str]:
    """Return what the command line shows of a command that fails."""
    monkeypatch.setattr(sys, "argv", ["topicberg"])

    def show(command: Callable[[], None]) -> str:
        with pytest.raises(SystemExit) as ended:
            run(command)
        assert ended.value.code == 2
        return capsys.readouterr().err

    return show


@pytest.fixture
def database(new_project: Settings) -> Path:
    path = new_project.state_dir / "dagster" / "schedules" / "schedules.db"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"garbage" * 1000)
    return path


def test_damaged_database_is_named(shown: Callable[..., str], database: Path) -> None:
    def command() -> None:
        try:
            sqlite3.connect(database).execute("SELECT 1 FROM ticks")
        except sqlite3.DatabaseError as error:
            raise RuntimeError("of a library") from error

    text = shown(command)
    assert f"Dagster: it cannot use its database {database}: file is not a database" in text
    assert f"move {database} away" in text
    assert "Traceback" not in text


def test_database_that_is_well_again_quotes_its_error(shown: Callable[..., str]) -> None:
    def command() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    assert "error: Dagster: SQLite: disk I/O error" in shown(command)


def test_full_disk_below_another_error_is_named(
    shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/state/x.json")
        except OSError as error:
            raise RuntimeError("of a library") from error

    assert "/state/x.json cannot be written: No space left on device" in shown(command)
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    folder = settings().state_dir
    assert f"x.json cannot be written: its disk is full: 0 MB are left in {folder}" in shown(
        command
    )


def test_service_that_is_away_is_no_traceback(shown: Callable[..., str]) -> None:
    """A server that takes connections, and never answers: as one that a signal stopped."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        text = shown(lambda: requests.get(address, timeout=0.1) and None)
    assert text.startswith("error: topicberg: a service does not answer: ")
    assert "see whether every service runs" in text


def test_mistake_in_what_handles_a_failure_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["topicberg"])

    def command() -> None:
        try:
            raise requests.ConnectionError("Connection refused")
        except requests.ConnectionError:
            raise TypeError("of topicberg")  # noqa: B904

    with pytest.raises(TypeError):
        run(command)
