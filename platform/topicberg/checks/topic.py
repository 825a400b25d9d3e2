"""Checks of the table of a topic: its engine commits, its lag is small, no record is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from topicberg.checks.check import Probe, TableCheck, delay_check
from topicberg.checks.finding import Finding, Severity, age, from_ms, good, judge_delay, moment
from topicberg.endpoints import Endpoints
from topicberg.errors import split_hint
from topicberg.iceberg import summaries
from topicberg.iceberg.snapshots import report
from topicberg.kafka import consumer, schemas
from topicberg.kafka import topics as kafka
from topicberg.kafka.offsets import parse_offsets
from topicberg.settings import settings
from topicberg.tableflow.changelog.fold_state import FoldState
from topicberg.tableflow.layout import drift
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.service import control, wait
from topicberg.tableflow.service.status import COUNTERS, TopicStatus
from topicberg.tableflow.upsert.tombstones import missed
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.logs import go_on, log_number
from topicberg.topics.deadletters import DEFAULT_TARGET
from topicberg.topics.requests import Pause, paused_by
from topicberg.topics.spec import Freshness, TopicSpec
from topicberg.wording import count

ACKNOWLEDGED = "topicberg.rows-skipped-acknowledged"
"""Table property: how many skipped records the operator has acknowledged."""
TRANSACTION_MS = 15 * 60_000  # By default, a broker ends a transaction then: an older one hangs.
SAMPLED_RECORDS = 600  # Offsets of a topic whose records are compared with the schema.
PATIENCE_MS = 20_000  # A failure of the engine is not reported for so long: a retry may resolve it.
MOST_REASONS = 5  # Of records that were skipped, in a message.
ENGINE_CHECK = "tableflow"  # The check that says whether the engine commits a topic.
LAG_CHECK, FRESHNESS_CHECK = "kafka_lag", "freshness"
MINUTES = "minutes_since_the_newest_rows"


def topic_checks(spec: TopicSpec) -> Iterator[TableCheck]:
    """Return the checks of a topic's own table, apart from those that every table has."""
    yield engine_check(spec)
    yield TableCheck(
        "skipped_rows",
        "Every record that was skipped, or sent to the dead-letter topic, is acknowledged.",
        lambda probe: check_skipped(control.as_requested(probe.config, spec), probe.iceberg),
    )
    if any(section.file and section.is_registered for section in (spec.value_schema, spec.key)):
        yield TableCheck(
            "schema",
            "The schema files of the topic are the newest versions in the schema registry.",
            lambda probe: check_schema(
                schemas.compare(spec, probe.endpoints, probe.config), probe.engine_fault(spec)
            ),
        )
    if drift.is_plain(spec):
        yield TableCheck(
            "unknown_fields",
            "The schema of plain JSON has every field of a sample of the topic's records; other "
            "fields have no column.",
            lambda probe: check_unknown_fields(
                spec, drift.compare(spec, probe.endpoints, probe.config, SAMPLED_RECORDS)
            ),
        )
    if spec.is_compacted:
        yield TableCheck(
            "deletes",
            "Every tombstone was read while Kafka kept it: the engine was never down for longer "
            "than delete.retention.ms.",
            lambda probe: check_deletes(spec, probe.iceberg),
        )
    if spec.changes == "rows":
        yield TableCheck(
            "replica_identity",
            "Every change has the values of all columns of its row: the source's table has REPLICA "
            "IDENTITY FULL if it needs that.",
            lambda probe: check_identity(probe.iceberg),
        )
        yield TableCheck(
            "snapshot_rows",
            "No row is older than what it replaced, because a snapshot of the source read it "
            "before.",
            lambda probe: check_snapshot_reads(probe.iceberg),
        )
    yield from _lag_check(spec)
    if (limits := spec.freshness) is not None:
        yield TableCheck(
            FRESHNESS_CHECK,
            f"Rows were added within {limits.warn_minutes} minutes (fails after "
            f"{limits.fail_minutes}); if not, it says whether the producer or Tableflow is the "
            "cause.",
            lambda probe: (
                _paused(paused_by(probe.config, spec.name)) or check_freshness(spec, limits, probe)
            ),
        )


