"""The snapshot sensor's memory and its decisions, as pure functions.

Sensor events are delivered at least once, runs with one key at most once, and there are no
catch-up ticks. So a tick looks at every snapshot since the cursor, and remembers partitions until a
run that started after they were touched has succeeded:

* ``pending`` partitions wait for the next request: only one request is under way at a time, so a
  burst of snapshots costs one run;
* ``future`` hours have no partition yet and wait until they do;
* a request that failed is repeated with what came meanwhile, a few times; then the next snapshot
  is awaited;
* the catalogs do not wait for computations: the table is registered by runs of its own, of which
  one is under way at a time as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, Field

MAX_ATTEMPTS = 3
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
    request: Request | None = Field(default=None, description="what is being computed")
    failures: int = Field(default=0, description="requests in a row that failed")
    registration: Request | None = Field(default=None, description="what is being registered")
    registration_failures: int = Field(default=0, description="the same of registrations")
    requests: int = Field(default=0, description="of both so far; makes run keys unique")

    @staticmethod
    def parse(text: str | None) -> Cursor:
        return Cursor.model_validate_json(text) if text else Cursor()


def settle(cursor: Cursor, states: Mapping[str, RunState]) -> Cursor:
    """Take note of how the requested runs are; ``states``: run key → state.

    A run that is missing was never launched: what it was to do is to be done again.
    """
    request, registration = cursor.request, cursor.registration
    if request and _ended(request, states):
        undone = [key for key in request.ranges if states[key] != "succeeded"]
        partitions = [partition for key in undone for partition in request.ranges[key]]
        cursor = cursor.model_copy(
            update={
                "request": None,
                "pending": _merged(cursor.pending, partitions),
                "failures": cursor.failures + 1 if undone else 0,
            }
        )
    if registration and _ended(registration, states):
        failed = any(states[key] != "succeeded" for key in registration.ranges)
        cursor = cursor.model_copy(
            update={
                "registration": None,
                "dirty": cursor.dirty or failed,
                "registration_failures": cursor.registration_failures + 1 if failed else 0,
            }
        )
    return cursor


def _ended(request: Request, states: Mapping[str, RunState]) -> bool:
    return all(states[key] != "active" for key in request.ranges)


def observe(cursor: Cursor, snapshot: int, partitions: Iterable[str]) -> Cursor:
    """Take note of a new snapshot and the partitions that it touched."""
    return cursor.model_copy(
        update={
            "snapshot": snapshot,
            "dirty": True,
            "future": _merged(cursor.future, partitions),
            # After a new snapshot even a request that failed for good is worth another try.
            "failures": min(cursor.failures, MAX_ATTEMPTS - 1),
            "registration_failures": min(cursor.registration_failures, MAX_ATTEMPTS - 1),
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
    """What to compute now, if anything.

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
    if cursor.request or cursor.snapshot is None or cursor.failures >= MAX_ATTEMPTS:
        return cursor, None
    ranges = _ranges([places[p] for p in cursor.pending if p in places])
    cursor = cursor.model_copy(update={"pending": []})
    if not ranges:
        return cursor, None
    prefix = _run_key(cursor, key)
    wanted = Request(
        snapshot=cursor.snapshot,
        ranges={
            f"{prefix}:{existing[first]}..{existing[last]}": list(existing[first : last + 1])
            for first, last in ranges
        },
    )
    return cursor.model_copy(update={"request": wanted, "requests": cursor.requests + 1}), wanted


def register(cursor: Cursor, key: str) -> tuple[Cursor, Request | None]:
    """Whether to register the table now; ``key`` as in :func:`request`."""
    failed = cursor.registration_failures >= MAX_ATTEMPTS
    if cursor.registration or not cursor.dirty or cursor.snapshot is None or failed:
        return cursor, None
    wanted = Request(snapshot=cursor.snapshot, ranges={_run_key(cursor, key): []})
    done = {"registration": wanted, "requests": cursor.requests + 1, "dirty": False}
    return cursor.model_copy(update=done), wanted


def _run_key(cursor: Cursor, key: str) -> str:
    # A rollback brings an old snapshot back: only the count makes the key one of its own.
    return f"{key}:{cursor.snapshot}:{cursor.requests}"


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
