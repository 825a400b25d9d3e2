"""Rules on the rows of a table: nulls, accepted values, ranges, uniqueness.

A rule is an Iceberg expression for the rows that violate it. Planning a scan with it drops every
file whose column statistics exclude such rows: of a table without nulls no file is opened. Files
that passed are not read again: the next evaluation reads only files that were added since.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator, bind
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import DecimalType, DoubleType, FloatType

from topicberg.catalogs.snowflake.names import quote
from topicberg.checks.check import Probe, TableCheck
from topicberg.checks.finding import Finding, from_ms, good, moment
from topicberg.endpoints import Endpoints
from topicberg.iceberg import readers, summaries, tables
from topicberg.iceberg.snapshots import changed_files, changes_since
from topicberg.settings import Settings
from topicberg.topics.spec import Range, Rules, TopicSpec
from topicberg.wording import count, suggestion

SAMPLE_ROWS = 10
CHECKED_SNAPSHOT, CHECKED_RULE = "checked_snapshot", "rule"
"""Facts of a finding that the next evaluation continues from."""
COVERS, VERDICT = "rows_until", "verdict"
"""Facts that say which rows a result covers (those committed until then), and what it is."""
_RULES = {
    "not_null": "{}: never null.",
    "accepted_values": "{}: only the values that the spec lists.",
    "ranges": "{}: within the bounds that the spec sets.",
    "unique": "No two rows have the same {}.",
}  # The fields of a spec's rules, and the descriptions of their checks.
_WITHOUT_ROWS = (
    " A run that a sensor requests uses the column statistics of new files, or repeats the last "
    "result with the rows that it covers; check_tables reads the rows."
)


def rule_checks(rules: Rules, spec: TopicSpec | None, defined_in: str) -> Iterator[TableCheck]:
    """:param defined_in: where the rules are written"""
    return (_rule_check(n, rules, spec, defined_in) for n in _RULES if getattr(rules, n))


def _rule_check(name: str, rules: Rules, spec: TopicSpec | None, defined_in: str) -> TableCheck:
    where = [spec.metadata_column(c) for c in ("partition", "offset", "timestamp")] if spec else []
    source = "the producer" if spec else "the function of the derived table"

    def evaluate(probe: Probe) -> Finding:
        schema = probe.iceberg.schema()
        if missing := check_columns(rules, schema, defined_in):
            return missing
        last = probe.last(name)
        of_columns = column_rules(rules, schema).get(name, [])
        if not (probe.reads_rows or rules.blocking) and (
            finding := by_statistics(probe.iceberg, of_columns, last) or repeated(last)
        ):
            return finding
        if name == "unique":
            return check_unique(
                probe.iceberg, rules.unique, probe.endpoints, probe.config, source, defined_in
            )
        return check_rules(probe.iceberg, name, of_columns, last, tuple(where), source, defined_in)

    columns = ", ".join(f"`{column}`" for column in getattr(rules, name))
    text = _RULES[name].format(columns) + ("" if rules.blocking else _WITHOUT_ROWS)
    return TableCheck(name, text, evaluate, rules.blocking)


def repeated(last: Finding | None) -> Finding | None:
    """Return the last finding again, with the rows that it covers; None: there is none."""
    if last is None or VERDICT not in last.facts:
        return None
    what = (
        f"{last.facts[VERDICT]} (rows committed until {last.facts[COVERS]}; newer ones are read "
        "by check_tables)"
    )
    return replace(last, what=what, since=None, cause=None)


@dataclass(frozen=True)
class Rule:
    """``breaks``: rows that violate it; ``says``: what a row should be. ``definition``: what JSON
    says of it exactly; two rules that differ have two of them."""

    column: str
    says: str
    breaks: expressions.BooleanExpression
    definition: Any


def column_rules(rules: Rules, schema: Schema) -> dict[str, list[Rule]]:
    """Return check → its rules, all of whose columns the table has: see :func:`check_columns`."""
    return {
        "not_null": [
            Rule(column, "is never null", expressions.IsNull(term=column), "not null")
            for column in rules.not_null
        ],
        "accepted_values": [
            Rule(
                column,
                f"is one of {', '.join(map(str, values))}",
                expressions.And(
                    expressions.NotNull(term=column),
                    expressions.NotIn(term=column, literals=set(values)),
                ),
                list(values),
            )
            for column, values in rules.accepted_values.items()
        ],
        "ranges": [_range(column, bounds, schema) for column, bounds in rules.ranges.items()],
    }


def _range(column: str, bounds: Range, schema: Schema) -> Rule:
    kind, low, high = schema.find_field(column).field_type, "", ""
    parts: list[expressions.BooleanExpression] = []
    if bounds.min is not None:
        lowest, low = _literal(bounds.min, kind, ROUND_CEILING), f"{_exact(bounds.min)} ≤ "
        parts.append(expressions.LessThan(term=column, value=lowest))
    if bounds.max is not None:
        highest, high = _literal(bounds.max, kind, ROUND_FLOOR), f" ≤ {_exact(bounds.max)}"
        parts.append(expressions.GreaterThan(term=column, value=highest))
    definition = bounds.model_dump(mode="json")
    if isinstance(kind, DoubleType | FloatType):  # NaN is neither less nor greater
        parts.append(expressions.IsNaN(term=column))
        definition["nan"] = False
    return Rule(column, f"is in {low}{column}{high}", reduce(expressions.Or, parts), definition)


def _exact(bound: float) -> str:
    """Return a bound with all of its digits: 1000004.0 is 1000004."""
    return repr(bound).removesuffix(".0")


def _literal(bound: float, kind: Any, rounding: str) -> Any:
    """Return the bound as a value of the column's type: Iceberg compares it with nothing else."""
    match kind:
        case DoubleType() | FloatType():
            return bound
        case DecimalType():
            return Decimal(str(bound)).quantize(Decimal(1).scaleb(-kind.scale), rounding)
    return int(Decimal(str(bound)).to_integral_value(rounding))