def history_checks(spec: TopicSpec, allowed_minutes: int) -> Iterator[TableCheck]:
    """Return the checks of the table of every record, apart from those that every table has."""
    yield from _lag_check(spec)
    yield delay_check(
        spec,
        allowed_minutes,
        "The table holds every record that the topic's own table held "
        f"{allowed_minutes} minutes ago.",
        check_history,
    )


def engine_check(spec: TopicSpec) -> TableCheck:
    return TableCheck(
        ENGINE_CHECK,
        "Tableflow commits the topic: it is not suspended, and its attempts do not keep failing.",
        lambda probe: check_engine(spec, probe.status(spec), probe.now),
    )


def check_engine(spec: TopicSpec, status: TopicStatus | None, now: datetime) -> Finding:
    """Return whether Tableflow commits the topic: not suspended, and not failing for a while."""
    if status is None:
        return good("there is no API key to read the state of Confluent's Tableflow with")
    facts = {
        "phase": status.shown_phase,
        **{name: getattr(status, name) for name in COUNTERS},
        "rows_skipped": status.rows_skipped,
        **({"consumer_lag": sum(status.lag.values())} if status.lag else {}),
    }
    if (note := _paused(status.paused, **facts)) is not None:
        return note
    message, hint = split_hint(status.error_message or "")
    hint = hint or _see_engine()
    since_ms, now_ms = status.failing_since_ms, now.timestamp() * 1000
    since = from_ms(since_ms) if since_ms else None
    if status.suspended:
        return Finding(f"Tableflow is suspended: {message}", hint, since, facts=facts)
    if status.error_message and (not since_ms or now_ms - since_ms > PATIENCE_MS):
        cause = f"service {status.missing}" if status.missing else None
        problem = f"Tableflow keeps failing and retries: {message}"
        return Finding(problem, hint, since, cause=cause, facts=facts)
    for failing in status.failing_table_formats:
        message, hint = split_hint(failing.error_message)
        problem = f"{failing.format} is no longer written: {message}"
        return Finding(problem, hint, severity="warning", facts=facts)
    for partition, transaction in status.open_transactions.items():
        if now_ms - transaction.since_ms > TRANSACTION_MS:
            return Finding(
                f"an open transaction holds back the records of partition {partition} from offset "
                f"{transaction.offset} on",
                _end_transaction(spec),
                from_ms(transaction.since_ms),
                "warning",
                facts=facts,
            )
    return good(f"Tableflow is {status.phase.lower()}", **facts)


def _paused(pause: Pause | None, **facts: object) -> Finding | None:
    """Return what the checks of a paused topic say: its table lags because a user wants it to."""
    return good(f"{pause.error.message}; {pause.error.hint}", **facts) if pause else None


def status_findings(
    spec: TopicSpec, status: TopicStatus, now: datetime
) -> Iterator[tuple[str, Finding]]:
    """Yield check → what the engine's status says of it now, before the checks are run again.

    A status without a commit says nothing: the checks themselves look at the table.
    """
    if status.committed_at_ms is None or status.shown_phase != "RUNNING":
        return  # the check of the engine reports why
    lag, last = sum(status.lag.values()), from_ms(status.committed_at_ms)
    if spec.checks.max_lag_records is not None:
        yield LAG_CHECK, _judge_lag(spec, lag, last, None)
    if (limits := spec.freshness) is not None:
        seconds = (now - last).total_seconds()
        if seconds > limits.warn_minutes * 60:  # a commit may have no rows: it does not pass
            yield FRESHNESS_CHECK, _stale(spec, limits, last, seconds, lag, None)


