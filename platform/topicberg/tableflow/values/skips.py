"""Records that are left out because a user requested it, or because each attempt at them failed.

Both are recorded in the table itself, as its offsets are, so that any engine that plans the next
batch sees them, and count for one log (:mod:`.logs`). A request to skip is a commit on ``main`` (an
empty snapshot), so that a batch that was planned before it, and may hold the record, is refused.
Its entry in the table's properties is never removed.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from pydantic import BaseModel, ValidationError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from topicberg.endpoints import Endpoints
from topicberg.errors import CommitConflictError, SpecError, TopicbergError
from topicberg.errors.retry import retry
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.summaries import FIRST_OFFSETS
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import messages
from topicberg.kafka.last_records import LastRecords
from topicberg.kafka.offsets import Offsets, PartitionOffset, parse_offsets
from topicberg.kafka.records import DamagedRecordsError
from topicberg.tableflow.values.commit import committed as held_by
from topicberg.tableflow.values.logs import log_number

SKIP_PREFIX = "topicberg.skip."
"""Prefix of the table property of each requested skip, followed by partition, dot, offset; and dot,
number of the log, if that is not the first one."""
FAILING = "topicberg.failing-record."
"""The same, of each record that the engine found to fail by itself."""
ATTEMPTS = 10


class Skip(BaseModel):
    """A record that is skipped, or all of a batch. ``by``: a user and host, or the engine."""

    partition: int
    offset: int
    end: int | None = None
    """The offset after the batch of records that the client cannot read; None: it is a record."""
    by: str
    at_ms: int
    reason: str
    log: int = 0

    def key(self, prefix: str) -> str:
        """Return the name of its table property."""
        return f"{prefix}{self.partition}.{self.offset}" + (f".{self.log}" if self.log else "")

    @property
    def place(self) -> PartitionOffset:
        return self.partition, self.offset

    @property
    def records(self) -> range:
        """Its offsets."""
        return range(self.offset, self.end or self.offset + 1)


def places(skips: Iterable[Skip], start: Mapping[int, int]) -> dict[PartitionOffset, Skip]:
    """Return the skips by each of their records from some offsets on."""
    return {
        (skip.partition, offset): skip
        for skip in skips
        for offset in skip.records[max(0, start.get(skip.partition, 0) - skip.offset) :]
    }


def requested(table: Table) -> dict[PartitionOffset, Skip]:
    """Return the skips that users have requested of the table's log, oldest first."""
    skips = sorted(_of_log(table, SKIP_PREFIX), key=lambda skip: skip.at_ms)
    return {skip.place: skip for skip in skips}


def failing(table: Table) -> list[Skip]:
    """Return what fails by itself and the table has not passed yet."""
    return _of_log(table, FAILING)


def committed(table: Table, ends: Mapping[int, int], last: LastRecords) -> list[str]:
    """Return the table properties that are obsolete after a commit up to these offsets.

    The first one after the last record of its partition is not: it tells the log from another.
    """
    number, kept = log_number(table), set[int]()
    obsolete = list[str]()
    for key, skip in sorted(_noted(table, FAILING).items(), key=lambda item: item[1].offset):
        is_passed = skip.records[-1] < ends.get(skip.partition, 0)
        is_read = skip.partition in last and skip.offset < last[skip.partition].offset
        if skip.log != number or (is_passed and (is_read or skip.partition in kept)):
            obsolete.append(key)
        else:
            kept.add(skip.partition)
    return obsolete


def _of_log(table: Table, prefix: str) -> list[Skip]:
    """Return the skips of the log that the table is read from."""
    number, skips = log_number(table), _noted(table, prefix).values()
    return [skip for skip in skips if skip.log == number]


def _noted(table: Table, prefix: str) -> dict[str, Skip]:
    """Return the skips by the names of their properties, which begin with a prefix."""
    return {key: _parsed(text) for key, text in table.properties.items() if key.startswith(prefix)}


def note_failing(
    table: Table, log: int, place: PartitionOffset, reason: str, end: int | None = None
) -> None:
    """Record that a record fails; ``end``: after its batch, if the client cannot read that."""
    skip = _skip(log, place, "the engine", reason, end)
    with table.transaction() as transaction:
        transaction.set_properties({skip.key(FAILING): skip.model_dump_json()})


