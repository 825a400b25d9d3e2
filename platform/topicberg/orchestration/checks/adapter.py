"""The checks as Dagster has them: definitions, and results whose metadata hold the finding."""

# Dagster reads the annotations of an operation's function: no `from __future__ import annotations`.

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import dagster as dg
import pyarrow as pa

from topicberg.charts import markdown_table
from topicberg.checks.check import Probe, TableCheck, evaluate
from topicberg.checks.finding import Finding
from topicberg.orchestration.assets import tables
from topicberg.orchestration.assets.derived import DataCheck, DerivedTable, with_parameters
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.partitions import requested_windows, time_partitions
from topicberg.orchestration.catalogs.catalog import pool_of
from topicberg.orchestration.checks import evaluations
from topicberg.orchestration.resources import Lakehouse, Snowflake, Spark
from topicberg.security.redaction import redact
from topicberg.security.text import markdown_line
from topicberg.transforms.spark_tables import read_window


def lake_checks(lake: Lake) -> Iterator[dg.AssetChecksDefinition]:
    """Return every check that is an operation of its own."""
    for table, system, checks in lake.checks:
        if not table.is_independent(lake):
            yield definition(table, system, checks)
    for derived, check in lake.row_checks:
        yield data_check(check, derived, lake)


class CheckKeys:
    """The keys of the checks of all tables, chosen by their purpose."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._of_table: dict[str, list[tuple[bool, dg.AssetCheckKey]]] = {}
        """Table → its checks, and whether each is a blocking one of its rows."""
        for table, system, checks in lake.checks:
            self._of_table.setdefault(table.name, []).extend(
                (
                    system == "iceberg" and check.blocking,
                    dg.AssetCheckKey(table.key(system), check.name),
                )
                for check in checks
            )

    def all(self) -> list[dg.AssetCheckKey]:
        """Return every check of :attr:`topicberg.orchestration.assets.lake.Lake.checks`."""
        return [key for checks in self._of_table.values() for _, key in checks]

    def of_runs(self, names: Collection[str]) -> list[dg.AssetCheckKey]:
        """Return the checks that belong into each run that computes or registers these tables."""
        return [key for name in dict.fromkeys(names) for _, key in self._of_table.get(name, ())] + [
            dg.AssetCheckKey(self._lake.table(derived).key("iceberg"), check.__name__)
            for derived, check in self._lake.row_checks
            if derived.name in names
        ]

    def blocking(self, name: str) -> list[dg.AssetCheckKey]:
        """Return the checks of a table that prevent runs from computing with it."""
        return [key for is_blocking, key in self._of_table.get(name, ()) if is_blocking]


def check_specs(
    table: tables.LakeTable, system: str, checks: Iterable[TableCheck]
) -> list[dg.AssetCheckSpec]:
    """Return the checks of one asset as Dagster shows them."""
    spec = partial(dg.AssetCheckSpec, asset=table.key(system))
    return [spec(c.name, description=c.description, blocking=c.blocking) for c in checks]


def definition(
    table: tables.LakeTable, system: str, checks: Sequence[TableCheck]
) -> dg.AssetChecksDefinition:
    """Return the checks of one asset as one operation."""

    @dg.multi_asset_check(
        name=f"check_{system}_{table.name}",
        specs=check_specs(table, system, checks),
        can_subset=True,
        pool=pool_of(system),
    )
    def evaluate_checks(
        context: dg.AssetCheckExecutionContext,
        topicberg_lakehouse: Lakehouse,
        topicberg_snowflake: Snowflake,
    ) -> Iterator[dg.AssetCheckResult]:
        requested = {chosen.name for chosen in context.selected_asset_check_keys}
        evaluate = evaluation(context, table, system, topicberg_lakehouse, topicberg_snowflake)
        with tables.retried():  # not as a decorator: this is a generator
            for check in checks:
                if check.name in requested:
                    yield evaluate(check)

    return evaluate_checks


def evaluation(
    context: dg.AssetCheckExecutionContext | dg.AssetExecutionContext,
    table: tables.LakeTable,
    system: str,
    lakehouse: Lakehouse,
    snowflake: Snowflake,
) -> Callable[[TableCheck], dg.AssetCheckResult]:
    """Return what evaluates the checks of one asset; it loads the table once."""
    key = table.key(system)

    @cache
    def before() -> dict[dg.AssetCheckKey, evaluations.Evaluation]:
        chosen = [each for each in context.selected_asset_check_keys if each.asset_key == key]
        return evaluations.last_evaluations(context.instance, chosen)

    def last(name: str) -> Finding | None:
        stored = before().get(dg.AssetCheckKey(key, name))
        return stored.finding if stored else None

    of_sensor = context.run.tags.get(tables.KIND) in (tables.REGISTRATION, tables.COMPUTATION)
    probe = Probe(table, lakehouse, snowflake.connection, last, reads_rows=not of_sensor)
    return lambda check: result(key, check.name, evaluate(check, probe), last(check.name))


def result(
    key: dg.AssetKey, name: str, finding: Finding, before: Finding | None
) -> dg.AssetCheckResult:
    """:param before: the last finding, whose time a failure has that goes on"""
    metadata: dict[str, Any] = {
        name: dg.MetadataValue.md(markdown_table(fact)) if isinstance(fact, pa.Table) else fact
        for name, fact in finding.facts.items()
    }
    if not finding.passed:
        began = before.since if before and not before.passed else None
        since = (finding.since or began or datetime.now(UTC)).astimezone(UTC)
        finding = replace(finding, since=since)
        metadata |= {
            evaluations.FINDING: dg.MetadataValue.json(finding.to_json()),
            evaluations.SINCE: dg.MetadataValue.timestamp(since),
        }
        if finding.remediation:
            metadata[evaluations.REMEDIATION] = dg.MetadataValue.md(_shown(finding.remediation))
        if finding.cause:
            metadata[evaluations.CAUSE] = finding.cause
    is_warning = finding.severity == "warning"
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=finding.passed,
        severity=dg.AssetCheckSeverity.WARN if is_warning else dg.AssetCheckSeverity.ERROR,
        description="  \n".join(map(_shown, finding.lines)),
        metadata=metadata,
    )


def _shown(text: str) -> str:
    """Return a line of Markdown in which only commands that the check marked are formatted."""
    return markdown_line(redact(text))


def data_check(check: DataCheck, derived: DerivedTable, lake: Lake) -> dg.AssetChecksDefinition:
    """Return a check on the rows of the partitions of its run; without partitions, on all rows."""
    table, root = lake.table(derived), lake.root(derived)
    partitions = time_partitions(root)
    function = with_parameters(check, derived.parameters_of(root))

    @dg.asset_check(
        asset=table.key("iceberg"),
        name=check.__name__,
        description=inspect.getdoc(check),
        pool="spark",
    )
    @tables.retried()
    def checked(
        context: dg.AssetCheckExecutionContext, topicberg_spark: Spark
    ) -> dg.AssetCheckResult:
        requested = requested_windows(partitions, context.run.tags)
        session, time = topicberg_spark.spark_session, derived.time_column
        return function(read_window(session, table.identifier, time, requested))

    return checked