def _end_transaction(spec: TopicSpec) -> str:
    """Return how to end a transaction that no producer ends."""
    return (
        "restart the producer with its transactional.id, or end it with Kafka's tool: "
        f"`kafka-transactions.sh find-hanging --topic {spec.name}`, then `abort`"
    )


def check_schema(states: Sequence[schemas.FileState], engine: str | None) -> Finding:
    """Return whether the schema files of a topic are the newest versions of their subjects."""
    facts = {state.subject: f"{state.file}: {state.state}" for state in states}
    different = [state for state in states if state.state != "equal"]
    message = "; ".join(state.what for state in different or states)
    if not different:
        return good(message or "the topic has no schema file", **facts)
    return Finding(message, different[0].remediation, None, "warning", engine, facts)


def check_unknown_fields(spec: TopicSpec, seen: drift.Drift) -> Finding:
    """Return whether records have fields that the schema lacks, and since when."""
    facts = {"records": seen.records, "unknown": ", ".join(field.name for field in seen.unknown)}
    records = count(seen.records, "record")
    if not seen.unknown:
        return good(f"{seen.schema} has every field of {records}", **facts)
    names = ", ".join(f"{field.name} (in {field.records:,})" for field in seen.unknown)
    times = (datetime.fromisoformat(field.since) for field in seen.unknown if field.since)
    return Finding(
        f"of {records} of a sample, some have fields that {seen.schema} lacks, and that have no "
        f"column: {names}",
        f"`topicberg topics infer {spec.name}` shows what to add to the schema",
        min(times, default=None),
        "warning",
        facts=facts,
    )


def _lag_check(spec: TopicSpec) -> Iterator[TableCheck]:
    if spec.checks.max_lag_records is not None:
        yield TableCheck(
            LAG_CHECK,
            "Records in Kafka that the table does not hold yet; at most "
            f"{spec.checks.max_lag_records:,} by the spec (checks.max_lag_records).",
            lambda probe: (
                _paused(paused_by(probe.config, spec.name))
                or check_lag(spec, probe.iceberg, probe.endpoints, probe.engine_fault(spec))
            ),
        )


def lag_of(table: Table, spec: TopicSpec, endpoints: Endpoints) -> int:
    """Return how many records the table does not hold yet, those of open transactions included."""
    end = kafka.high_watermarks(endpoints, spec.name)
    held = wait.held_offsets(table, spec, endpoints, end)
    if end.keys() - held.keys():
        held = {**kafka.beginning_offsets(endpoints, spec.name), **held}
    return sum(max(0, offset - held.get(p, 0)) for p, offset in end.items())


def check_lag(spec: TopicSpec, table: Table, endpoints: Endpoints, engine: str | None) -> Finding:
    """Return whether the lag of the table is within the limit of the spec."""
    lag = lag_of(table, spec, endpoints)
    waiting = _held_back(spec, endpoints) if lag > (spec.checks.max_lag_records or 0) else ""
    return _judge_lag(spec, lag, last_commit(table), engine, waiting)


def _judge_lag(
    spec: TopicSpec, lag: int, last: datetime | None, engine: str | None, waiting: str = ""
) -> Finding:
    """:param waiting: which records wait for the end of a transaction"""
    allowed = spec.checks.max_lag_records or 0
    facts = {"lag_records": lag, "allowed": allowed}
    behind = f"{count(lag, 'record')} behind Kafka; {allowed:,} are allowed"
    if lag <= allowed:
        return good(behind, **facts)
    message = f"the table is {behind}{waiting} (checks.max_lag_records)"
    return Finding(message, _catch_up(spec, waiting), last, "warning", engine, facts)


