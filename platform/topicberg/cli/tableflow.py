"""``topicberg tableflow``: the engine's state, one run of it, and maintenance."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topicberg.checks.finding import from_ms, moment
from topicberg.cli.output import (
    AsJson,
    Yes,
    cell,
    complain,
    confirm,
    described_fix,
    echo,
    echo_json,
    load_endpoints,
    print_table,
    report_waiting,
    settings,
    warn,
)
from topicberg.errors import SpecError, TopicbergError
from topicberg.security.redaction import log_to_stderr
from topicberg.wording import count, listed

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from rich.text import Text

    from topicberg.endpoints import Endpoints
    from topicberg.kafka.schemas import FileState
    from topicberg.settings import Settings
    from topicberg.tableflow.layout.waiting import WaitingChange
    from topicberg.tableflow.service.status import TopicStatus
    from topicberg.topics import TopicSpec
    from topicberg.topics.discovery import FoundTopic

Topic = Annotated[str, typer.Argument(help="name of the topic")]
MANY_FILES = 100
"""Files of one commit that are worth a note."""
app = typer.Typer(no_args_is_help=True)


@app.callback(help="Topics into Iceberg tables.")
def require_own_engine() -> None:
    """:raises TopicbergError: Confluent's Tableflow writes the tables, not topicberg's engine"""
    if not settings().own_engine:
        raise TopicbergError(
            "these commands are for topicberg's own engine; here Confluent's Tableflow writes the "
            "tables",
            hint="run `topicberg deploy plan` to see its topics, open Confluent Cloud to see their "
            "state, or set TOPICBERG_TABLEFLOW=topicberg to use the engine",
        )


def enable(
    topic: Topic,
    table_formats: Annotated[
        str | None, typer.Option(help="ICEBERG, or ICEBERG,DELTA", show_default="the spec's")
    ] = None,
    retention_ms: Annotated[int | None, typer.Option(help="how long snapshots are kept")] = None,
    data_retention_ms: Annotated[int | None, typer.Option(help="how long rows are kept")] = None,
    error_handling: Annotated[
        str | None, typer.Option(help="SUSPEND, SKIP or LOG", show_default="the spec's")
    ] = None,
    log_target: Annotated[
        str | None, typer.Option(help="the dead-letter topic of LOG", show_default="error_log")
    ] = None,
    write_mode: Annotated[
        Literal["append", "upsert"] | None, typer.Option(help="for a topic without a spec")
    ] = None,
    as_in_spec: Annotated[
        bool, typer.Option("--as-in-spec", help="end what earlier commands set")
    ] = False,
) -> None:
    """Materialize a topic, with or without a spec; the engine begins within seconds.

    What earlier commands set stays, unless an option sets it again.
    """
    from topicberg.tableflow.service import control
    from topicberg.topics.requests import paused_by

    config = settings()
    mode = {"mode": error_handling or "LOG"} if error_handling or log_target else {}
    changes = {
        "table_formats": table_formats.split(",") if table_formats else None,
        "retention_ms": retention_ms,
        "data_retention_ms": data_retention_ms,
        "error_handling": mode | ({"target": log_target} if log_target else {}) or None,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    discovered = _find(topic, config) if control.needs_look(config, topic) else None
    spec = control.enable(
        config, topic, given, write_mode, discovered=discovered, command=True, as_in_spec=as_in_spec
    )
    if discovered is not None:
        echo(f"{topic} has no spec: {described(spec)}")
    echo(
        f"{topic}: Tableflow is enabled; run `topicberg tableflow status {topic}` to see its state"
    )
    if (paused := paused_by(config, topic)) is not None:
        warn(str(paused.error))


def described(spec: TopicSpec) -> str:
    """Return what the topic is taken for, by what Kafka and the registry have of it."""
    changes = "changes of a database's table (Debezium), " if spec.changelog else ""
    keys = "no key column" if spec.key.format == "none" else f"keys: {spec.key.described}"
    return f"{changes}values: {spec.value_schema.described}, {keys}, write mode {spec.write_mode}"


def _find(topic: str, config: Settings) -> FoundTopic | None:
    """Return what Kafka and the registry have of a topic without a spec; None: it has a table.

    :raises SpecError: there is no such topic
    :raises TopicbergError: a service does not answer, or refuses
    """
    from topicberg.iceberg.tables import find_table
    from topicberg.kafka.discovery import find_topic
    from topicberg.topics.requests import last_request

    endpoints = load_endpoints(config)
    table = config.topics_namespace, topic
    if last_request(config, topic).found and find_table(endpoints.catalog(config), table):
        return None
    if (discovered := find_topic(topic, endpoints)) is None:
        raise SpecError(
            f"topic {topic} does not exist: it has no spec, and Kafka does not have it",
            hint=f"create it first, or run `topicberg topics new {topic}` to write a spec; run "
            "`topicberg topics list` to see topics with a spec",
        )
    return discovered


def disable(
    topic: Topic,
    drop_table: Annotated[
        bool, typer.Option("--drop-table", help="also delete the table and its files")
    ] = False,
    yes: Yes = False,
) -> None:
    """Stop materializing a topic. Its table is kept; enabling the topic again resumes it."""
    from topicberg.tableflow.service import control
    from topicberg.tableflow.table.table import drop
    from topicberg.tableflow.upsert import keys

    config = settings()
    spec = control.find_topic(config, topic)
    name = ".".join(spec.table_identifier(config))
    if drop_table:
        confirm(f"Delete table {name} with all its files and snapshots?", yes=yes)
    control.disable(config, topic)
    echo(f"{topic}: Tableflow is disabled")
    if drop_table:
        dropped = drop(load_endpoints(config).catalog(config), spec.table_identifier(config))
        control.table_dropped(config, topic)
        keys.forget(config.state_dir, topic)
        echo(f"{name} is deleted" if dropped else f"{name} does not exist")


def pause(topic: Topic) -> None:
    """Stop reading a topic until it is resumed; its table, settings and catalogs stay as they are.

    The batch that is read now is not committed. Kafka deletes records and tombstones by the topic's
    retention meanwhile.
    """
    from topicberg.tableflow.service import control
    from topicberg.tableflow.values.skips import current_user
    from topicberg.topics import requests

    config = settings()
    control.require_enabled(config, topic)
    echo(str(requests.pause(config, topic, current_user()).error))


def resume(topic: Topic) -> None:
    """Let a paused topic continue, or a suspended one try again now.

    A suspended topic also tries again by itself every 30 seconds. If it is not paused, what other
    writers did to the rows of its table is accepted.
    """
    from topicberg.tableflow.service import control
    from topicberg.tableflow.table.foreign_commits import changed_by_others
    from topicberg.topics import requests

    config = settings()
    if (paused := requests.end_pause(config, topic)) is not None:
        is_enabled = topic in control.enabled_topics(config)
        continues = "the engine continues where the table ends" if is_enabled else "it is disabled"
        echo(f"{topic}: {continues}; it was {paused}")
        return
    accepted: list[str] = []
    with suppress(TopicbergError, OSError):  # then the engine cannot go on, and reports why
        spec, table, _ = _open(topic)
        accepted = [changed.accepted(spec) for changed in changed_by_others(table, spec)]
    control.resume(config, topic)
    echo(f"{topic} is not paused: the engine tries again now what failed")
    warn(f"{topic}: {rows}" for rows in accepted)


def skip(
    topic: Topic,
    partition: Annotated[int, typer.Argument(help="of the record")],
    offset: Annotated[int, typer.Argument(help="of the record")],
    reason: Annotated[str, typer.Option(help="why; recorded in the table")] = "not given",
) -> None:
    """Skip one record, in any error mode: the last resort if a topic cannot get past it.

    Of a batch of records that cannot be read, all from this one on are skipped.
    The table's properties record who did so, when and why. It cannot be undone.
    """
    from topicberg.tableflow.service import control
    from topicberg.tableflow.values import skips

    spec, table, endpoints = _open(topic)
    record = f"{topic}: the record of partition {partition}, offset {offset}"
    if not skips.request(table, endpoints, spec.name, (partition, offset), reason):
        echo(f"{record} is skipped already")
        return
    echo(f"{record} is left out of the table")
    with suppress(TopicbergError):  # the topic is not enabled: a run in the foreground reads it
        control.resume(settings(), topic)


def reread(topic: Topic, yes: Yes = False) -> None:
    """Make a table equal to its topic again.

    If another writer replaced rows as they were earlier, the table is set to the snapshot before.
    Then the rows of an upsert table whose keys the topic no longer has are deleted: the table may
    have missed tombstones, which Kafka keeps only for `delete.retention.ms`. The topic is read once
    from its beginning; readers of the table see one commit.
    """
    from topicberg.tableflow.table.foreign_commits import changed_by_others
    from topicberg.tableflow.table.reread import require_upsert, reread
    from topicberg.tableflow.values.logs import ended_logs

    spec, table, endpoints = _open(topic)
    name, changed = ".".join(table.name()), next(changed_by_others(table, spec), None)
    if changed is None:
        require_upsert(spec)
        question = f"Delete the rows of {name} whose keys the topic lacks?"
        if logs := ended_logs(table):
            ids = listed([str(each.topic_id) for each in logs], 3)
            warn(f"{name} has rows of former logs (topic id {ids}), which are compared as well")
    else:
        question = f"Set {name} to snapshot {changed.before.snapshot_id}? {changed.what}"
    confirm(question, yes=yes)
    done = reread(spec, table, endpoints, settings())
    if done.restored is not None:
        echo(f"{name} is set to snapshot {done.restored}; the engine continues from there")
    if done.records or done.restored is None:
        echo(f"{topic}: {count(done.records, 'record')} read, {count(done.rows, 'row')} deleted")


def upgrade(topic: Topic, yes: Yes = False) -> None:
    """Upgrade a topic's table to format version 3 of Iceberg: deletion vectors, row lineage.

    It cannot be undone, and some readers cannot read the table afterwards. The table is compacted
    first, while the engine runs.
    """
    from topicberg.catalogs.snowflake.names import table_path
    from topicberg.checks.catalogs import describe_needs, describe_steps
    from topicberg.checks.check import CheckedTable
    from topicberg.iceberg.commits import NEWEST, lacks_snapshot, upgrade_table
    from topicberg.iceberg.maintenance import maintain, topic_policy
    from topicberg.iceberg.maintenance.conflicts import retried
    from topicberg.iceberg.position_deletes import trim_deletes
    from topicberg.iceberg.readers import EVERY, configured

    config = settings()
    spec, table, endpoints = _open(topic)
    name = ".".join(table.name())
    checked = CheckedTable(spec.table_name, spec.table_identifier(config))
    path = table_path(config, checked.snowflake_name, checked.snowflake_source)
    version = f"{name} is of format version {NEWEST}"
    if table.format_version >= NEWEST:
        version += " already"
        if not lacks_snapshot(table):
            echo(version)
            return
        # Another writer upgraded it, or this command was stopped.
    else:
        lost = [reader for reader in EVERY if reader.reason(table, NEWEST)]
        used = ", ".join(reader.name for reader in configured(config) if reader in lost)
        warn(
            f"{name}: a format version cannot be lowered, so an upgrade to {NEWEST} is final. "
            "Readers that cannot read the table afterwards: "
            + (", ".join(reader.name for reader in lost) or "none that topicberg knows")
            + (f" (this deployment uses {used})" if used else "")
            + f". {describe_needs(path, config)}. Check every other reader before you continue."
        )
        confirm(f"Upgrade {name} to format version {NEWEST}?", yes=yes)
        policy = replace(topic_policy(spec, table), compact_after=timedelta(0))
        report = maintain(spec, endpoints, config, policy)
        echo(f"{name}: compacted {count(report.files_compacted, 'data file')}")
        upgrade_table(table.refresh())
    retried(name, lambda: trim_deletes(table.refresh()))
    echo(version)
    echo(f"for Snowflake: {describe_steps(path, checked, config)}")
    if spec.table.format_version < NEWEST:
        echo(
            f"set `table.format_version: {NEWEST}` in the spec of {topic}: without it the table is "
            "of version 2 again if it is dropped and created again"
        )


def _open(
    topic: str, *, create: bool = False, yes: bool = False
) -> tuple[TopicSpec, Table, Endpoints]:
    """:raises SpecError: the topic has no table"""
    from topicberg.iceberg.tables import find_table
    from topicberg.tableflow.service.control import find_topic
    from topicberg.tableflow.service.engine import Ingestor

    config = settings()
    spec, endpoints = find_topic(config, topic), load_endpoints(config)
    if (table := find_table(endpoints.catalog(config), spec.table_identifier(config))) is None:
        if create:
            confirm(f"Topic {topic} has no table. Create a new one?", yes=yes)
            return spec, Ingestor(spec, endpoints, config).table(), endpoints
        raise SpecError(
            f"topic {topic} has no table yet",
            hint=f"run `topicberg tableflow enable {topic}` to let the engine create it",
        )
    return spec, table, endpoints


def _with_history(
    spec: TopicSpec, table: Table, endpoints: Endpoints
) -> list[tuple[Table, TopicSpec]]:
    """Return the topic's table and that of its history, if it has one, with their specs."""
    from topicberg.tableflow.service.history import find_history

    return [(table, spec), *filter(None, [find_history(spec, endpoints, settings())])]


