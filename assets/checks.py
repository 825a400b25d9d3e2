"""Asset checks: for every table those of :mod:`topicberg.checks`, and those of its author.

The checks of one asset are one operation, which loads its table once. They run every few minutes in
the job ``check_tables``, and in each run that a sensor asks for; there, rules that are not blocking
read no rows. A blocking check that fails keeps what is downstream from being computed.

A check of one's own is a function: see docs/checks.md.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.derived import DataCheck, DerivedTable, derivation, with_parameters
from assets.lake import Lake
from assets.metadata import markdown
from assets.partitions import asked_window, partition_keys, time_partitions
from assets.retries import retried
from assets.tables import LakeTable, history_lake_table, topic_table
from resources import Lakehouse, Snowflake, Spark
from topicberg.errors import TopicbergError
from topicberg.iceberg.hours import Hours
from topicberg.security.redaction import redact
from topicberg.security.text import markdown_line
from topicberg.settings import Settings
from topicberg.topics import Rules, TopicSpec
from topicberg.transforms.derived import read_window

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from topicberg.checks.finding import Finding
    from topicberg.checks.rules import Passed
    from topicberg.endpoints import Endpoints
    from topicberg.tableflow.status import TopicStatus

KIND = "topicberg/kind"
"""Tag of runs: what they are for."""
REGISTRATION, COMPUTATION = "registration", "computation"
"""Kinds of runs that sensors ask for."""
MEND, SINCE, CAUSE = "mend", "since", "caused by"
"""Metadata of a check that failed; the alerts read them."""
_RULES = ("not_null", "accepted_values", "ranges", "unique")


@dataclass(frozen=True)
class TableCheck:
    """A check of one asset of a table."""

    name: str
    description: str
    evaluate: "Callable[[Probe], Finding]"
    blocking: bool = False


class Probe:
    """What the checks of one table look at; each thing is fetched once."""

    def __init__(
        self,
        table: LakeTable,
        lakehouse: Lakehouse,
        snowflake: Snowflake,
        instance: dg.DagsterInstance | None,
        *,
        reads_rows: bool = True,
    ) -> None:
        """:param reads_rows: False: rules that are not blocking go by statistics only"""
        self.reads_rows = reads_rows
        self.table = table
        self.lakehouse = lakehouse
        self.snowflake = snowflake
        self.now = datetime.now(UTC)
        self._instance = instance
        self._statuses: dict[str, TopicStatus | None] = {}

    @cached_property
    def endpoints(self) -> "Endpoints":
        return self.lakehouse.endpoints()

    @cached_property
    def iceberg(self) -> "Table":
        """:raises NoSuchTableError: it was not made yet"""
        return self.load(self.table.identifier)

    def load(self, identifier: tuple[str, str]) -> "Table":
        return self.endpoints.catalog(self.lakehouse.config).load_table(identifier)

    def find(self, identifier: tuple[str, str]) -> "Table | None":
        """None: it was not made yet, or dropped."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.load(identifier)
        except NoSuchTableError:
            return None

    def status(self, spec: TopicSpec) -> "TopicStatus | None":
        """What Tableflow says of a topic; Confluent's is asked over the network."""
        if spec.name not in self._statuses:
            self._statuses[spec.name] = self.lakehouse.status(spec)
        return self._statuses[spec.name]

    def engine_fault(self, spec: TopicSpec) -> str | None:
        """The check that explains why the topic's engine does not go on, if it does not."""
        try:
            status = self.status(spec)
            faulty = status is not None and bool(status.error_message)
        except TopicbergError:  # that check says why
            faulty = True
        key = _key(topic_table(spec, self.lakehouse.config), "iceberg")
        return f"{key}:tableflow" if faulty else None

    def last(self, check: str) -> dg.AssetCheckEvaluation | None:
        """The last evaluation of another check of the same asset."""
        if self._instance is None:
            return None
        return last_evaluation(self._instance, dg.AssetCheckKey(self.table.key("iceberg"), check))