def _held_back(spec: TopicSpec, endpoints: Endpoints) -> str:
    """Return which records no consumer gets, as a transaction before them is open; or nothing."""
    ends = kafka.high_watermarks(endpoints, spec.name)
    stable = kafka.end_offsets(endpoints, spec.name)
    stuck = {p: stable[p] for p in ends if stable.get(p, ends[p]) < ends[p]}
    if not stuck:
        return ""
    since = [
        moment(from_ms(time)) for time in consumer.first_times(endpoints, spec.name, stuck).values()
    ]
    places = ", ".join(f"partition {p} from offset {offset} on" for p, offset in stuck.items())
    begun = f", begun {min(since)}" if since else ""
    return (
        f" ({sum(ends[p] - offset for p, offset in stuck.items()):,} of them wait for the end of "
        f"an open transaction: {places}{begun})"
    )


def _catch_up(spec: TopicSpec, waiting: str) -> str:
    """Return how to ingest records that wait in Kafka, and maybe for the end of a transaction."""
    if waiting:
        return _end_transaction(spec)
    return (
        f"`topicberg tableflow run {spec.name} --once` brings the table up to date; "
        f"{_see_engine()}, and `topicberg tableflow status {spec.name}` its last commit"
        if settings().own_engine
        else f"inspect the Tableflow of topic {spec.name} in Confluent Cloud"
    )


def _see_engine() -> str:
    """Return where to see whether the engine runs, and why it fails."""
    if settings().deployment == "local":
        return "`topicberg logs tableflow` shows what the engine does"
    return "the log of `topicberg tableflow serve` shows what the engine does"


def last_commit(table: Table) -> datetime | None:
    """Return when rows were added last, as far as snapshots are kept."""
    added = (
        facts.committed_at
        for facts in map(report, summaries.ancestry(table))
        if facts.added_records and facts.operation != Operation.REPLACE.value
    )
    return next(added, None)


def check_freshness(spec: TopicSpec, freshness: Freshness, probe: Probe) -> Finding:
    """Return whether rows were added recently; if not, whether Kafka or the engine is the cause."""
    engine, table, endpoints = probe.engine_fault(spec), probe.iceberg, probe.endpoints
    last = last_commit(table)
    since = last or _oldest_state(table)
    seconds = (probe.now - since).total_seconds()
    if seconds <= freshness.warn_minutes * 60:
        if last is None:
            return good(f"no rows were added since the oldest known state, {age(seconds)} ago")
        facts = {MINUTES: round(seconds / 60, 1)}
        return good(f"the newest rows were added {age(seconds)} ago", **facts)
    lag, head = lag_of(table, spec, endpoints), table.current_snapshot()
    if last is None and not lag and not (head and report(head).total_records):
        return good("the topic has no records yet")
    waiting = _held_back(spec, endpoints) if lag else ""
    return _stale(spec, freshness, since, seconds, lag, engine, waiting)


def _stale(
    spec: TopicSpec,
    freshness: Freshness,
    since: datetime,
    seconds: float,
    lag: int,
    engine: str | None,
    waiting: str = "",
) -> Finding:
    """Return the finding of a table to which no row was added for so many seconds."""
    if lag:
        message = (
            f"the table is stale: {count(lag, 'record')} waiting in Kafka, no row was added for "
            f"{age(seconds)}{waiting}"
        )
        remediation = _catch_up(spec, waiting)
    else:
        message = (
            f"the topic is stale: no record was produced to it for {age(seconds)}; "
            f"{freshness.warn_minutes} min are allowed"
        )
        remediation = (
            f"`topicberg datagen start {spec.name}`"
            if spec.generator
            else f"start the producer of topic {spec.name}; "
            f"owners: {', '.join(spec.owners) or 'none in the spec'}"
        )
    severity: Severity = "error" if seconds > freshness.fail_minutes * 60 else "warning"
    facts = {MINUTES: round(seconds / 60, 1), "lag_records": lag}
    return Finding(message, remediation, since, severity, engine if lag else None, facts)


