"""Who waits for turns waits for those of all processes, also killed ones, and for no later one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

import pytest

from topicberg.settings import Settings
from topicberg.tableflow.service.turns import turn, wait_for_turns

TABLE = "lkc.orders"


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


def test_nothing_to_wait_for(config: Settings) -> None:
    assert wait_for_turns(config, TABLE, 0)
    with turn(config, TABLE):
        assert wait_for_turns(config, "lkc.payments", 0)
    assert wait_for_turns(config, TABLE, 0)


def test_turns_of_threads_run_beside_each_other(config: Settings) -> None:
    with turn(config, TABLE), turn(config, TABLE):
        assert not wait_for_turns(config, TABLE, 0)
    assert wait_for_turns(config, TABLE, 0)


def test_turn_that_begins_later_is_not_waited_for(config: Settings) -> None:
    waited, begun, end = Event(), Event(), Event()

    def wait() -> None:
        if wait_for_turns(config, TABLE, 30):
            waited.set()

    def later() -> None:
        with turn(config, TABLE):
            begun.set()
            end.wait(30)

    threads = [Thread(target=wait), Thread(target=later)]
    with turn(config, TABLE):
        threads[0].start()
        while (config.state_dir / "tableflow" / "turns" / f"{TABLE}.lock").exists():
            time.sleep(0.01)
        threads[1].start()
        assert begun.wait(30)
        assert not waited.is_set()
    assert waited.wait(30)
    end.set()
    for thread in threads:
        thread.join()


CODE = """
import sys, time
from pathlib import Path
from topicberg.settings import Settings
from topicberg.tableflow.service.turns import turn
with turn(Settings(state_dir=Path(sys.argv[1])), sys.argv[2]):
    print("begun", flush=True)
    time.sleep(60)
"""


def test_turn_of_a_killed_process_has_ended(config: Settings) -> None:
    words = [sys.executable, "-c", CODE, str(config.state_dir), TABLE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert not wait_for_turns(config, TABLE, 0)
        process.kill()
        assert wait_for_turns(config, TABLE, 10)


def test_turn_without_a_place_for_its_file_runs(config: Settings) -> None:
    (config.state_dir / "tableflow").write_text("not a folder")
    with turn(config, TABLE):
        pass