def last_evaluation(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey
) -> dg.AssetCheckEvaluation | None:
    return last_evaluations(instance, [key]).get(key)


def last_evaluations(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, dg.AssetCheckEvaluation]:
    """Check → its last evaluation that came to an end."""
    return {key: found for key, (found, _) in last_evaluated(instance, keys).items()}


def last_evaluated(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, tuple[dg.AssetCheckEvaluation, datetime]]:
    """The same, each with its time; one query for all that are not under way."""
    from dagster._core.storage.asset_check_execution_record import (
        COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as COMPLETED,
    )

    storage = instance.event_log_storage
    found = {}
    for key, newest in storage.get_latest_asset_check_execution_by_key(list(keys)).items():
        if key not in keys:  # it finds every check of one of these names on one of these assets
            continue
        records = [newest]
        if newest.status not in COMPLETED:
            records = [*storage.get_asset_check_execution_history(key, limit=1, status=COMPLETED)]
        for record in records:
            if record.event is not None and record.event.dagster_event is not None:
                at = datetime.fromtimestamp(record.event.timestamp, UTC)
                found[key] = record.event.dagster_event.asset_check_evaluation_data, at
    return found


def lake_checks(lake: Lake) -> Iterator[dg.AssetChecksDefinition]:
    """Every check of every table."""
    for table, system, checks in table_checks(lake):
        yield _definition(table, system, checks)
    for derived in lake.derived:
        for check in derived.checks:
            yield data_check(check, derived, lake)


def table_checks(lake: Lake) -> Iterator[tuple[LakeTable, str, list[TableCheck]]]:
    """Table, system (the first part of the asset's key), and the checks of that asset."""
    for spec in lake.materialized.values():
        table = topic_table(spec, lake.config)
        config, named = lake.config, f"`checks:` in {lake.config.topics_dir.name}/{spec.name}.yaml"
        checks = [*_topic_checks(spec), *_rows_checks(spec.checks, spec, table, named)]
        yield topic_table(spec, config), "iceberg", checks
    for spec in lake.histories.values():
        yield history_lake_table(spec), "iceberg", [*_history_checks(spec)]
    for spec, view in lake.upsert_views:
        yield view, "iceberg", [*_view_checks(spec, view)]
    for derived in lake.derived:
        table = lake.table(derived)
        named = f"`rules=Rules(…)` of {derived.name} in {derived.file}"
        checks = [_up_to_date(derived, lake), *_rows_checks(derived.rules, None, table, named)]
        yield table, "iceberg", checks
    for table in lake.tables():
        yield table, "glue", [_pointer(table, derived=table.name in lake.derived_by_name)]
        yield table, "snowflake", [_parity(table)]