def _oldest_state(table: Table) -> datetime:
    """Return the time of the oldest snapshot; without one, that of the table's creation."""
    metadata = table.metadata
    times = (state.timestamp_ms for state in metadata.snapshots or metadata.metadata_log)
    return from_ms(min(times, default=metadata.last_updated_ms))


def check_history(
    history: Table | None, topic: Table, allowed_minutes: int, now: datetime, remediation: str
) -> Finding:
    """Return whether the table of every record has read what the topic's own had some time ago.

    Confluent's Tableflow leaves no offsets in its snapshots: then there is nothing to compare.
    """
    if history and (problem := _other_log(history, topic)):
        return Finding(problem, go_on(topic.name()[1]))
    if history and (problem := _other_records(history, topic)):
        return Finding(
            problem,
            "to have what Kafka still has of the records, drop the table "
            f"{'.'.join(history.name())} (rename it to keep its rows), then compute it: "
            f"{remediation}",
        )
    read = committed(history, history.current_snapshot()).offsets if history else {}
    number = log_number(topic)

    def lacks(snapshot: Snapshot) -> bool:
        state = committed(topic, snapshot)
        is_later = any(read.get(p, 0) < offset for p, offset in state.offsets.items())
        return state.log == number and is_later

    newest = summaries.checkpoint(topic)
    snapshots = summaries.ancestry(topic, newest) if newest is not None else ()
    with_offsets = (each for each in snapshots if summaries.END_OFFSETS in summaries.summary(each))
    if not (missing := [*takewhile(lacks, with_offsets)]):
        return good("every record that the topic's own table holds was read")
    since = from_ms(missing[-1].timestamp_ms)
    message = f"records that were added {age((now - since).total_seconds())} ago were not read yet"
    return judge_delay(message, since, allowed_minutes, now, remediation)


def _other_log(history: Table, topic: Table) -> str:
    """Return why a history and the topic's own table are of other logs; empty: they are not."""
    topic_id, other_id = (
        committed(each, each.current_snapshot()).topic_id for each in (topic, history)
    )
    if topic_id and other_id and topic_id != other_id:
        return (
            f"it holds the records of topic id {other_id}, and the topic's own table those of "
            f"{topic_id}: the topic was deleted and created again"
        )
    return ""


def _other_records(history: Table, topic: Table) -> str:
    """Return why a history lacks records of the topic's own table; empty: it does not."""
    topic_id = committed(topic, topic.current_snapshot()).topic_id
    ids = {each.properties.get(summaries.FIRST_TOPIC_ID, topic_id) for each in (history, topic)}
    first, begin = (
        parse_offsets(each.properties.get(summaries.FIRST_OFFSETS, "{}"))
        for each in (history, topic)
    )
    later = [p for p, offset in sorted(first.items()) if offset > begin.get(p, 0)]
    if len(ids) > 1 or not later:
        return ""
    return (
        f"it begins at offset {first[later[0]]:,} of partition {later[0]}, and the topic's own "
        f"table at {begin.get(later[0], 0):,}: records of before are missing"
    )