def continue_(
    topic: Topic,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="beginning, end, a time, or a YAML or JSON file with the offset of each partition",
            show_default="after the table's last records, if the log has them",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="compare, and change nothing")] = False,
    yes: Yes = False,
) -> None:
    """Keep the table of a topic whose log is another one, and go on with that.

    The topic was created again, moved to another cluster, put back or truncated, or lost records
    before they were read. The end of the table is compared with the log, by time and content, and
    what is lost or would repeat is shown by partition. The decision is recorded in the table. With
    `--from`, a table that does not exist any more is created again, and begins there.
    """
    from topicberg.tableflow.service import continuing, control

    spec, table, endpoints = _open(topic, create=since is not None and not dry_run, yes=yes)
    for each, of_spec in _with_history(spec, table, endpoints):
        name = ".".join(each.name())
        compared = continuing.compare(
            of_spec, each, endpoints, lambda number: warn(f"{number:,} offsets searched")
        )
        if compared.is_same and since is None:
            echo(f"{name}: its log is the one that it was read from; there is nothing to decide")
            continue
        starts, decision = compared.choose(since)
        print_table(continuing.COLUMNS, compared.described(starts or {}), title=name)
        warn(compared.warnings(starts or {}))
        if starts is None:
            raise SpecError(
                f"topic {topic}: where its log continues after the table's end cannot be proved",
                hint="choose it: `--from beginning`, `end`, a time, or a file with offsets",
            )
        if not dry_run:
            confirm(f"Let {name} go on there, {decision}?", yes=yes)
            compared.go_on(starts, decision)
            echo(f"{name} continues {decision}")
    with suppress(TopicbergError):  # the topic is not enabled: a run in the foreground reads it
        if not dry_run:
            control.resume(settings(), topic)