def check_rules(
    table: Table,
    check: str,
    rules: list[Rule],
    last: Finding | None,
    where: tuple[str, ...] = (),
    source: str = "the producer",
    named: str = "`checks:` in the topic's spec",
) -> Finding:
    """Return whether all rows follow the rules.

    :param last: the last evaluation; if it passed, only files that were added since are read
    :param where: columns that say where a row is from, for the sample
    """
    head = table.current_snapshot()
    if head is None:
        return good("the table has no rows yet")
    facts: dict[str, Any] = _checked(head, rules)
    snapshot = _passed_at(last, rules)
    files = None if snapshot is None else files_since(table, snapshot)
    broken: list[str] = []
    since: list[datetime] = []
    reads_all = readers.PYICEBERG.misses(table) is not None
    for rule in rules:
        scan = table.scan() if reads_all else table.scan(row_filter=rule.breaks)
        tasks = (
            task for task in scan.plan_files() if files is None or task.file.file_path in files
        )
        rows, sample, bad = _count(table, rule, tasks, where)
        if sample is not None:
            broken.append(
                f"{count(rows, 'row')} where {rule.column} violates the rule: {rule.says}"
            )
            facts[f"rows: {rule.column}"] = rows
            facts.setdefault("sample", sample)
            since.append(_added(table, bad, files))
    if not broken:
        return _followed(table, head, rules)
    removal = (
        "compaction of the topic or retention removes the rows"
        if source == "the producer"
        else "materialize the partitions again after the fix"
    )
    finding = Finding(
        f"{check}: " + "; ".join(broken),
        f"fix {source}, which writes what the rules exclude, or widen {named}; {removal}",
        min(since),
        facts=facts,
    )
    return covering(table, finding)


def by_statistics(table: Table, rules: list[Rule], last: Finding | None) -> Finding | None:
    """Return that all rows follow the rules, if column statistics of the files added since show it.
    No file is opened. None: the last evaluation did not pass, or a file would have to be opened."""
    head, snapshot_id = table.current_snapshot(), _passed_at(last, rules)
    if head is None or snapshot_id is None:
        return None
    changes = changes_since(table, snapshot_id)
    if changes.rolled_back or changes.gap:
        return None
    # PyIceberg reads statistics of a file only within a scan, which plans all files of the table.
    may_break = [_InclusiveMetricsEvaluator(table.schema(), rule.breaks) for rule in rules]
    new_files = (
        file
        for snapshot in changes.new
        if summaries.operation_of(snapshot) != Operation.REPLACE  # compaction
        for file, added in changed_files(table, snapshot)
        if added and file.content == DataFileContent.DATA
    )
    is_open = any(evaluator.eval(file) for file in new_files for evaluator in may_break)
    return None if is_open else _followed(table, head, rules)


def covering(table: Table, finding: Finding) -> Finding:
    """Return the finding with the facts that say which rows it covers."""
    head = table.current_snapshot()
    until = moment(from_ms(head.timestamp_ms)) if head else "none"
    return replace(finding, facts={**finding.facts, COVERS: until, VERDICT: finding.what})


def _checked(head: Snapshot, rules: list[Rule]) -> dict[str, str]:
    """Return the facts that say at which snapshot which rules were checked."""
    return {CHECKED_SNAPSHOT: str(head.snapshot_id), CHECKED_RULE: _definition(rules)}


def _passed_at(last: Finding | None, rules: list[Rule]) -> int | None:
    """Return the snapshot at which these rules passed the last evaluation; None: they did not."""
    if last is None or not last.passed or last.facts.get(CHECKED_RULE) != _definition(rules):
        return None
    return int(last.facts[CHECKED_SNAPSHOT])


