"""What holds for the table of a topic: its engine works, it is near Kafka, nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.table.snapshots import Operation

from topicberg import kafka
from topicberg.checks.finding import Finding, age, from_ms, good, late, moment
from topicberg.iceberg.snapshots import report
from topicberg.iceberg.summaries import ROWS_SKIPPED, ancestry
from topicberg.kafka.consumer import first_times
from topicberg.settings import settings
from topicberg.tableflow.commit import committed
from topicberg.tableflow.status import TopicStatus
from topicberg.tableflow.tombstones import missed
from topicberg.tableflow.wait import held_offsets
from topicberg.topics.deadletters import DEFAULT_TARGET
from topicberg.wording import count

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from topicberg.endpoints import Endpoints
    from topicberg.kafka.registration import FileState
    from topicberg.topics.spec import Freshness, TopicSpec

ACKNOWLEDGED = "topicberg.rows-skipped-acknowledged"
"""Table property: how many of them somebody has looked at."""
TRANSACTION_MS = 15 * 60_000
"""A broker ends a transaction after so long, by default: one that is older hangs."""
PATIENCE_MS = 60_000
"""A failure that the engine mends by trying again is no fault for so long."""


def check_engine(spec: TopicSpec, status: TopicStatus, now: datetime) -> Finding:
    """Whether Tableflow commits the topic: not suspended, and not failing again and again."""
    facts = {"phase": status.shown_phase, "commits": status.commits}
    message, _, hint = (status.error_message or "").partition("\n  → ")
    since = from_ms(status.failing_since_ms) if status.failing_since_ms else None
    hint = hint or f"`topicberg status` shows what runs, `topicberg tableflow status {spec.name}`"
    if status.suspended:
        return Finding(
            passed=False,
            what=f"Tableflow is suspended before a record or schema that the table cannot take: "
            f"{message}",
            mend=hint,
            since=since,
            facts=facts,
        )
    lasting = since is None or now.timestamp() * 1000 - since.timestamp() * 1000 > PATIENCE_MS
    if status.error_message and lasting:
        return Finding(
            passed=False,
            what=f"Tableflow tries again and again: {message}",
            mend=hint,
            since=since,
            facts=facts,
        )
    for failing in status.failing_table_formats:
        message, _, hint = failing.error_message.partition("\n  → ")
        return Finding(
            passed=False,
            what=f"{failing.format} is not written any more: {message}",
            mend=hint or None,
            severity="warning",
            facts=facts,
        )
    for partition, transaction in status.open_transactions.items():
        since = from_ms(transaction.since_ms)
        if now.timestamp() * 1000 - transaction.since_ms > TRANSACTION_MS:
            return Finding(
                passed=False,
                what=f"an open transaction holds back the records of partition {partition} from "
                f"offset {transaction.offset} on",
                mend=_end_transaction(spec),
                since=since,
                severity="warning",
                facts=facts,
            )
    return good(f"Tableflow is {status.phase.lower()}", **facts)


def check_schema(states: Sequence[FileState], engine: str | None) -> Finding:
    """Whether the schema files of a topic are the newest versions of their subjects.

    :param engine: the check that says why, if the engine fails
    """
    facts = {state.subject: f"{state.file}: {state.state}" for state in states}
    different = [state for state in states if state.state != "equal"]
    if not different:
        said = "; ".join(state.what for state in states)
        return good(said or "the topic has no schema file", **facts)
    return Finding(
        passed=False,
        what="; ".join(state.what for state in different),
        mend=different[0].remediation,
        severity="warning",
        cause=engine,
        facts=facts,
    )


def _end_transaction(spec: TopicSpec) -> str:
    """What to do about a transaction that no producer ends."""
    return (
        "restart the producer with its transactional.id, or let Kafka's tool end it: "
        f"`kafka-transactions.sh find-hanging --topic {spec.name}`, then `abort`"
    )


def lag_of(table: Table, spec: TopicSpec, endpoints: Endpoints) -> int:
    """Records of the topic that the table does not hold yet, of open transactions as well."""
    end = kafka.high_watermarks(endpoints, spec.name)
    held = held_offsets(table, spec, endpoints, end)
    return sum(max(0, offset - held.get(p, 0)) for p, offset in end.items())


def check_lag(spec: TopicSpec, table: Table, endpoints: Endpoints, engine: str | None) -> Finding:
    """Whether the table is as near to Kafka as the spec wants it.

    :param engine: the check that says why, if the engine fails
    """
    lag, allowed = lag_of(table, spec, endpoints), spec.checks.max_lag_records or 0
    facts = {"lag_records": lag, "allowed": allowed}
    if lag <= allowed:
        return good(f"{count(lag, 'record')} behind Kafka; {allowed:,} are allowed", **facts)
    last = last_commit(table)
    what = f"the table is {count(lag, 'record')} behind Kafka; {allowed:,} are allowed "
    mend = _catch_up(spec)
    if waiting := _held_back(spec, endpoints):
        what += f"{waiting} "
        mend = _end_transaction(spec)
    return Finding(
        passed=False,
        what=f"{what}(checks.max_lag_records)",
        mend=mend,
        since=last,
        severity="warning",
        cause=engine,
        facts=facts,
    )


def _held_back(spec: TopicSpec, endpoints: Endpoints) -> str:
    """Which records no consumer gets, as a transaction before them is open; or nothing."""
    ends = kafka.high_watermarks(endpoints, spec.name)
    stable = kafka.end_offsets(endpoints, spec.name)
    stuck = {p: stable[p] for p in ends if stable.get(p, ends[p]) < ends[p]}
    if not stuck:
        return ""
    since = [moment(from_ms(time)) for time in first_times(endpoints, spec.name, stuck).values()]
    count = sum(ends[p] - offset for p, offset in stuck.items())
    places = ", ".join(f"partition {p} from offset {offset} on" for p, offset in stuck.items())
    begun = f", begun {min(since)}" if since else ""
    return f"({count:,} of them wait for the end of an open transaction: {places}{begun})"


def _catch_up(spec: TopicSpec) -> str:
    """What to do about records that wait in Kafka."""
    if not settings().own_engine:
        return f"see what Confluent Cloud says of the Tableflow of topic {spec.name}"
    return (
        f"`topicberg tableflow run {spec.name} --once` brings the table up to date; "
        "`topicberg status` shows whether the engine runs (tableflow), "
        f"`topicberg tableflow status {spec.name}` what it did last"
    )


def last_commit(table: Table) -> datetime | None:
    """When rows came last, as far as snapshots are kept."""
    for snapshot in ancestry(table):
        facts = report(snapshot)
        if facts.added_records and facts.operation != Operation.REPLACE.value:
            return facts.committed_at
    return None


def check_freshness(
    spec: TopicSpec,
    freshness: Freshness,
    table: Table,
    endpoints: Endpoints,
    now: datetime,
    engine: str | None,
) -> Finding:
    """Whether rows came lately; if not, whether Kafka or the engine is to blame."""
    last = last_commit(table)
    if last is None:
        return good("the topic has had no records yet")
    seconds = (now - last).total_seconds()
    facts = {"minutes_since_the_newest_rows": round(seconds / 60, 1)}
    if seconds <= freshness.warn_minutes * 60:
        return good(f"the newest rows came {age(seconds)} ago", **facts)
    lag = lag_of(table, spec, endpoints)
    if lag:
        what = f"the table is late: {count(lag, 'record')} waiting in Kafka, none came for "
        what += age(seconds)
        mend = _catch_up(spec)
        if waiting := _held_back(spec, endpoints):
            what, mend = f"{what} {waiting}", _end_transaction(spec)
    else:
        what = (
            f"the topic is late: nobody has produced to it for {age(seconds)}; "
            f"{freshness.warn_minutes} min are allowed"
        )
        mend = (
            f"`topicberg datagen start {spec.name}`"
            if spec.generator
            else f"start the producer of topic {spec.name}; "
            f"its owners: {', '.join(spec.owners) or 'the spec names none'}"
        )
    failed = seconds > freshness.fail_minutes * 60
    return Finding(
        passed=False,
        what=what,
        mend=mend,
        since=last,
        severity="error" if failed else "warning",
        cause=engine if lag else None,
        facts={**facts, "lag_records": lag},
    )


def check_history(
    history: Table | None, topic: Table, allowed_minutes: int, now: datetime, mend: str
) -> Finding:
    """Whether the table of every record has read as far as the topic's own had some time ago.

    Confluent's Tableflow leaves no offsets in its snapshots: there is nothing to compare then.
    """
    read = committed(history, history.current_snapshot()).offsets if history else {}
    missing: Snapshot | None = None
    for snapshot in ancestry(topic):
        held = committed(topic, snapshot).offsets
        if all(read.get(partition, 0) >= offset for partition, offset in held.items()):
            break
        missing = snapshot
    if missing is None:
        return good("every record that the topic's own table holds was read")
    since = from_ms(missing.timestamp_ms)
    said = f"records that came {age((now - since).total_seconds())} ago were not read yet"
    return late(said, since, allowed_minutes, now, mend)


def check_skipped(spec: TopicSpec, table: Table) -> Finding:
    """Records that were left out because they cannot be decoded, and that nobody looked at."""
    skipped, known = (int(table.properties.get(key, 0)) for key in (ROWS_SKIPPED, ACKNOWLEDGED))
    facts: dict[str, Any] = {"rows_skipped": skipped, "acknowledged": known}
    if skipped <= known:
        return good(
            f"no record was left out that nobody has looked at ({skipped:,} in all)", **facts
        )
    handling = spec.tableflow.error_handling
    where = {
        "LOG": f"in mode LOG they are in the dead-letter topic {handling.target or DEFAULT_TARGET}",
        "SKIP": "in mode SKIP only the topic still has them, as long as it keeps records",
        "SUSPEND": "the mode is SUSPEND now; those left out in mode LOG are in the dead-letter "
        "topic of that time, the others only in the topic",
    }
    facts["error_handling"] = handling.mode
    return Finding(
        passed=False,
        what=f"left out, as they could not be decoded: {skipped - known:,} of the topic's records; "
        f"{where[handling.mode]}",
        mend=f"mend the producer, then `topicberg tableflow acknowledge {spec.name}`",
        severity="warning",
        facts=facts,
    )


def check_deletes(spec: TopicSpec, table: Table) -> Finding:
    """Whether an upsert table has seen every delete, as far as Kafka kept them for its engine."""
    found = missed(table.properties)
    if found is None:
        return good("every delete was read")
    return Finding(
        passed=False,
        what=f"the engine was away from {moment(from_ms(found.since_ms))} to "
        f"{moment(from_ms(found.until_ms))}, longer than Kafka keeps tombstones "
        "(delete.retention.ms), and the log was compacted meanwhile: rows that were deleted then "
        "may still be there",
        mend=f"`topicberg tableflow reread {spec.name}` deletes the rows whose keys the topic "
        "does not have",
        since=from_ms(found.until_ms),
        severity="warning",
    )


def acknowledge(table: Table) -> int:
    """Take note that somebody looked at the records left out so far; their number."""
    skipped = table.properties.get(ROWS_SKIPPED, "0")
    with table.transaction() as transaction:
        transaction.set_properties({ACKNOWLEDGED: skipped})
    return int(skipped)