class CheckKeys:
    """The keys of the checks of all tables, chosen by what they are for."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known = [
            (table.name, system, check, dg.AssetCheckKey(table.key(system), check.name))
            for table, system, checks in table_checks(lake)
            for check in checks
        ]

    def all(self) -> list[dg.AssetCheckKey]:
        """Every check of :func:`table_checks`."""
        return [key for *_, key in self._known]

    def of_runs(self, names: Collection[str]) -> list[dg.AssetCheckKey]:
        """The checks that belong into each run that computes or registers these tables."""
        keys = [key for name, *_, key in self._known if name in names]
        for derived in self._lake.derived:
            if derived.name in names:
                asset = self._lake.table(derived).key("iceberg")
                keys += [dg.AssetCheckKey(asset, check.__name__) for check in derived.checks]
        return keys

    def blocking(self, name: str) -> list[dg.AssetCheckKey]:
        """The checks of a table that keep runs from computing with it."""
        return [
            key
            for table, system, check, key in self._known
            if table == name and system == "iceberg" and check.blocking
        ]


# --- what there is to check ---


def _topic_checks(spec: TopicSpec) -> Iterator[TableCheck]:
    def engine(probe: Probe) -> "Finding":
        from topicberg.checks.finding import good
        from topicberg.checks.topic import check_engine

        status = probe.status(spec)
        if status is None:
            return good("there is no key to ask Confluent's Tableflow with")
        return check_engine(spec, status, probe.now)

    def skipped(probe: Probe) -> "Finding":
        from topicberg.checks.topic import check_skipped
        from topicberg.tableflow.control import as_requested

        return check_skipped(as_requested(probe.lakehouse.config, spec), probe.iceberg)

    def deletes(probe: Probe) -> "Finding":
        from topicberg.checks.topic import check_deletes

        return check_deletes(spec, probe.iceberg)

    def schema(probe: Probe) -> "Finding":
        from topicberg.checks.topic import check_schema
        from topicberg.kafka.registration import compare

        states = compare(spec, probe.endpoints, probe.lakehouse.config)
        return check_schema(states, probe.engine_fault(spec))

    yield TableCheck("tableflow", "Tableflow commits the topic: it is not suspended, and no turn "
                     "of it fails again and again.", engine)  # fmt: skip
    yield TableCheck("skipped_rows", "No record was left out, or sent to the dead-letter topic, "
                     "that nobody has looked at.", skipped)  # fmt: skip
    if spec.value_schema.file or spec.key.file:
        yield TableCheck("schema", "The schema files of the topic are the newest versions in the "
                         "schema registry.", schema)  # fmt: skip
    if spec.write_mode == "upsert":
        yield TableCheck("deletes", "Every tombstone was read while Kafka kept it: the engine was "
                         "never away for longer than delete.retention.ms.", deletes)  # fmt: skip
    if spec.checks.max_lag_records is not None:
        yield _lag(spec)
    if spec.freshness is not None:
        yield _freshness(spec)


def _history_checks(spec: TopicSpec) -> Iterator[TableCheck]:
    table = history_lake_table(spec)
    allowed = _allowed_minutes(spec)

    def up_to_date(probe: Probe) -> "Finding":
        from topicberg.checks.topic import check_history

        topic = probe.load(spec.table_identifier(probe.lakehouse.config))
        history = probe.find(table.identifier)
        return check_history(history, topic, allowed, probe.now, _compute(table))

    if spec.checks.max_lag_records is not None:
        yield _lag(spec)
    yield TableCheck(
        "up_to_date",
        f"Every record that the topic's own table held {allowed} minutes ago is there.",
        up_to_date,
    )
    yield _no_equality_deletes(table)


def _view_checks(spec: TopicSpec, view: LakeTable) -> Iterator[TableCheck]:
    allowed = _allowed_minutes(spec)

    def up_to_date(probe: Probe) -> "Finding":
        from topicberg.checks.derived import check_merged

        topic = probe.load(spec.table_identifier(probe.lakehouse.config))
        found = probe.find(view.identifier)
        return check_merged(found, topic, allowed, probe.now, _compute(view))

    yield TableCheck(
        "up_to_date",
        f"Every record that the topic's own table held {allowed} minutes ago was merged.",
        up_to_date,
    )
    yield _no_equality_deletes(view)


def _lag(spec: TopicSpec) -> TableCheck:
    def lag(probe: Probe) -> "Finding":
        from topicberg.checks.topic import check_lag

        return check_lag(spec, probe.iceberg, probe.endpoints, probe.engine_fault(spec))

    return TableCheck(
        "kafka_lag",
        "Records in Kafka that the table does not hold yet; at most "
        f"{spec.checks.max_lag_records:,} by the spec (checks.max_lag_records).",
        lag,
    )


def _freshness(spec: TopicSpec) -> TableCheck:
    limits = spec.freshness
    assert limits is not None  # noqa: S101  see _topic_checks

    def freshness(probe: Probe) -> "Finding":
        from topicberg.checks.topic import check_freshness

        cause = probe.engine_fault(spec)
        return check_freshness(spec, limits, probe.iceberg, probe.endpoints, probe.now, cause)

    return TableCheck(
        "freshness",
        f"Rows came within {limits.warn_minutes} minutes (fails after {limits.fail_minutes}); if "
        "not, it says whether the producer or Tableflow is to blame.",
        freshness,
    )


def _rows_checks(
    rules: Rules, spec: TopicSpec | None, table: LakeTable, named: str
) -> Iterator[TableCheck]:
    """What is known from manifests, and the rules of the spec.

    :param named: where the rules are written
    """
    yield _no_equality_deletes(table)
    if (factor := rules.volume_factor) is not None:

        def volume(probe: Probe) -> "Finding":
            from topicberg.checks.table import check_volume

            return check_volume(probe.iceberg, factor, probe.now)

        yield TableCheck(
            "volume", "As many rows as usual came in the last full hour or day.", volume
        )
    for name in _RULES:
        if getattr(rules, name):
            yield _rule(name, rules, spec, named)


def _rule(name: str, rules: Rules, spec: TopicSpec | None, named: str) -> TableCheck:
    where = [spec.metadata_column(c) for c in ("partition", "offset", "timestamp")] if spec else []

    def evaluate(probe: Probe) -> "Finding":
        from topicberg.checks import rules as library

        schema = probe.iceberg.schema()
        if fault := library.check_columns(rules, schema, named):
            return fault
        last = probe.last(name)
        column_rules = library.column_rules(rules, schema).get(name, [])
        passed = _passed(last)
        if not (probe.reads_rows or rules.blocking):
            shown = library.by_statistics(probe.iceberg, column_rules, passed)
            if found := (shown if column_rules else None) or _as_before(last):
                return found
        source = "the producer" if spec else "the function of the derived table"
        if name == "unique":
            config = probe.lakehouse.config
            return library.check_unique(
                probe.iceberg, rules.unique, probe.endpoints, config, source, named
            )
        return library.check_rules(
            probe.iceberg, name, column_rules, passed, tuple(where), source, named
        )

    columns = ", ".join(f"`{column}`" for column in getattr(rules, name))
    said = {
        "not_null": f"{columns}: never null.",
        "accepted_values": f"{columns}: only the values that the spec lists.",
        "ranges": f"{columns}: within the bounds that the spec sets.",
        "unique": f"No two rows have the same {columns}.",
    }
    covers = (
        ""
        if rules.blocking
        else (
            " A run that a sensor requests goes by the column statistics of new files, or repeats "
            "the last verdict with the rows that it covers; check_tables reads the rows."
        )
    )
    return TableCheck(name, said[name] + covers, evaluate, rules.blocking)


def _as_before(evaluation: dg.AssetCheckEvaluation | None) -> "Finding | None":
    """The last verdict, with the rows that it is about; None: there is none."""
    from topicberg.checks.finding import Finding
    from topicberg.checks.rules import COVERS, VERDICT

    if evaluation is None or VERDICT not in evaluation.metadata:
        return None
    facts: dict[str, Any] = dict(evaluation.metadata)
    mend = facts.pop(MEND, None)
    for key in (SINCE, CAUSE):
        facts.pop(key, None)
    until, verdict = (str(evaluation.metadata[key].value) for key in (COVERS, VERDICT))
    return Finding(
        passed=evaluation.passed,
        what=f"{verdict} (rows committed until {until}; newer ones are read by check_tables)",
        mend=str(mend.value) if mend else None,
        severity="warning" if evaluation.severity == dg.AssetCheckSeverity.WARN else "error",
        facts=facts,
    )


def _passed(evaluation: dg.AssetCheckEvaluation | None) -> "Passed | None":
    from topicberg.checks.rules import CHECKED_RULE, CHECKED_SNAPSHOT, Passed

    if evaluation is None or not evaluation.passed or CHECKED_RULE not in evaluation.metadata:
        return None
    return Passed(
        snapshot=int(str(evaluation.metadata[CHECKED_SNAPSHOT].value)),
        rule=str(evaluation.metadata[CHECKED_RULE].value),
    )


def _no_equality_deletes(table: LakeTable) -> TableCheck:
    def equality_deletes(probe: Probe) -> "Finding":
        from topicberg.checks.table import check_equality_deletes

        return check_equality_deletes(probe.iceberg, table.apply_deletes)

    return TableCheck(
        "equality_deletes",
        "The table has no equality deletes, which Snowflake reads wrong without a word.",
        equality_deletes,
        blocking=True,
    )


def _up_to_date(derived: DerivedTable, lake: Lake) -> TableCheck:
    root, table = lake.root(derived), lake.table(derived)
    partitions, plan = time_partitions(root), derivation(derived, lake)
    names = (*derived.sources, *derived.lookups)
    allowed = _allowed_minutes(root)

    def up_to_date(probe: Probe) -> "Finding":
        from topicberg.checks.derived import MEMORY, check_up_to_date
        from topicberg.transforms.unread import SourceTable

        sources = {
            source.name: SourceTable(found, source.time, plan.reach(source))
            for source in plan.sources
            if source.time and (found := probe.find(source.table))
        }
        last = probe.last("up_to_date")
        before = last.metadata.get(MEMORY) if last else None
        first_hour = plan.first_hour(probe.now)

        def keys(hours: Iterable[Hours]) -> list[str]:
            return partition_keys(partitions, hours, probe.now, first_hour)

        def mend(late: Sequence[str]) -> str:
            chosen = f" --partition-range '{late[0]}...{late[-1]}'" if late else ""
            return _compute(table, chosen)

        return check_up_to_date(
            probe.find(table.identifier),
            plan.target_time,
            sources,
            allowed,
            probe.now,
            before.value if before else None,
            keys,
            mend,
            first_hour,
        )

    return TableCheck(
        "up_to_date",
        f"Everything that {', '.join(f'`{name}`' for name in names)} held {allowed} minutes ago "
        "was read.",
        up_to_date,
    )


def _compute(table: LakeTable, partitions: str = "") -> str:
    """The mend of a table that its sensor should have computed."""
    return (
        "see whether a run of its sensor is queued or under way, or why it failed (Runs); what is "
        "missing by hand: `dagster asset materialize -f definitions.py --select "
        f"'key:\"{_key(table, 'iceberg')}\"'{partitions}`, then `topicberg sync {table.name}`"
    )


def _allowed_minutes(root: TopicSpec) -> int:
    """How late what is made of a topic may be."""
    from topicberg.checks.derived import ALLOWED_MINUTES

    return root.freshness.warn_minutes if root.freshness else ALLOWED_MINUTES


def _pointer(table: LakeTable, *, derived: bool) -> TableCheck:
    gone = f"{_key(table, 'iceberg')}:up_to_date" if derived else None

    def pointer(probe: Probe) -> "Finding":
        from topicberg.checks.catalogs import check_pointer

        return check_pointer(
            probe.find(table.identifier),
            probe.lakehouse.glue(),
            table.glue_table,
            table.sync,
            probe.now,
            _patience(probe.lakehouse.config),
            gone,
        )

    return TableCheck(
        "pointer",
        "Glue points to a state of the Iceberg table, not to an old one, and has its columns.",
        pointer,
        blocking=True,
    )


def _parity(table: LakeTable) -> TableCheck:
    def parity(probe: Probe) -> "Finding":
        from topicberg.checks.catalogs import check_parity

        with probe.snowflake.connection() as connection:
            return check_parity(
                probe.iceberg,
                probe.lakehouse.glue(),
                table.glue_table,
                connection,
                probe.lakehouse.config,
                table.snowflake_name,
                table.sync,
                probe.now,
                _patience(probe.lakehouse.config),
                f"{_key(table, 'glue')}:pointer",
            )

    return TableCheck(
        "parity",
        "Snowflake reads the state of the Iceberg table that Glue points to: the same metadata "
        "file, columns and number of rows.",
        parity,
    )


def _patience(config: Settings) -> timedelta:
    return timedelta(seconds=config.catalogs_patience_seconds)


def _key(table: LakeTable, system: str) -> str:
    return table.key(system).to_user_string()


# --- as Dagster has them ---


def _definition(
    table: LakeTable, system: str, checks: Sequence[TableCheck]
) -> dg.AssetChecksDefinition:
    key = table.key(system)
    by_name = {check.name: check for check in checks}

    @dg.multi_asset_check(
        name=f"check_{system}_{table.name}",
        specs=[
            dg.AssetCheckSpec(
                check.name, asset=key, description=check.description, blocking=check.blocking
            )
            for check in checks
        ],
        can_subset=True,
        pool="snowflake" if system == "snowflake" else None,
    )
    def evaluate(
        context: dg.AssetCheckExecutionContext, lakehouse: Lakehouse, snowflake: Snowflake
    ) -> Iterator[dg.AssetCheckResult]:
        of_sensor = context.run.tags.get(KIND) in (REGISTRATION, COMPUTATION)
        probe = Probe(table, lakehouse, snowflake, context.instance, reads_rows=not of_sensor)
        asked = {chosen.name for chosen in context.selected_asset_check_keys}
        with retried():  # not as a decorator: this is a generator
            for name, check in by_name.items():
                if name in asked:
                    before = last_evaluation(context.instance, dg.AssetCheckKey(key, name))
                    yield result(key, name, evaluated(check, probe), before)

    return evaluate


def evaluated(check: TableCheck, probe: Probe) -> "Finding":
    """The verdict; that a table was not made yet is none."""
    from pyiceberg.exceptions import NoSuchTableError

    from topicberg.checks.finding import good

    try:
        return check.evaluate(probe)
    except NoSuchTableError:
        return good("there is no such table yet")


def result(
    key: dg.AssetKey, name: str, finding: "Finding", before: dg.AssetCheckEvaluation | None
) -> dg.AssetCheckResult:
    """The verdict as Dagster shows it.

    :param before: the evaluation before: of a fault that has no time of its own it says since when
    """
    import pyarrow as pa

    warning = finding.severity == "warning"
    metadata: dict[str, Any] = {
        name: dg.MetadataValue.md(markdown(fact)) if isinstance(fact, pa.Table) else fact
        for name, fact in finding.facts.items()
    }
    since = finding.since
    if not finding.passed:
        if since is None and before is not None and not before.passed and SINCE in before.metadata:
            since = datetime.fromtimestamp(float(str(before.metadata[SINCE].value)), UTC)
        since = since or datetime.now(UTC)
        finding = replace(finding, since=since)
        metadata[SINCE] = dg.MetadataValue.timestamp(since.astimezone(UTC))
        if finding.mend:
            metadata[MEND] = dg.MetadataValue.md(markdown_line(redact(finding.mend)))
        if finding.cause:
            metadata[CAUSE] = finding.cause
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=finding.passed,
        severity=dg.AssetCheckSeverity.WARN if warning else dg.AssetCheckSeverity.ERROR,
        description=_description(finding),
        metadata=metadata,
    )


def _description(finding: "Finding") -> str:
    """Everything as Markdown, in which only what the check itself marked as a command is one."""
    return "  \n".join(markdown_line(redact(line)) for line in finding.lines)


def data_check(check: DataCheck, derived: DerivedTable, lake: Lake) -> dg.AssetChecksDefinition:
    """A check on the rows of the partitions of its run; without partitions, on all rows."""
    table, root = lake.table(derived), lake.root(derived)
    partitions = time_partitions(root)
    function = with_parameters(check, derived.parameters_of(root))

    @dg.asset_check(
        asset=table.key("iceberg"),
        name=check.__name__,
        description=inspect.getdoc(check),
        pool="spark",
    )
    @retried()
    def checked(context: dg.AssetCheckExecutionContext, spark: Spark) -> dg.AssetCheckResult:
        asked = asked_window(partitions, context.run.tags)
        return function(
            read_window(spark.spark_session, table.identifier, derived.time_column, asked)
        )

    return checked
