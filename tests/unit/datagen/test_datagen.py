"""Records of the kinds, their encoding, the pace, and the status of a generator that ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicberg.datagen import kind_names, record_generator
from topicberg.errors import TopicbergError
from topicberg.settings import Settings, settings
from topicberg_local.datagen import runner
from topicberg_local.datagen.producer import Pace, avro_encoder, random_of
from topicberg_local.datagen.runner import stop, stop_all
from topicberg_local.datagen.status import (
    DatagenStatus,
    process_of,
    read_status,
    status_file,
    write_status,
)

SCHEMA = (settings().schemas_dir / "stock_trades.avsc").read_text()


def test_kinds_are_functions_of_the_project() -> None:
    assert kind_names() == ["skyone", "stock_trades", "sunset", "users"]
    with pytest.raises(TopicbergError, match="no generator kind 'nope'"):
        record_generator("nope")


def test_the_seed_and_the_run_decide_the_records() -> None:
    def first(seed: int, generation: int) -> list[dict[str, object]]:
        return list(islice(record_generator("stock_trades")(random_of(seed, generation), seed), 50))

    assert first(1, 0) == first(1, 0)
    assert first(1, 0) != first(2, 0)
    assert first(1, 0) != first(1, 1), "a generator that is started again must not repeat itself"


def test_a_record_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(TopicbergError, match="does not fit its schema"):
        avro_encoder(SCHEMA, 1)({"side": "BUY"})


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(0.01, 200_000), st.lists(st.floats(0.0, 0.09), max_size=200))
def test_the_pace_is_kept_without_bursts(rate: float, waits: list[float]) -> None:
    clock = Clock()
    pace, sent = Pace(rate, clock), 0
    for wait in waits:
        clock.now += wait
        due = pace.allowed()
        assert due <= 1 + rate * 0.1
        sent += due
        assert sent <= clock.now * rate + 1e-6
    assert sent >= clock.now * rate - 1 - 1e-6 * rate


def test_a_stall_is_not_followed_by_a_burst() -> None:
    clock = Clock()
    pace, unlimited = Pace(1000, clock), Pace(0)
    clock.now = 60.0
    assert (pace.allowed(), pace.allowed()) == (100, 0)
    assert unlimited.allowed() > unlimited.pause() == 0


# --- status ---


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


def running(pid: int, started: float) -> DatagenStatus:
    return DatagenStatus(
        topic="stock_trades",
        kind="stock_trades",
        rate=10,
        count=None,
        seed=1,
        generation=0,
        first_iteration=0,
        state="running",
        pid=pid,
        pid_started=started,
        started_at=time.time(),
        updated_at=time.time(),
    )


def test_a_dead_generator_was_killed(config: Settings) -> None:
    assert read_status(config, "stock_trades") is None
    write_status(config, running(2**22 + 1, 0.0))
    assert read_status(config, "stock_trades").state == "killed"


def test_reused_pid_of_another_process_is_not_ended(config: Settings) -> None:
    """After a reboot the pid of the file may be anybody's: here it is this test's."""
    write_status(config, running(os.getpid(), psutil.Process().create_time() - 1000))
    assert read_status(config, "stock_trades").state == "killed"
    with pytest.raises(TopicbergError, match="no generator of stock_trades is running"):
        stop(config, "stock_trades")


def test_a_damaged_file_is_named(config: Settings) -> None:
    path = status_file(config, "stock_trades")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(TopicbergError, match=r"stock_trades\.json is damaged"):
        read_status(config, "stock_trades")


@pytest.fixture
def generator(config: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """A process that the status of a generator names."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_status(config, running(process.pid, psutil.Process(process.pid).create_time()))
    yield process
    process.kill()
    process.wait()


def test_generator_that_ends_before_the_signal_is_stopped(
    config: Settings, generator: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(status: DatagenStatus) -> psutil.Process | None:
        found = process_of(status)
        generator.kill()
        generator.wait()
        return found

    monkeypatch.setattr(runner, "process_of", ends)
    assert stop(config, "stock_trades").state == "killed"


def test_damaged_status_of_one_generator_lets_the_others_end(
    config: Settings, generator: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    status_file(config, "another").write_text("{")
    assert [status.topic for status in stop_all(config)] == ["stock_trades"]
    assert not psutil.pid_exists(generator.pid)
    assert "another.json is damaged" in caplog.text
