"""The offsets that a table holds, and waiting until it holds given offsets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.iceberg.snapshots import newest_record
from topicberg.kafka import topics as kafka
from topicberg.kafka.offsets import Offsets
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.logs import OtherLog
from topicberg.topics.spec import TopicSpec

POLL_SECONDS = 0.5


def noted_offsets(table: Table, topic_id: str | None = None) -> Offsets:
    """Return the offsets that topicberg's engine recorded; empty if it did not write the table.

    :param topic_id: of the topic as it is: a table that was read from another one holds nothing of
        it, and no partition whose log was found to be another one
    """
    state, other = committed(table), OtherLog.load(table)
    if topic_id is not None and state.topic_id not in (None, topic_id):
        return {}
    doubted = other.partitions if other is not None and topic_id is not None else ()
    return {p: offset for p, offset in state.offsets.items() if p not in doubted}


def held_offsets(table: Table, spec: TopicSpec, endpoints: Endpoints, end: Offsets) -> Offsets:
    """Return partition → first offset that the table does not hold; empty: it holds nothing.

    Confluent's Tableflow records no offsets. For its tables, it is the first offset of a later time
    than the newest record in the table: correct as long as producers' clocks do not go back.

    :param end: up to where the topic holds records
    :raises TopicbergError: Kafka does not answer
    """
    if noted_offsets(table):
        return noted_offsets(table, kafka.topic_id(endpoints, spec.name))
    newest = newest_record(table, spec.metadata_column("timestamp"))
    if newest is None:
        return {}
    later = kafka.offsets_at(endpoints, spec.name, int(newest.timestamp() * 1000) + 1)
    return {p: first if (first := later.get(p, -1)) >= 0 else last for p, last in end.items()}


def wait_for(
    table: Table,
    target: Offsets,
    patience: float,
    on_progress: Callable[[int], None] = lambda _: None,
    offsets_of: Callable[[Table], Offsets] = noted_offsets,
) -> bool:
    """Refresh the table until it holds the topic up to ``target``.

    :param patience: seconds without any progress after which to give up
    :param on_progress: called with the number of records still missing
    :param offsets_of: up to where the table holds its topic
    :returns: False if there was no progress for ``patience`` seconds
    """
    best, deadline = math.inf, time.monotonic() + patience
    while True:
        offsets = offsets_of(table.refresh())
        missing = sum(max(0, offset - offsets.get(p, 0)) for p, offset in target.items())
        if missing == 0:
            return True
        if missing < best:
            on_progress(missing)
            best, deadline = missing, time.monotonic() + patience
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