def _definition(rules: list[Rule]) -> str:
    """Return the rules as JSON: a result counts for no others, however alike they read."""
    return json.dumps([[rule.column, rule.definition] for rule in rules], default=repr)


def _followed(table: Table, head: Snapshot, rules: list[Rule]) -> Finding:
    described = "; ".join(f"{rule.column} {rule.says}" for rule in rules)
    finding = good(f"every row follows the rule: {described}", **_checked(head, rules))
    return covering(table, finding)


def files_since(table: Table, snapshot: int) -> dict[str, datetime] | None:
    """Return data files added after a snapshot, and when; None: the snapshots are expired."""
    changes = changes_since(table, snapshot)
    if changes.rolled_back or changes.gap:
        return None
    added_files: dict[str, datetime] = {}
    for each in changes.new:
        files = list(changed_files(table, each))
        rewrites_new = any(not added and file.file_path in added_files for file, added in files)
        if summaries.operation_of(each) == Operation.REPLACE and not rewrites_new:
            continue  # compaction of files that were read already
        added_files |= {
            file.file_path: from_ms(each.timestamp_ms) for file, added in files if added
        }
    return added_files


def _count(
    table: Table, rule: Rule, tasks: Iterable[FileScanTask], where: tuple[str, ...]
) -> tuple[int, pa.Table | None, list[str]]:
    """Return how many rows violate a rule, some of them (None: none), and the files with them."""
    from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow

    schema = table.schema()
    breaks = expression_to_pyarrow(bind(schema, rule.breaks, case_sensitive=True))
    is_float = isinstance(schema.find_field(rule.column).field_type, DoubleType | FloatType)
    # The bounds of a row group leave NaN out, and Arrow takes equal bounds for all of its values.
    pushed = expressions.AlwaysTrue() if is_float else rule.breaks
    columns = dict.fromkeys((rule.column, *(c for c in where if c in schema.column_names)))
    scan = ArrowScan(table.metadata, table.io, schema.select(*columns), pushed)
    rows = 0
    sample: list[pa.RecordBatch] = []
    bad = dict[str, None]()
    for task in tasks:
        for read in scan.to_record_batches([task]):
            if not (batch := read.filter(breaks) if is_float else read).num_rows:
                continue
            if rows < SAMPLE_ROWS:
                sample.append(batch.slice(0, SAMPLE_ROWS))
            rows += batch.num_rows
            bad[task.file.file_path] = None
    return rows, pa.Table.from_batches(sample).slice(0, SAMPLE_ROWS) if sample else None, [*bad]


def _added(table: Table, bad: list[str], files: dict[str, datetime] | None) -> datetime:
    """Return when the first of these files was added; if unknown, the oldest snapshot's time."""
    if files is not None:
        return min(files[path] for path in bad)
    snapshots = table.metadata.snapshots
    times = [
        from_ms(snapshot.timestamp_ms)
        for snapshot in snapshots
        if any(file.file_path in bad for file, added in changed_files(table, snapshot) if added)
    ]
    return min(times, default=from_ms(min(s.timestamp_ms for s in snapshots)))


def check_unique(
    table: Table,
    columns: tuple[str, ...],
    endpoints: Endpoints,
    config: Settings,
    source: str = "the producer",
    named: str = "`checks:` in the topic's spec",
) -> Finding:
    """Return whether no two rows have the same values in these columns; DuckDB reads all rows."""
    from topicberg.query import run_query

    names = ", ".join(quote(column) for column in columns)
    path = f"{tables.attached_catalog(table)}.{quote(*table.name())}"
    query = (
        f"SELECT {names}, count(*) AS rows FROM {path} "  # noqa: S608  quoted
        "GROUP BY ALL HAVING count(*) > 1 ORDER BY rows DESC"
    )
    duplicates = run_query(query, "duckdb", endpoints, config, max_rows=SAMPLE_ROWS)
    keys = ", ".join(columns)
    if not duplicates.rows:
        return covering(table, good(f"no two rows have the same {keys}"))
    lines = [
        f"{dict(zip(columns, row, strict=False))}: {count(row[-1], 'row')}"
        for row in duplicates.rows
    ]
    finding = Finding(
        f"rows have the same {keys}; the most frequent: {lines[0]}",
        f"fix {source}, which writes a key twice, or correct `unique` in {named} if these columns "
        "are not a key",
        facts={"most frequent": "\n".join(lines)},
    )
    return covering(table, finding)


def check_columns(rules: Rules, schema: Schema, named: str) -> Finding | None:
    """Return the finding of rules that name columns which the table does not have."""
    there = schema.column_names
    problems = "; ".join(
        f"no column {column}{suggestion(column, there)}"
        for column in dict.fromkeys(rules.columns)
        if column not in there
    )
    return Finding(f"the table has {problems}", f"correct {named}") if problems else None