def check_skipped(spec: TopicSpec, table: Table) -> Finding:
    """Return whether records are left out, as they cannot be decoded, and not acknowledged."""
    skipped, known = (
        int(table.properties.get(key, 0)) for key in (summaries.ROWS_SKIPPED, ACKNOWLEDGED)
    )
    facts: dict[str, Any] = {"rows_skipped": skipped, "acknowledged": known}
    waiting = Waiting.load(table) if skipped > known else Waiting()
    if not (number := min(skipped - known, waiting.count)) > 0:
        return good(
            f"no record was skipped that is not acknowledged or was replayed ({skipped:,} skipped "
            "in total)",
            **facts,
        )
    handling = spec.tableflow.error_handling
    where = {
        "LOG": f"in mode LOG they are in the dead-letter topic {handling.target or DEFAULT_TARGET}",
        "SKIP": "in mode SKIP only the topic still has them, as long as it keeps records",
        "SUSPEND": "the mode is SUSPEND now; those skipped in mode LOG are in the dead-letter "
        "topic of that time, the others only in the topic",
    }
    reasons = sorted(((len(each), why.text) for why, each in waiting.offsets.items()), reverse=True)
    why = "".join(f"; {text}: {number:,}" for number, text in reasons[:MOST_REASONS])
    since_ms = min(waiting.since_ms.values(), default=None)
    repair = f"`topicberg tableflow replay {spec.name}` to read the records again"
    if spec.changes == "rows":
        repair = "let the connector read the rows again with an incremental snapshot"
    return Finding(
        what=f"malformed records that were skipped and are not acknowledged: {number:,}; "
        f"{where[handling.mode]}{why}",
        remediation=f"fix the producer or the schema, then {repair}; or "
        f"`topicberg tableflow acknowledge {spec.name}`",
        since=None if since_ms is None else from_ms(since_ms),
        severity="warning",
        facts={**facts, "error_handling": handling.mode, "waiting": waiting.count},
    )


def acknowledge(table: Table) -> int:
    """Acknowledge the records that were skipped so far; return their number."""
    skipped = table.properties.get(summaries.ROWS_SKIPPED, "0")
    with table.transaction() as transaction:
        transaction.set_properties({ACKNOWLEDGED: skipped})
    return int(skipped)


def check_deletes(spec: TopicSpec, table: Table) -> Finding:
    """Return whether an upsert table has read every delete before Kafka removed it."""
    outage = missed(table.properties)
    if outage is None:
        return good("every delete was read")
    return Finding(
        what=f"the engine was down from {moment(from_ms(outage.since_ms))} to "
        f"{moment(from_ms(outage.until_ms))}, longer than Kafka keeps tombstones "
        "(delete.retention.ms), and the log was compacted meanwhile: the table may still have rows "
        "that were deleted then",
        remediation=f"`topicberg tableflow reread {spec.name}` deletes the rows whose keys the "
        "topic does not have",
        since=from_ms(outage.until_ms),
        severity="warning",
    )


def check_snapshot_reads(table: Table) -> Finding:
    """Return whether rows that a snapshot of the source read may be outdated, or missing."""
    reads = FoldState.load(table.properties).reads
    ignored = (
        f"{count(reads.ignored, 'row')} that a snapshot of the source read before newer changes of "
        "their keys were ignored"
    )
    if restarted := reads.restarted():
        return Finding(
            what=f"{ignored}, but the positions of the source began again since, in "
            f"{'partition' if len(restarted) == 1 else 'partitions'} "
            f"{', '.join(map(str, restarted))}: they may have been newer",
            remediation="run an incremental snapshot of the source's table, or let the connector "
            "write to a new topic",
            severity="warning",
        )
    if reads.doubtful:
        return Finding(
            what=f"{count(reads.doubtful, 'row')} that a snapshot of the source read may be older "
            "than what they replaced, or of deleted rows: their positions in the source do not "
            "tell, or the deletions are not known any more",
            remediation="run an incremental snapshot of the source's table, and compare its keys "
            "with those of the table",
            severity="warning",
        )
    return good(ignored if reads.ignored else "no snapshot read a row before a newer change")


def check_identity(table: Table) -> Finding:
    """Return whether the connector had the values of all columns of all changed rows."""
    lacking = FoldState.load(table.properties).lacking
    if not lacking:
        return good("every change had the values of all columns")
    return Finding(
        what=f"the connector did not have some values of {', '.join(lacking)}: PostgreSQL omits "
        "large values (TOAST) that a change leaves as they are; the table has the values of the "
        "rows before, and a row that it never had would be malformed",
        remediation="run `ALTER TABLE … REPLICA IDENTITY FULL` in the source; for a numeric column "
        "the omitted value is null, which cannot be distinguished",
        severity="warning",
    )