def request(
    table: Table, endpoints: Endpoints, topic: str, place: PartitionOffset, reason: str
) -> bool:
    """Request that the engine skips a record; return False if that was requested before.

    Of a batch that the client cannot read, all records from this one on are skipped.

    :raises SpecError: the table already holds the record, or the topic does not have it
    """

    def wanted() -> list[Skip]:
        if _of_place(requested(table).values(), place) is not None:
            return []
        state = held_by(table, table.current_snapshot())
        offsets = state.offsets
        if not offsets and (first := table.properties.get(FIRST_OFFSETS)):
            offsets = parse_offsets(first)
        _check(endpoints, topic, place, offsets)
        unreadable = _of_place(failing(table), place)
        end = unreadable.end if unreadable else None
        return [_skip(state.log, place, current_user(), reason, end)]

    return _request(table, wanted, f"topic {topic}", "run the command again; nothing was changed")


def adopt(table: Table, other: Table) -> None:
    """Request what was requested for another table of the same topic and is still to come here."""

    def wanted() -> list[Skip]:
        (state, theirs), known = map(held_by, (table, other)), requested(table)
        if None not in (state.topic_id, theirs.topic_id) and state.topic_id != theirs.topic_id:
            return []  # they are of other records
        return [
            skip.model_copy(update={"log": state.log})
            for skip in requested(other).values()
            if skip.place not in known and skip.records[-1] >= state.offsets.get(skip.partition, 0)
        ]

    _request(table, wanted, f"table {'.'.join(table.name())}", "try again; nothing was changed")


def _request(table: Table, wanted: Callable[[], list[Skip]], name: str, hint: str) -> bool:
    """Commit the requests that ``wanted`` returns for the table as it is; return False if none."""

    def attempt() -> bool:
        table.refresh()
        if skips := wanted():
            notes = {skip.key(SKIP_PREFIX): skip.model_dump_json() for skip in skips}
            SnapshotChange(table, Operation.APPEND, properties=notes).commit(notes)
        return bool(skips)

    exhausted = CommitConflictError(
        f"{name}: {ATTEMPTS} times in a row another commit came first", hint=hint
    )
    return retry(attempt, ATTEMPTS, exhausted=exhausted)


def _check(endpoints: Endpoints, topic: str, place: PartitionOffset, offsets: Offsets) -> None:
    partition, offset = place
    where = f"topic {topic}, partition {partition}, offset {offset}"
    ends = kafka.high_watermarks(endpoints, topic)
    if partition not in ends:
        raise SpecError(f"{where}: the topic has no such partition; it has {sorted(ends)}")
    if not 0 <= offset < ends[partition]:
        raise SpecError(
            f"{where}: there is no such record; the partition ends at offset {ends[partition]}"
        )
    if offset < offsets.get(partition, 0):
        raise SpecError(
            f"{where}: the table is already past this record; the next one of the partition is "
            f"{offsets[partition]}",
            hint="query the table for it by partition and offset in its metadata columns",
        )
    ranges = {partition: (offset, offset + 1)}
    try:
        there = any(True for _ in messages(endpoints, topic, ranges, may_end_early=True))
    except DamagedRecordsError:
        there = True
    if not there and offset < kafka.end_offsets(endpoints, topic)[partition]:
        raise SpecError(
            f"{where}: Kafka has no record there: it was compacted away, or is a transaction "
            "marker",
            hint="do nothing: the engine continues after it",
        )


def _of_place(skips: Iterable[Skip], place: PartitionOffset) -> Skip | None:
    return next((s for s in skips if s.partition == place[0] and place[1] in s.records), None)


def _skip(log: int, place: PartitionOffset, by: str, reason: str, end: int | None) -> Skip:
    now, (partition, offset) = int(time.time() * 1000), place
    return Skip(
        log=log, partition=partition, offset=offset, end=end, by=by, at_ms=now, reason=reason
    )


def current_user() -> str:
    """Return the user and host of this process."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user of a container may have no name
        return socket.gethostname()


def _parsed(text: str) -> Skip:
    try:
        return Skip.model_validate_json(text)
    except ValidationError as error:
        raise TopicbergError(
            f"the table property {text!r} is damaged", hint="remove the property from the table"
        ) from error
