"""Detect deletes that an upsert table may have missed while its engine was not running.

Kafka keeps a tombstone for ``delete.retention.ms`` after it compacted the records before it. An
engine that starts later finds neither, and the deleted row stays in the table. Whether that
happened cannot be known; that it may have is recorded in the table until the topic is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import BaseModel, ValidationError
from pyiceberg.table import Table

from topicberg.iceberg.summaries import CURRENT_AT_MS
from topicberg.kafka.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.values.commit import Committed
from topicberg.tableflow.values.offsets import Batch

CURRENT_OFFSETS = "topicberg.current-offsets"
"""Table property: up to where the table held its topic at :data:`CURRENT_AT_MS`."""
MISSED = "topicberg.missed-deletes"
"""Table property: see :class:`Missed`."""
KeptMs = Callable[[], int | None]
"""Milliseconds; None: Kafka does not compact the topic."""
_PATIENCE_MS = 60_000
"""The minimum time between two commits that record that a topic without new records is current."""


class Missed(BaseModel):
    """Deletes between these times (milliseconds) may be missing in the table."""

    since_ms: int
    until_ms: int


def missed(properties: Mapping[str, str]) -> Missed | None:
    """Return when deletes may have been missed, or None, by a table's properties."""
    text = properties.get(MISSED)
    try:
        return Missed.model_validate_json(text) if text else None
    except ValidationError:  # written manually
        return Missed(since_ms=0, until_ms=0)


def current(offsets: Offsets, at_ms: int) -> dict[str, str]:
    """Return the table properties that say up to where a table held all of its topic, and when."""
    return {CURRENT_AT_MS: str(at_ms), CURRENT_OFFSETS: dump_offsets(offsets)}


def _current_ms(properties: Mapping[str, str], committed: Committed) -> int | None:
    """Return when a table held all of its topic last, also after a rollback; None: not known."""
    noted = properties.get(CURRENT_AT_MS)
    reached = parse_offsets(properties.get(CURRENT_OFFSETS, "{}"))
    is_behind = any(committed.offsets.get(p, 0) < offset for p, offset in reached.items())
    if noted is not None and not is_behind:
        return int(noted)
    return committed.at_ms if committed.current_at_ms is None else committed.current_at_ms


class DeleteWatch:
    """Whether the table of one topic was stale for longer than Kafka keeps tombstones."""

    def __init__(
        self,
        kept_ms: KeptMs | None,
        table: Table,
        committed: Committed,
        now_ms: int,
        seen_ms: int | None = None,
    ) -> None:
        """:param kept_ms: reads how long Kafka keeps a tombstone; None: the topic is not compacted
        :param now_ms: a time before the topic's end was looked up
        :param seen_ms: when the topic was last seen to have nothing that the table did not hold
        """
        self._kept_ms, self._table, self._now_ms = kept_ms, table, now_ms
        self._watched = kept_ms is not None and bool(committed.offsets)
        self._offsets = committed.offsets
        noted_ms = _current_ms(table.properties, committed)
        self._noted_ms = now_ms if noted_ms is None else noted_ms
        self._current_ms = max(self._noted_ms, seen_ms or 0)

    def nothing_new(self) -> None:
        """Record now and then that a topic without new records is current."""
        age_ms = self._now_ms - self._noted_ms
        if self._kept_ms is None or not self._watched or age_ms <= _PATIENCE_MS:
            return
        kept = self._kept_ms()
        if kept is not None and age_ms > kept // 4:
            with self._table.transaction() as transaction:
                transaction.set_properties(current(self._offsets, self._now_ms))

    def of(self, batch: Batch, records: Callable[[], int], *, caught_up: bool) -> dict[str, str]:
        """Return the table properties that change with a batch; ``records`` counts Kafka's."""
        if self._kept_ms is None:
            return {}
        changed = current(batch.end, self._now_ms) if caught_up or not self._watched else {}
        away_ms = self._now_ms - self._current_ms
        may_miss = self._watched and MISSED not in self._table.properties and away_ms > 0
        kept = self._kept_ms() if may_miss else None
        if kept is not None and away_ms > kept and records() < batch.records - len(batch.skipped):
            missed_deletes = Missed(since_ms=self._current_ms, until_ms=self._now_ms)
            changed[MISSED] = missed_deletes.model_dump_json()
        return changed

    def noted(self, changed: Mapping[str, str]) -> dict[str, str]:
        """Return what the batch's summary has of the result of :meth:`of`, for a rollback to it."""
        noted = {CURRENT_AT_MS: changed.get(CURRENT_AT_MS, str(self._current_ms))}
        return {} if self._kept_ms is None else noted