def replay(
    topic: Topic,
    since: Annotated[
        datetime | None, typer.Option(help="only records of this time in Kafka (UTC), or later")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="only records with this text in their reason", show_default="all")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would become of the records")
    ] = False,
) -> None:
    """Read the records again that were skipped or dead-lettered, once what was wrong is fixed.

    They are read from the topic, else from the dead letters, with the schemas and the spec of now.
    What can be decoded is inserted once, whatever is killed; the rest keeps waiting. In write mode
    upsert, no record replaces a later one of its key, or brings a deleted key back.
    """
    spec, table, endpoints = _open(topic)
    since = since and since.replace(tzinfo=since.tzinfo or UTC)
    since_ms = None if since is None else int(since.timestamp() * 1000)
    for _, each in _with_history(spec, table, endpoints):
        _replay(each, endpoints, reason, since_ms, is_dry=dry_run)


def _replay(
    spec: TopicSpec, endpoints: Endpoints, reason: str, since_ms: int | None, *, is_dry: bool
) -> None:
    """Replay the records of one table."""
    from topicberg.tableflow.service.replay import FAILED, OUTCOMES, Replay

    done = Replay(spec, endpoints, settings(), reason, since_ms, is_dry, partial(echo, err=True))
    done.run()
    name = ".".join(spec.table_identifier(settings()))
    if not done.counts:
        such = "such " if reason or since_ms is not None else ""
        echo(f"{name}: no {such}record waits")
        return
    rows: list[tuple[str, str, str | Text]] = [
        (outcome, f"{done.counts[outcome]:,}", why) for outcome, why in OUTCOMES.items()
    ]
    rows += [("", f"{number:,}", cell(why)) for why, number in done.failed.most_common()]
    if done.unrecorded:
        rows.append(("", f"{done.unrecorded:,}", "skipped before offsets were recorded"))
    shown = [row for row in rows if row[1] != "0"]
    print_table(("result", "records", "meaning"), shown, title=name)
    if is_dry:
        echo("nothing was changed")
    elif done.counts[FAILED]:
        echo(f"fix what is wrong with these, then run `topicberg tableflow replay {spec.name}`")


