"""Decodes damaged records in a process of its own, which a byte too far ends; see :mod:`guards`.

``TOPICBERG_TEST_FUZZ=10000000`` decodes ten million records, ``python FILE FORMAT SEED RECORDS``,
with this folder in ``PYTHONPATH``, repeats the run of a module.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECORDS = int(os.environ.get("TOPICBERG_TEST_FUZZ", "20000"))
_A_PROCESS = 1_000_000
_SUPPORT = Path(__file__).parent


def millions(test: Any) -> Any:
    """Mark a test that decodes for minutes."""
    is_wanted = "TOPICBERG_TEST_FUZZ" in os.environ
    skip = pytest.mark.skipif(not is_wanted, reason="it decodes for minutes")
    return pytest.mark.slow(pytest.mark.timeout(0)(skip(test)))


def fuzz_some(file: str, format_: str) -> None:
    """Let the module of a file decode some records in another process."""
    _fuzz(file, format_, 0, min(RECORDS, 2_000))


def fuzz_all(file: str, format_: str) -> None:
    """Let the module of a file decode all records that are asked for, a million a process."""
    for number, _ in enumerate(range(0, RECORDS, _A_PROCESS)):
        _fuzz(file, format_, 10_000 * (number + 1), _A_PROCESS)


def _fuzz(file: str, format_: str, seed: int, records: int) -> None:
    done = subprocess.run(
        [sys.executable, file, format_, str(seed), str(records)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(_SUPPORT), *sys.path, os.environ["PYTHONPATH"]])},
    )
    assert done.returncode == 0, f"seed {seed}: {done.returncode}\n{done.stdout}\n{done.stderr}"


def main(decoders: dict[str, tuple[int, Callable[[int, random.Random, int], int]]]) -> None:
    """Do what the command says.

    :param decoders: by format, how many different programs the records are divided among, at most,
        and what decodes some records of the program of a number, and returns how many it accepted
    """
    seed, records = int(sys.argv[2]), int(sys.argv[3])
    programs, decode = decoders[sys.argv[1]]
    accepted, count = 0, max(500, records // programs)
    for number in range(seed, seed + records // count):
        print(f"seed {number}", flush=True)  # noqa: T201  the last one of a process that ended
        accepted += decode(number, random.Random(number), count)
    print(f"{accepted} accepted")  # noqa: T201
    assert accepted > records // 100
