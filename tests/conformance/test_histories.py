"""Random histories of topics: schemas evolve, old producers go on, malformed and foreign records.

A few by default. Many, on one stack::

    TOPICBERG_TEST_SEED=0 TOPICBERG_TEST_HISTORIES=500 pytest -m slow -s -k many \\
        tests/conformance/test_histories.py

``TOPICBERG_TEST_MINUTES=18`` begins no further history after so many minutes; the tally says with
which seed to continue. It has the histories, records, wrong values, missing rows and stuck topics.
Whatever fails is written to a file with its schemas, its records, what they must become, and what
was found; ``TOPICBERG_TEST_DUMPS`` is the folder (a temporary one by default).
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from history import FORMATS, History, Result, check_dead_letters, dead_letters, dump

from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg.tableflow.decode.sessions import Sessions
from topicberg.tableflow.service.engine import spark_sessions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(40_000)]

HISTORIES = int(os.environ.get("TOPICBERG_TEST_HISTORIES", 500))
SEED = int(os.environ.get("TOPICBERG_TEST_SEED", 0))
MINUTES = float(os.environ.get("TOPICBERG_TEST_MINUTES", 600))
FEW = len(FORMATS)
AT_ONCE = 3
ROUNDS = 2


def run_many(
    seeds: range, stack: Endpoints, folder: Path, *, rounds: int, sessions: Sessions
) -> list[Result]:
    """Run histories, a few at once. Each is read twice or so, whatever its number of schemas and
    records: a batch costs much more than its records. They share Spark's sessions, as the topics of
    an engine do."""
    # Imported before any thread does: of two at once, one finds parts of it missing.
    import pyspark.sql.connect.session  # noqa: F401

    end = time.monotonic() + MINUTES * 60

    def run(seed: int) -> Result | None:
        if time.monotonic() > end:
            return None
        result = History(seed, stack, settings(), stages=2, rounds=rounds, sessions=sessions).run()
        if result.problems:
            where = dump(result, folder)
            print(f"{result.title}: {result.problems[0]}\n{where}", flush=True)  # noqa: T201
        return result

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = [result for result in pool.map(run, seeds) if result]
    logged = [result for result in results if result.logs and not result.problems]
    letters = dead_letters(stack) if any(result.malformed for result in logged) else {}
    for result in logged:
        check_dead_letters(result, letters.get(result.topic, []))
        if result.problems:
            result.wrong = len(result.problems)
            dump(result, folder)
    return results


def report(results: list[Result]) -> str:
    """Return the tally, and the first problem of each history that has one."""
    first, last = results[0].seed, max(one.seed for one in results)
    lines = [
        f"{len(results)} histories (seeds {first} to {last}, continue with {last + 1}), "
        f"{sum(one.versions for one in results)} versions, "
        f"{sum(one.records for one in results)} records, "
        f"{sum(len(one.malformed) for one in results)} of them malformed: "
        f"{sum(one.wrong for one in results)} wrong values, "
        f"{sum(one.missing for one in results)} missing rows, "
        f"{sum(one.is_stuck for one in results)} stuck topics"
    ]
    lines += [f"{one.title}: {one.problems[0]}" for one in results if one.problems]
    return "\n".join(lines)


def test_few_histories_end_with_right_tables(stack: Endpoints, tmp_path: Path) -> None:
    results = run_many(
        range(SEED, SEED + FEW),
        stack,
        tmp_path,
        rounds=1,
        sessions=spark_sessions(stack, settings()),
    )
    assert not any(result.problems for result in results), report(results)


@pytest.mark.slow
def test_many_histories_end_with_right_tables(stack: Endpoints, tmp_path: Path) -> None:
    folder = Path(os.environ.get("TOPICBERG_TEST_DUMPS", tmp_path))
    seeds, sessions = range(SEED, SEED + HISTORIES), spark_sessions(stack, settings())
    results = run_many(seeds, stack, folder, rounds=ROUNDS, sessions=sessions)
    print(report(results))  # noqa: T201  the figures
    assert not any(result.problems for result in results), report(results)