def acknowledge(topic: Topic) -> None:
    """Acknowledge the records that were left out, so that the check skipped_rows passes again."""
    from topicberg.checks import topic as checks

    number = checks.acknowledge(_open(topic)[1])
    echo(f"{topic}: acknowledged {count(number, 'record')} left out of the table")


def run(
    topic: Topic,
    once: Annotated[
        bool, typer.Option("--once", help="stop when everything the topic holds now is committed")
    ] = False,
) -> None:
    """Materialize a topic in the foreground.

    Safe beside the stack's own engine: of two commits, the second plans its batch again.
    """
    from topicberg.tableflow.service.control import find_topic
    from topicberg.tableflow.service.engine import run_once
    from topicberg.tableflow.service.pool import Pool
    from topicberg.topics.requests import require_unpaused

    config = settings()
    require_unpaused(config, topic)
    spec, endpoints = find_topic(config, topic), load_endpoints(config)
    log_to_stderr(logging.WARNING, levels={"topicberg": logging.INFO})
    if once:
        done = run_once(spec, endpoints, config)
        echo(f"{topic}: {count(done.rows, 'row')} committed, snapshot {done.snapshot_id}")
        return
    pool = Pool(endpoints, config)
    pool.add(spec)
    pool.start()
    try:
        threading.Event().wait()
    finally:
        pool.stop(0)


