"""The snapshot sensor's memory and its decisions, as pure functions.

Sensor events are delivered at least once, runs with one key at most once, and there are no
catch-up ticks. So a tick looks at every snapshot since the cursor, and remembers partitions until a
run that started after they were touched has succeeded:

* ``pending`` partitions wait for the next request: only one request is under way at a time, so a
  burst of snapshots costs one run;
* ``future`` hours have no partition yet and wait until they do;
* a request that failed is repeated with what came meanwhile, a few times; then the next snapshot
  is awaited;
* while a computation takes long, the catalogs do not wait for it: runs that register the table go
  beside it, one at a time, and what is pending stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, Field

MAX_ATTEMPTS = 3
LONG_SECONDS = 20.0
"""A run that computes a partition of usual size is done by then, and registers what waits."""
MAX_RANGES = 10
"""Runs of one request: of scattered partitions the narrowest gaps are computed as well."""

RunState = Literal["active", "succeeded", "failed", "missing"]


class Request(BaseModel):
    """Runs that were requested together for a snapshot; ``ranges``: run key → partitions."""

    snapshot: int
    ranges: dict[str, list[str]]


class Cursor(BaseModel):
    """What a sensor remembers between two ticks."""

    snapshot: int | None = None
    metadata: str | None = Field(default=None, description="the metadata file of the last tick")
    settled: str | None = Field(default=None, description="that catalogs were asked to point to")
    dirty: bool = Field(default=False, description="a state whose catalogs are not refreshed")
    pending: list[str] = Field(default_factory=list)
    future: list[str] = Field(default_factory=list)
    request: Request | None = None
    registration: Request | None = Field(default=None, description="the last one beside a request")
    requests: int = Field(default=0, description="requests so far; makes run keys unique")
    failures: int = Field(default=0, description="requests in a row that failed")

    @staticmethod
    def parse(text: str | None) -> Cursor:
        return Cursor.model_validate_json(text) if text else Cursor()


def settle(cursor: Cursor, states: dict[str, RunState]) -> Cursor:
    """Take note of how the runs of the last request are; ``states``: run key → state.

    A run that is missing was never launched: its partitions are pending again.
    """
    request = cursor.request
    if request is None or any(states[key] == "active" for key in request.ranges):
        return cursor
    undone = [key for key in request.ranges if states[key] != "succeeded"]
    if not undone:
        return cursor.model_copy(update={"request": None, "failures": 0})
    partitions = [partition for key in undone for partition in request.ranges[key]]
    return cursor.model_copy(
        update={
            "request": None,
            "dirty": True,
            "pending": _merged(cursor.pending, partitions),
            "failures": cursor.failures + 1,
        }
    )


def observe(cursor: Cursor, snapshot: int, partitions: Iterable[str]) -> Cursor:
    """Take note of a new snapshot and the partitions that it touched."""
    return cursor.model_copy(
        update={
            "snapshot": snapshot,
            "dirty": True,
            "future": _merged(cursor.future, partitions),
            # After a new snapshot even a request that failed for good is worth another try.
            "failures": min(cursor.failures, MAX_ATTEMPTS - 1),
        }
    )


def observe_metadata(cursor: Cursor, before: Cursor, metadata: str) -> Cursor:
    """Take note of the table's metadata file, after its snapshots.

    Maintenance changes it without a snapshot of ``main``; Glue and Snowflake then point to a file
    that will go one day. A change counts when the next tick still sees it: a batch that the engine
    has staged is published a moment later. Nothing that a request runs changes it: no loop.

    :param before: the cursor of the last tick
    """
    settled = cursor.settled
    if cursor.snapshot != before.snapshot:
        settled = metadata
    elif metadata != settled and metadata == before.metadata:
        cursor, settled = cursor.model_copy(update={"dirty": True}), metadata
    return cursor.model_copy(update={"metadata": metadata, "settled": settled})


def request(cursor: Cursor, existing: Sequence[str], key: str) -> tuple[Cursor, Request | None]:
    """What to run now, if anything.

    :param existing: all partitions that there are, in order; empty: nothing is derived
    :param key: begins the run keys, e.g. the table's name
    """
    places = {partition: place for place, partition in enumerate(existing)}
    ripe = [partition for partition in cursor.future if partition in places]
    cursor = cursor.model_copy(
        update={
            "pending": _merged(cursor.pending, ripe),
            "future": [p for p in cursor.future if p not in places],
        }
    )
    idle = not cursor.dirty and not cursor.pending
    if cursor.request or idle or cursor.snapshot is None or cursor.failures >= MAX_ATTEMPTS:
        return cursor, None
    # A rollback brings an old snapshot back: only the count makes the key one of its own.
    prefix = f"{key}:{cursor.snapshot}:{cursor.requests}"
    ranges = _ranges([places[p] for p in cursor.pending if p in places])
    wanted = Request(
        snapshot=cursor.snapshot,
        ranges={
            f"{prefix}:{existing[first]}..{existing[last]}": list(existing[first : last + 1])
            for first, last in ranges
        }
        or {prefix: []},
    )
    done = {"request": wanted, "requests": cursor.requests + 1, "pending": [], "dirty": False}
    return cursor.model_copy(update=done), wanted


def register(
    cursor: Cursor, states: dict[str, RunState], key: str, computing_seconds: float
) -> tuple[Cursor, Request | None]:
    """Whether to register the table now, beside a computation that takes long.

    :param states: of the last such run, as in :func:`settle`
    :param computing_seconds: for how long the first run of the request has been running
    """
    last, snapshot = cursor.registration, cursor.snapshot
    if cursor.request is None or snapshot is None:
        return cursor.model_copy(update={"registration": None}), None
    computing = any(cursor.request.ranges.values()) and computing_seconds >= LONG_SECONDS
    if not cursor.dirty or not computing:
        return cursor, None
    if last and (last.snapshot == snapshot or "active" in states.values()):
        return cursor, None
    run = f"{key}:{snapshot}:{cursor.requests}:registered"
    wanted = Request(snapshot=snapshot, ranges={run: []})
    return cursor.model_copy(update={"registration": wanted}), wanted


def _ranges(places: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of at most :data:`MAX_RANGES` ranges that hold all places."""
    ranges: list[tuple[int, int]] = []
    for place in sorted(places):
        if ranges and place == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], place)
        else:
            ranges.append((place, place))
    while len(ranges) > MAX_RANGES:
        gap = min(range(len(ranges) - 1), key=lambda i: ranges[i + 1][0] - ranges[i][1])
        ranges[gap : gap + 2] = [(ranges[gap][0], ranges[gap + 1][1])]
    return ranges


def _merged(first: Iterable[str], second: Iterable[str]) -> list[str]:
    return sorted({*first, *second})
