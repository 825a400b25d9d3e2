"""Random histories of topics: schemas evolve, old producers go on, malformed and foreign records.

A few by default; ``TOPICBERG_TEST_HISTORIES=500 pytest -m slow tests/conformance`` for that many,
and ``TOPICBERG_TEST_SEED=1234`` to begin with another one. Whatever fails is written to a file
with its schemas, its records, what they must become, and what was found.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from history import FORMATS, History, Result, check_dead_letters, dead_letters, dump

from topicberg.endpoints import Endpoints
from topicberg.settings import settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(40_000)]

HISTORIES = int(os.environ.get("TOPICBERG_TEST_HISTORIES", 500))
SEED = int(os.environ.get("TOPICBERG_TEST_SEED", 0))
FEW = len(FORMATS)
AT_ONCE = 2


def run(seed: int, stack: Endpoints, folder: Path, *, stages: int = 4) -> Result:
    result = History(seed, stack, settings(), stages=stages).run()
    if result.problems:
        print(f"{result.title}: {result.problems[0]}\n{dump(result, folder)}", flush=True)  # noqa: T201
    return result


def run_many(seeds: range, stack: Endpoints, folder: Path, *, stages: int = 4) -> list[Result]:
    # Imported before any thread does: of two at once, one finds parts of it missing.
    import pyspark.sql.connect.session  # noqa: F401

    one = partial(run, stack=stack, folder=folder, stages=stages)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(one, seeds))
    logged = [result for result in results if result.logs and not result.problems]
    letters = dead_letters(stack) if any(result.malformed for result in logged) else {}
    for result in logged:
        check_dead_letters(result, letters.get(result.topic, []))
        if result.problems:
            dump(result, folder)
    return results


def report(results: list[Result]) -> str:
    lines = [
        f"{len(results)} histories from seed {results[0].seed}, "
        f"{sum(one.versions for one in results)} versions, "
        f"{sum(one.records for one in results)} records, "
        f"{sum(len(one.malformed) for one in results)} of them malformed"
    ]
    lines += [f"{one.title}: {one.problems[0]}" for one in results if one.problems]
    return "\n".join(lines)


def test_few_histories_end_with_right_tables(stack: Endpoints, tmp_path: Path) -> None:
    results = run_many(range(SEED, SEED + FEW), stack, tmp_path, stages=2)
    assert not any(result.problems for result in results), report(results)


@pytest.mark.slow
def test_many_histories_end_with_right_tables(stack: Endpoints, tmp_path: Path) -> None:
    results = run_many(range(SEED, SEED + HISTORIES), stack, tmp_path)
    print(report(results))  # noqa: T201  the figures
    assert not any(result.problems for result in results), report(results)