def serve(
    metrics_port: Annotated[
        int | None, typer.Option(help="port for OpenMetrics", show_default="off")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="address to listen on for it; in a pod, 0.0.0.0")
    ] = "127.0.0.1",
) -> None:
    """Run an engine until it is stopped; all engines share the enabled topics.

    The local stack includes one.
    """
    from topicberg.alerts.dagster_processes import dagster_watcher
    from topicberg.tableflow.service.service import main

    main(
        metrics_port,
        metrics_host,
        lambda engine: dagster_watcher(engine.config, engine.is_healthy).start(),
    )


def maintain(
    topic: Topic,
    now: Annotated[
        bool, typer.Option("--now", help="compact and look for orphan files without waiting")
    ] = False,
    yes: Yes = False,
) -> None:
    """Compact the topic's table, expire its snapshots and rows, remove orphan files, as due.

    Safe beside the engine and its own maintenance. A shorter retention of rows begins with it.
    """
    from topicberg.iceberg.maintenance import maintain, retention, topic_policy

    spec, table, endpoints = _open(topic)
    if retention.is_shorter(spec, table):
        question = f"Delete rows that are older than {retention.described(spec)} from now on?"
        confirm(f"{'.'.join(table.name())}: {question} It cannot be undone", yes=yes)
        retention.agree(table, spec)
    policy = topic_policy(spec, table)
    if now:
        policy = replace(policy, compact_after=timedelta(0), daily=timedelta(0))
    report = maintain(spec, endpoints, settings(), policy)
    before, after = vars(report.before), vars(report.after)
    rows = ((name.replace("_", " "), f"{before[name]:,}", f"{after[name]:,}") for name in before)
    print_table(("", "before", "after"), rows, title=f"{report.table}, {report.seconds:.1f} s")
    done = [f"{count:,} {change}" for change, count in report.counts.items() if count]
    echo(", ".join(done).replace("_", " ") or "nothing was due")
    echo(f"{step}: other commits came first, the next run does it" for step in report.postponed)


