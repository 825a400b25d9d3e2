"""The snapshot sensor's memory and its decisions, as pure functions.

Sensor events are delivered at least once, runs with one key at most once, and there are no
catch-up ticks. So a tick looks at every snapshot since the cursor, and remembers hours until a run
that started after they were touched has succeeded:

* ``pending`` hours wait for the next request: only one request is under way at a time, so a burst
  of snapshots costs one run. Hours, not partitions: those of the future have no partition yet, and
  the spec may change what the partitions are;
* a request that failed is repeated with what came meanwhile, a few times; then the next snapshot
  is awaited;
* the catalogs do not wait for computations: the tick itself registers all tables that changed, and
  a run of its own those of which that failed. One such run is under way at a time.

Where snapshots are expired that no tick has seen, or the cursor is lost, the sensor uses what is
left of the table (:mod:`topicberg.iceberg.changes`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from topicberg.iceberg.changes import Mark
from topicberg.iceberg.hours import Hours, coarse, union
from topicberg.orchestration.assets.partitions import Span

MAX_ATTEMPTS = 3
MAX_RANGES = 250
"""Ranges of partitions of one request, as many as the tag of a run can name; the next request has
the others."""
MAX_PENDING = 5000
"""Ranges of hours that a cursor remembers: of more, the narrowest gaps as well."""

RunState = Literal["active", "succeeded", "failed", "killed", "missing"]
"""``failed``: one of its steps did; ``killed``: it ended otherwise, no table is to blame."""
Range = tuple[int, int]
"""First hour, and the end: the hours of :data:`topicberg.iceberg.hours.Hours`, as JSON has them."""


class ComputationRequest(BaseModel):
    """A run that was requested; ``ranges``: run key → hours."""

    ranges: dict[str, list[Range]]


class TableCursor(BaseModel):
    """What a sensor remembers between two ticks."""

    life: str = Field(description="of this cursor, which another one after a reset has not")
    seen: Mark | None = None
    ahead: int = Field(default=0, description="changes up to this sequence number were requested")
    metadata: str | None = Field(default=None, description="the metadata file of the last tick")
    settled: str | None = Field(default=None, description="the state of the catalogs' request")
    dirty: bool = Field(default=False, description="a state whose catalogs are not refreshed")
    pending: list[Range] = Field(default_factory=list)
    request: ComputationRequest | None = Field(default=None, description="what is being computed")
    failures: int = Field(default=0, description="requests in a row that failed")
    recalls: int = Field(default=0, description="in a row, without a new snapshot")
    registration: ComputationRequest | None = Field(
        default=None, description="what is being registered"
    )
    registration_failures: int = Field(default=0, description="the same of registrations")
    moved: str | None = Field(
        default=None, description="the metadata file when a tick moved the pointers of the catalogs"
    )
    moved_at: float = Field(default=0, description="when that was")
    unchecked: bool = Field(default=False, description="registered by a tick, not yet checked")
    requests: int = Field(default=0, description="so far; makes run keys unique")
    observed_at: float = Field(default=0, description="when the topic in Kafka was observed")
    unobserved: bool = Field(default=False, description="the table has changed since")
    signal: str | None = Field(default=None, description="what the writer reported when looked at")

    @staticmethod
    def parse(text: str | None) -> TableCursor:
        """Return the cursor; a new one if there is none, or one that this version cannot read."""
        with suppress(ValidationError):
            if text:
                return TableCursor.model_validate_json(text)
        return TableCursor(life=uuid.uuid4().hex[:8])

    @property
    def snapshot(self) -> int | None:
        return self.seen.snapshot if self.seen else None

    def replace(self, **fields: Any) -> TableCursor:
        return self.model_copy(update=fields)


def settle(cursor: TableCursor, states: Mapping[str, RunState]) -> TableCursor:
    """Take note of how the requested runs are; ``states``: run key → state.

    A run that is missing was never launched: what it was to do is to be done again.
    """
    request = cursor.request
    if request and _ended(request, states):
        failed = [key for key in request.ranges if states[key] != "succeeded"]
        cursor = cursor.replace(
            request=None,
            pending=_merged(cursor.pending, *(request.ranges[key] for key in failed)),
            failures=cursor.failures + 1 if failed else 0,
        )
    return settle_registration(cursor, states)


def settle_registration(cursor: TableCursor, states: Mapping[str, RunState]) -> TableCursor:
    """Do so for the run that registers the table, whether or not the table can be read."""
    registration = cursor.registration
    if registration and _ended(registration, states):
        failed = [key for key in registration.ranges if states[key] != "succeeded"]
        cursor = cursor.replace(
            registration=None,
            dirty=cursor.dirty or bool(failed),
            registration_failures=cursor.registration_failures + 1 if failed else 0,
        )
    return cursor


def _ended(request: ComputationRequest, states: Mapping[str, RunState]) -> bool:
    return all(states[key] != "active" for key in request.ranges)


def observe(cursor: TableCursor, seen: Mark | None, hours: Iterable[Hours]) -> TableCursor:
    """Take note of a new state of the table and the hours that it touched."""
    return cursor.replace(
        seen=seen,
        dirty=True,
        pending=_merged(cursor.pending, ((each.start, each.stop) for each in hours)),
        # After a new snapshot even a request that failed for good is worth another try.
        failures=min(cursor.failures, MAX_ATTEMPTS - 1),
        recalls=0,
        registration_failures=min(cursor.registration_failures, MAX_ATTEMPTS - 1),
    )


def recall(cursor: TableCursor, hours: Iterable[Hours]) -> TableCursor:
    """Take note of hours that are unread although all that was requested of them is computed.

    A few times in a row at most: if computing does not help, the check of the table reports it.
    """
    recalled = [(each.start, each.stop) for each in hours]
    if not recalled:
        return cursor.replace(recalls=0)
    if cursor.recalls >= MAX_ATTEMPTS:
        return cursor
    return cursor.replace(pending=_merged(cursor.pending, recalled), recalls=cursor.recalls + 1)


def observe_metadata(
    cursor: TableCursor, before: TableCursor, metadata: str, state: str
) -> TableCursor:
    """Take note of the table's metadata file, after its snapshots.

    Maintenance changes it without a snapshot of ``main``; Glue and Snowflake then point to a file
    that will be deleted one day. A change counts when the next tick still sees it: a batch that the
    engine has staged is published a moment later. Nothing that a request runs changes the state.

    :param before: the cursor of the last tick
    :param state: of the table, as far as it concerns the catalogs
    """
    settled = cursor.settled
    if cursor.seen != before.seen:
        settled = state
    elif state != settled and metadata == before.metadata:
        cursor, settled = cursor.replace(dirty=True), state
    return cursor.replace(metadata=metadata, settled=settled)


def request(
    cursor: TableCursor, plan: Callable[[list[Hours]], tuple[list[Span], list[Hours]]], key: str
) -> tuple[TableCursor, dict[str, tuple[Span, ...]]]:
    """Return the run that computes what is pending now, by its key.

    :param plan: the partitions that hold hours, and what is left of the hours
    :param key: begins the run key, e.g. the table's name
    """
    if cursor.request or not cursor.pending or cursor.failures >= MAX_ATTEMPTS:
        return cursor, {}
    spans, left = plan([Hours(*each) for each in cursor.pending])
    cursor = cursor.replace(pending=[(each.start, each.stop) for each in left])
    if not spans:
        return cursor, {}
    # A rollback brings an old snapshot back, a reset the old counts: Dagster launches no key twice.
    prefix = f"{key}:{cursor.snapshot}:{cursor.life}-{cursor.requests}"
    run_key = f"{prefix}:{spans[0].first}..{spans[-1].last}"
    ranges = [(span.hours.start, span.hours.stop) for span in spans]
    wanted = ComputationRequest(ranges={run_key: ranges})
    return cursor.replace(request=wanted, requests=cursor.requests + 1), {run_key: tuple(spans)}


def postpone(cursor: TableCursor) -> TableCursor:
    """Take note that a tick did not make the run that it was about to request.

    The next tick looks at the table again.
    """
    assert cursor.request is not None  # noqa: S101  it was just requested
    pending = _merged(cursor.pending, *cursor.request.ranges.values())
    return cursor.replace(request=None, pending=pending, signal=None)


def share(cursor: TableCursor, key: str, shared: str) -> TableCursor:
    """Take note that another run computes what was requested.

    :param key: of the run that was requested
    :param shared: of the run that computes it, with what others requested
    """
    assert cursor.request is not None  # noqa: S101  it was just requested
    ranges = {shared if k == key else k: hours for k, hours in cursor.request.ranges.items()}
    return cursor.replace(request=cursor.request.model_copy(update={"ranges": ranges}))


def wants_registration(cursor: TableCursor) -> bool:
    """Whether the table is to be registered, and no run does it yet."""
    failed = cursor.registration_failures >= MAX_ATTEMPTS
    known = cursor.dirty and cursor.snapshot is not None
    return known and cursor.registration is None and not failed


def register(cursor: TableCursor, run_key: str) -> TableCursor:
    """Take note of the run that registers the table, with others."""
    wanted = ComputationRequest(ranges={run_key: []})
    return cursor.replace(registration=wanted, dirty=False, unchecked=False)


def move(cursor: TableCursor, now: float, *, is_all: bool) -> TableCursor:
    """Take note that the tick itself moved the pointers of the catalogs.

    :param is_all: there is nothing else to register
    """
    dirty = cursor.dirty and not is_all
    return cursor.replace(moved=cursor.metadata, moved_at=now, unchecked=True, dirty=dirty)


def is_moved(cursor: TableCursor) -> bool:
    """Whether a tick has moved the pointers to the state that was last seen."""
    return cursor.moved is not None and cursor.moved == cursor.metadata


def wants_move(cursor: TableCursor) -> bool:
    """Whether a tick is to move the pointers. If a run failed to register them, only runs do."""
    failed = bool(cursor.registration_failures)
    return wants_registration(cursor) and not is_moved(cursor) and not failed


def _merged(*ranges: Iterable[Range]) -> list[Range]:
    hours = union(Hours(*each) for each in chain(*ranges))
    return [(each.start, each.stop) for each in coarse(hours, MAX_PENDING)]