def status(
    topic: Annotated[str | None, typer.Argument(help="one topic; all by default")] = None,
    as_json: AsJson = False,
) -> None:
    """Show phase, error handling, counters and error of each topic."""
    from topicberg.endpoints import is_stopped
    from topicberg.tableflow.service import control
    from topicberg.tableflow.service.status import OBSERVED_SECONDS, observed_at, read_status

    config = settings()
    enabled, wrong = control.usable_topics(config)
    listed = {*enabled, *wrong}
    if topic and topic not in listed:
        control.find_topic(config, topic)
    names = [topic] if topic else sorted(listed)
    states = [read_status(config, name) for name in names]
    engines = _engines(names, config)
    for state in states:
        state.engine = engines.get(state.topic, state.engine)
        if state.topic in enabled:  # the engine may not have read a command yet
            state.error_handling = enabled[state.topic].tableflow.error_handling.mode
    stopped = is_stopped(config)
    reported_at = observed_at(config)
    ended = stopped or reported_at is None or abs(time.time() - reported_at) > OBSERVED_SECONDS
    phases = {
        state.topic: state.shown_phase if state.topic in listed else "DISABLED" for state in states
    }
    if ended:  # each status is as the engine left it, unless an engine elsewhere has the topic
        left = {name for name, phase in phases.items() if phase == "RUNNING"} - engines.keys()
        phases |= dict.fromkeys(left, "STOPPED")
    specs = [enabled[name] for name in names if name in enabled]
    schemas, unknown = compare_schemas(specs, config)
    waiting, not_compared = waiting_changes(specs, config)
    if as_json:
        echo_json(
            [
                state.model_dump(mode="json")
                | {
                    "phase": phases[state.topic],
                    "schemas": [file.document for file in schemas if file.topic == state.topic],
                    "waiting": [
                        asdict(change) for change in waiting if change.topic == state.topic
                    ],
                }
                for state in states
            ]
        )
        return
    # A terminal of 80 columns must show what matters; the snapshot is in --json.
    several = len({state.engine for state in states if state.engine}) > 1
    numbers = ("read", "written", "skipped", "dead-lettered", "waiting")
    columns = ("topic", "phase", "errors", *numbers, "engine")
    rows: list[tuple[str | Text, ...]] = [
        (
            cell(state.topic),
            phases[state.topic],
            state.error_handling or "",
            f"{state.records_read:,}",
            f"{state.rows_committed:,}",
            f"{state.records_skipped:,}",
            f"{state.records_dead_lettered:,}",
            f"{sum(state.lag.values()):,}" if state.lag else "-",
            cell(state.engine or ""),
        )
        for state in states
    ]
    shown = slice(None if several else -1)
    print_table(
        columns[shown], [row[shown] for row in rows], caption=_caption(states), unbroken="phase"
    )
    for state in states:
        if state.topic in wrong:
            then = "the last valid one stays in use" if state.engine else "it is not ingested"
            complain(f"{state.topic}: the spec is invalid, {then}: {wrong[state.topic]}")
        if state.error_message:
            complain(f"{state.topic}: {state.error_message}")
        complain(
            f"{state.topic}: {failing.format}: {failing.error_message}"
            for failing in state.failing_table_formats
        )
        warn(f"{state.topic}: {message}" for message in _notes(state))
    warn(described_fix(schema) for schema in schemas if schema.state != "equal")
    if stopped:
        warn("the local stack is stopped: run `topicberg up` to start it")
    elif ended and reported_at is not None and "STOPPED" in phases.values():
        last = moment(from_ms(int(reported_at * 1000)))
        warn(
            f"no engine runs on this machine: one read the topics last at {last}\n  → run "
            "`topicberg up` to start that of the local stack, or `topicberg tableflow serve` "
            "elsewhere"
        )
    report_waiting(waiting, not_compared)
    if unknown:
        echo(f"the schema files are not compared with the registry: {unknown}", err=True)


def _caption(states: list[TopicStatus]) -> str:
    """Return what the columns are, and since when they count."""
    times = [state.counting_since_ms for state in states if state.counting_since_ms is not None]
    since = f"since {moment(from_ms(min(times)))}" if times else "since the engine got the topic"
    if len({time // 60_000 for time in times}) > 1:
        since += " (the first topic; counting_since_ms of --json has each)"
    return (
        f"{since}: records read; rows written; records skipped, and records dead-lettered, which "
        "are not in the table. waiting: offsets in Kafka that are not committed (-: not known). "
        "errors: how malformed records are handled"
    )


def _engines(names: list[str], config: Settings) -> dict[str, str]:
    """Return topic → the engine that Kafka says has it; empty if Kafka does not say."""
    from topicberg.kafka.group import holders
    from topicberg.tableflow.values.identity import engine_group

    try:
        return holders(load_endpoints(config), engine_group(config), names)
    except TopicbergError:
        return {}


def compare_schemas(specs: list[TopicSpec], config: Settings) -> tuple[list[FileState], str | None]:
    """Return how the schema files compare with the registry, or why that is not known."""
    from topicberg.clients.liveness import SECONDS, answers_http
    from topicberg.kafka.schemas import compare_all

    try:
        endpoints = load_endpoints(config)
        # The client of the local one tries again for a minute.
        check = answers_http(f"{endpoints.schema_registry}/schemas/types")
        if specs and config.deployment == "local" and (why := check(SECONDS)) is not None:
            return [], f"the schema registry does not answer: {why}"
        return compare_all(specs, endpoints, config), None
    except TopicbergError as error:
        return [], str(error)


def waiting_changes(
    specs: list[TopicSpec], config: Settings
) -> tuple[list[WaitingChange], list[str]]:
    """Return the changes of the specs that are not applied, and why others are not known."""
    from topicberg.tableflow.layout.waiting import find_waiting

    try:
        return find_waiting(specs, load_endpoints(config), config)
    except TopicbergError:
        return [], []  # as for the schemas, with which it is reported


def _notes(state: TopicStatus) -> Iterator[str]:
    """Yield what concerns the topic's operator and is not a failure."""

    def at(milliseconds: int) -> str:
        return moment(from_ms(milliseconds))

    if state.paused:
        yield str(state.paused.error)
    if state.activity:
        yield state.activity
    if state.rows_skipped:
        replayed = f", {state.rows_replayed:,} of them replayed" if state.rows_replayed else ""
        yield (
            f"{count(state.rows_skipped, 'record')} skipped or dead-lettered since the table was "
            f"created{replayed}; the check skipped_rows says which are not acknowledged"
        )
    yield from (
        f"partition {partition}: records from offset {transaction.offset} on wait for the end of a "
        f"transaction that has been open since {at(transaction.since_ms)}"
        for partition, transaction in state.open_transactions.items()
    )
    yield from (
        f"partition {partition}: the log no longer has the last record that the table holds, "
        f"offset {offset}, as it was compacted or deleted: if the log was replaced meanwhile, that "
        "cannot be noticed"
        for partition, offset in state.unproven.items()
    )
    if missed := state.missed_deletes:
        yield (
            f"deletes between {at(missed.since_ms)} and {at(missed.until_ms)} may be missing: the "
            f"engine was not running for longer than the topic's delete.retention.ms; run "
            f"`topicberg tableflow reread {state.topic}` to delete the rows"
        )
    if state.keys is not None and state.keys.rebuilt_at_ms is not None:
        yield (
            f"keys are compared by their decoded value ({', '.join(state.keys.columns)}): the "
            f"index of keys was rebuilt at {at(state.keys.rebuilt_at_ms)}; rows deleted then, as a "
            f"newer row has their key: {state.keys.rows_removed:,}"
        )
    if state.files_of_commit >= MANY_FILES:
        yield (
            f"the newest commit added {state.files_of_commit:,} data files, one for each partition "
            "of its rows: fewer or coarser fields in `table.partitioning` of a new table, or a "
            "longer `commit_interval_seconds`, make fewer"
        )
    for ended in state.logs[-1:]:
        yield (
            f"{ended.by} let the table go on with another log at {at(ended.at_ms)}, "
            f"{ended.decision}: {count(len(state.logs), 'log')} ended before it"
        )
    yield from (
        f"partition {skip.partition}, offset {skip.offset}: skipped by {skip.by} at "
        f"{at(skip.at_ms)}, reason: {skip.reason}"
        for skip in state.skip_requests
    )


for _command in (
    *(enable, disable, status, pause, resume, skip, reread, replay, acknowledge),
    *(upgrade, run, serve, maintain),
):
    app.command()(_command)
app.command("continue")(continue_)
