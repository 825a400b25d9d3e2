"""Tables of one's own: a function from DataFrame to DataFrame becomes a set of assets.

Decorate the function, in a module that ``pipelines`` of ``[tool.topicberg]`` names::

    @derived_table(source="stock_trades", time_column="trade_timestamp")
    def large_trades(trades: DataFrame) -> DataFrame:
        "Trades of more than 4,000 shares."
        return trades.filter("quantity > 4000").withColumnRenamed("$$timestamp", "trade_timestamp")

It gets the rows of its source in a window of event time and returns the rows of the derived table
in the same window; ``iceberg/large_trades``, ``glue/large_trades`` and ``snowflake/large_trades``
are in the graph, with partitions, backfills and checks.
"""

import hashlib
import inspect
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import dagster as dg
from pydantic import BaseModel, ValidationError

from topicberg.charts import markdown
from topicberg.clients.lineage import JobRun, TableState, is_on, reported, run_id
from topicberg.errors import SpecError, TopicbergError
from topicberg.iceberg.hours import Hours
from topicberg.orchestration.assets.metadata import (
    column_lineage,
    documentation,
    source_columns,
    table_metadata,
)
from topicberg.orchestration.assets.partitions import (
    TimePartitions,
    partition_keys,
    requested_windows,
    time_partitions,
)
from topicberg.orchestration.assets.tables import LakeTable, is_computation_of_sensor, retried
from topicberg.orchestration.catalogs.catalog import catalogs
from topicberg.orchestration.resources import Lakehouse, Snowflake, Spark
from topicberg.security.text import BULLET
from topicberg.settings import emr_settings, settings
from topicberg.topics import Rules, TopicSpec
from topicberg.transforms import code
from topicberg.transforms.derivation import RETENTION_MARGIN, Derivation, Source, Transform
from topicberg.transforms.derived import FailedPartitionsError, WrittenWindow, write_window
from topicberg.transforms.spark_tables import read_window
from topicberg.transforms.windows import FOREVER, Window
from topicberg.wording import count

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from topicberg.orchestration.assets.lake import Lake

T = TypeVar("T")
NAME = re.compile("[a-z][a-z0-9_]*")  # Of a table: Glue has no upper case, Snowflake ignores it.
DAY = 24
LONGEST = timedelta(days=36_500)  # Of a lookback or lookahead that is not for ever.
CHART_PARTITIONS = 6  # Partitions before those of the run that its chart shows as well.
MAX_RETENTION_MS = 10**12  # Some 30 years: a longer retention is "for ever" (such as 2**63 - 1).
NO_RULES = Rules()
Lineage = Mapping[str, tuple[str, ...]]
Duration = timedelta | Callable[[Any], timedelta]
PerSource = timedelta | Mapping[str, timedelta]
"""Of all sources, or by their names; others are read in the window only."""
Lookback = PerSource | Callable[[Any], PerSource]
DataCheck = Callable[..., dg.AssetCheckResult]
"""Rows of the table in, a finding out; its name and its docstring are the check's."""
Chart = Callable[..., Any]  # Rows of the table in, a matplotlib figure out.


def source_file(function: Callable[..., Any]) -> str:
    """Return the file of a function, from the project's root."""
    path = inspect.getsourcefile(function)
    if path is not None and Path(path).is_relative_to(root := settings().project_root):
        return str(Path(path).relative_to(root))
    return f"{function.__module__.replace('.', '/')}.py"


def described_columns(docstring: str) -> dict[str, str]:
    """Return column → its description, of the section ``Columns:`` of a docstring. A line of the
    section is ``name: description``; lines that are indented further continue it. An item of a
    list, and what follows an empty line, is a line of the description."""
    descriptions: dict[str, str] = {}
    lines = iter(docstring.splitlines())
    if not any(line.strip() == "Columns:" for line in lines):
        return descriptions
    section = [*takewhile(lambda line: not line.strip() or line[0].isspace(), lines)]
    margin = next((_indent(line) for line in section if line.strip()), 0)
    name = ""
    for before, line in pairwise(["Columns:", *section]):
        column, colon, text = line.strip().partition(": ")
        if colon and _indent(line) <= margin:
            name = column.strip("`")
            descriptions[name] = text.strip()
        elif name and line.strip():
            is_line = BULLET.match(line) or not before.strip()
            descriptions[name] += ("\n" if is_line else " ") + line.strip()
    return descriptions


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def sections_as_lists(docstring: str) -> str:
    """Return a docstring as Markdown, which would show an indented section as one line."""
    lines: list[str] = []
    margin = 0
    for line in docstring.splitlines():
        indent = _indent(line)
        if indent and not margin and lines and lines[-1].endswith(":"):
            margin = indent
            lines.append("")
        elif line.strip() and not indent:
            margin = 0
        is_entry = line.strip() and indent == margin and margin and not BULLET.match(line)
        lines.append(f"- {line.strip()}" if is_entry else line[min(margin, indent) :])
    return "\n".join(lines)


@dataclass(frozen=True)
class DerivedTable:
    """A derived table as its author describes it; :func:`derived_table` makes one."""

    name: str
    sources: tuple[str, ...]
    time_column: str
    transform: Transform
    description: str
    lookups: tuple[str, ...] = ()
    lookback: Lookback | None = None
    lookahead: Lookback | None = None
    max_lateness: Duration | None = None
    parameters: type[BaseModel] | None = None
    rules: Rules = NO_RULES
    checks: tuple[DataCheck, ...] = ()
    chart: Chart | None = None
    owners: tuple[str, ...] = ()
    lineage: Lineage = field(default_factory=dict)
    format_version: Literal[2, 3] = 2
    code_version: str | None = None  # What stands for the code; None: a hash of it.

    def __post_init__(self) -> None:
        """:raises SpecError: an argument of :func:`derived_table` is wrong"""
        model, rules = self.parameters, self.rules
        for is_right, problem in (
            (NAME.fullmatch(self.name), "the name has other characters than a-z, 0-9 and _"),
            *(
                (
                    given is None or isinstance(given, timedelta | Callable | Mapping),
                    f"{name} is {given!r}: use a timedelta, FOREVER, a dict of these by source or "
                    "a function of the parameters",
                )
                for name, given in (("lookback", self.lookback), ("lookahead", self.lookahead))
            ),
            (
                self.max_lateness is None or isinstance(self.max_lateness, timedelta | Callable),
                f"max_lateness is {self.max_lateness!r}: use a timedelta or a function of the "
                "parameters",
            ),
            (
                model is None or (inspect.isclass(model) and issubclass(model, BaseModel)),
                f"parameters is {model!r}: use a class derived from pydantic.BaseModel",
            ),
            (isinstance(rules, Rules), f"rules is {rules!r}: use Rules(…)"),
            (
                all(map(callable, self.checks)),
                f"checks is {self.checks!r}: use a tuple of functions",
            ),
            (
                self.chart is None or callable(self.chart),
                f"chart is {self.chart!r}: use a function from rows to a figure",
            ),
        ):
            if not is_right:
                raise SpecError(
                    f"{self.file}: derived table {self.name}: {problem}",
                    hint="correct the arguments of `@derived_table`; docs/add-a-pipeline.md "
                    "explains them",
                )

    @property
    def file(self) -> str:
        """The file of its function, from the project's root."""
        return source_file(self.transform)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of its sources and lookups."""
        return (*self.sources, *self.lookups)

    def parameters_of(self, root: TopicSpec) -> BaseModel | None:
        """What the spec sets for this table, and defaults; SpecError: one is unknown or wrong."""
        given = root.parameters.get(self.name, {})
        if self.parameters is None:
            if given:
                raise SpecError(f"topic {root.name}: derived table {self.name} takes no parameters")
            return None
        try:
            return self.parameters.model_validate(given)
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(["parameters", self.name, *map(str, wrong["loc"])])
            raise SpecError(f"topic {root.name}: {place}: {wrong['msg']}") from None

    @property
    def reads_around(self) -> bool:
        """Whether it follows from other windows of its sources as well."""
        return self.lookback is not None or self.lookahead is not None

    def max_lateness_of(self, root: TopicSpec) -> timedelta | None:
        """How long after a time its rows are still computed when they arrive."""
        return self._duration("max_lateness", self._value(self.max_lateness, root))

    def _value(self, given: Any, root: TopicSpec) -> Any:
        return given(self.parameters_of(root)) if callable(given) else given

    def reach(self, name: Literal["lookback", "lookahead"], root: TopicSpec) -> PerSource | None:
        """How far before or after a window its sources are read.

        :raises SpecError: a duration is none, or of no source
        """
        declared = self._value(getattr(self, name), root)
        if not isinstance(declared, Mapping):
            return self._duration(name, declared)
        if unknown := sorted(declared.keys() - {*self.sources}):
            raise SpecError(
                f"{self.file}: derived table {self.name}: {name} has {', '.join(unknown)}, which "
                f"{'is' if len(unknown) == 1 else 'are'} not in `source`",
                hint=f"use the names of its sources: {', '.join(self.sources)}",
            )
        return {
            source: duration
            for source in sorted(declared)
            if (duration := self._duration(f"{name} of {source}", declared[source])) is not None
        }

    def _duration(self, name: str, duration: Any) -> timedelta | None:
        """:raises SpecError: it is not a duration"""
        if duration is None or duration == FOREVER:
            return None if duration is None else FOREVER
        if isinstance(duration, timedelta) and timedelta() <= duration <= LONGEST:
            return duration
        raise SpecError(
            f"{self.file}: derived table {self.name}: {name} is {duration!r}; expected is a "
            f"timedelta from 0 to {LONGEST.days:,} days, or FOREVER",
            hint=f"correct `{name.partition(' ')[0]}=…` of `@derived_table`",
        )


def derived_table(
    *,
    source: str | tuple[str, ...],
    time_column: str,
    lookups: tuple[str, ...] = (),
    lookback: Lookback | None = None,
    lookahead: Lookback | None = None,
    max_lateness: Duration | None = None,
    parameters: type[BaseModel] | None = None,
    rules: Rules = NO_RULES,
    checks: tuple[DataCheck, ...] = (),
    chart: Chart | None = None,
    owners: tuple[str, ...] = (),
    lineage: Lineage | None = None,
    format_version: Literal[2, 3] = 2,
    code_version: str | None = None,
) -> Callable[[Transform], DerivedTable]:
    """Make a function from the sources' rows to the table's rows a derived table of its name.

    :param source: the topics or derived tables of which it reads a window of event time; the
        function gets a DataFrame for each
    :param time_column: column of the result by which the table is partitioned and its windows are
        replaced: the sources' event time or, with ``lookback`` and ``lookahead``, another time
    :param lookups: further tables, of which it gets all rows
    :param lookback: the function also sees this much of event time before the window: rows of the
        sources become rows that are at most so much later. What it returns of other windows is left
        out. With ``parameters``, a function of them.
    :param lookahead: the same after the window: rows of the sources become rows that are at most so
        much earlier. :data:`FOREVER`: the sources are read as a whole.
    :param max_lateness: rows that a source got longer after an hour than this do not cause it to be
        computed again; the check ``up_to_date`` counts them. With ``parameters``, a function of
        them.
    :param parameters: a model whose values stand in the source's spec under
        ``parameters.<name of the table>``; the function gets it as the keyword ``parameters``
    :param rules: what holds for its rows, as under ``checks`` in a topic's spec
    :param checks: asset checks on the rows of the partitions that a run computed
    :param chart: draws the rows of the partitions that a run computed and of the six before them;
        see :mod:`topicberg.charts`.
        Checks and chart may take the keyword ``parameters`` as well.
    :param lineage: column of the result → columns of the sources, for the UI; ``table.column``
        names a column of one of several
    :param format_version: Iceberg's, of a new table; not every reader supports version 3
    :param code_version: stands for the code: the table is computed again when this text changes,
        not when the function or what it calls does
    """
    return lambda function: DerivedTable(
        name=function.__name__,
        sources=(source,) if isinstance(source, str) else source,
        time_column=time_column,
        transform=function,
        description=inspect.getdoc(function) or "",
        lookups=lookups,
        lookback=lookback,
        lookahead=lookahead,
        max_lateness=max_lateness,
        parameters=parameters,
        rules=rules,
        checks=checks,
        chart=chart,
        owners=owners,
        lineage=lineage or {},
        format_version=format_version,
        code_version=code_version,
    )


def derivation(derived: DerivedTable, lake: "Lake") -> Derivation:
    """:raises SpecError: an argument of ``@derived_table`` is wrong for its sources"""
    root = lake.root(derived)
    partitions = time_partitions(root)
    back, ahead = derived.reach("lookback", root), derived.reach("lookahead", root)
    # The columns by which the sources' windows are read belong to the version.
    times = repr([(name, lake.origin(name).time) for name in derived.sources])
    read_version = hashlib.sha256(times.encode()).hexdigest()[:6]
    plan = Derivation(
        sources=(
            *(
                replace(_source(name, lake), lookback=_of(back, name), lookahead=_of(ahead, name))
                for name in derived.sources
            ),
            *(replace(_source(name, lake), whole=True) for name in derived.lookups),
        ),
        target=lake.table(derived).identifier,
        transform=with_parameters(derived.transform, derived.parameters_of(root)),
        target_time=derived.time_column,
        max_lateness=derived.max_lateness_of(root),
        partitioned_by="day" if isinstance(partitions, dg.DailyPartitionsDefinition) else "hour",
        first=partitions.start.astimezone(UTC),
        format_version=derived.format_version,
        version=f"{code_version(derived, lake)}.{read_version}",
        descriptions=tuple(described_columns(derived.description).items()),
    )
    _check_retention(derived, plan)
    return plan


def _of(declared: PerSource | None, source: str) -> timedelta | None:
    """Return the duration of a source."""
    return declared.get(source) if isinstance(declared, Mapping) else declared


def _check_retention(derived: DerivedTable, plan: Derivation) -> None:
    """Check that a window can be computed while the sources still have the rows that it needs. Also
    that rows that arrive as late as the lookahead says are computed."""
    ahead = max((source.lookahead or timedelta() for source in plan.windowed), default=timedelta())
    for source in plan.windowed:
        around = {name: d for name, d in (("lookback", source.lookback), ("lookahead", ahead)) if d}
        is_forever = FOREVER in around.values()
        needed = FOREVER if is_forever else sum(around.values(), start=RETENTION_MARGIN)
        if source.kept is not None and around and needed >= source.kept:
            raise SpecError(
                f"{derived.file}: derived table {derived.name}: a source keeps its rows for "
                f"{source.kept}; with its {' and '.join(around)}, a window needs them "
                + ("for ever" if is_forever else f"for longer than {needed}"),
                hint="set `tableflow.data_retention_ms` of the topic to more, or declare a shorter "
                + " or ".join(f"`{name}`" for name in around),
            )
    if plan.max_lateness is not None and plan.max_lateness < ahead != FOREVER:
        raise SpecError(
            f"{derived.file}: derived table {derived.name}: its max_lateness of "
            f"{plan.max_lateness} is shorter than its lookahead of {ahead}: rows that the "
            "lookahead reads would come too late",
            hint="declare a longer `max_lateness`, or a shorter `lookahead`",
        )


def _source(name: str, lake: "Lake") -> Source:
    origin, ingested = lake.origin(name), lake.ingested.get(name)
    kept_ms = ingested.retention_ms if ingested else None
    if ingested is None or kept_ms is None or kept_ms >= MAX_RETENTION_MS:
        return Source(origin.identifier, origin.time)
    kept = timedelta(milliseconds=kept_ms)
    rule = ingested.root.payload_time if origin.time == ingested.root.event_time else None
    limit = timedelta(hours=rule.max_ahead_hours or 0) if rule else timedelta()
    # A longer limit keeps out wrong clocks: most times are not so far ahead.
    ahead = limit if limit < kept / 2 else timedelta()
    return Source(origin.identifier, origin.time, kept=kept, ahead=ahead)


def with_parameters(function: Callable[..., T], parameters: BaseModel | None) -> Callable[..., T]:
    """The function as it is called: with the table's parameters, if it takes them."""
    if parameters is None or "parameters" not in inspect.signature(function).parameters:
        return function
    return partial(function, parameters=parameters)


def derived_asset(derived: DerivedTable, table: LakeTable, lake: "Lake") -> dg.AssetsDefinition:
    partitions, plan = time_partitions(lake.root(derived)), lake.plan_of(derived.name)
    parents = {name: lake.origin(name) for name in derived.reads}
    keys = {name: origin.key("iceberg") for name, origin in parents.items()}
    names = ", ".join(f"`{name}`" for name in parents)

    @dg.asset(
        key=table.key("iceberg"),
        deps=list(keys.values()),
        group_name=table.group,
        kinds={"iceberg", "pyspark"},
        owners=list(table.owners),
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool="spark",
        description=f"Iceberg table `{'.'.join(table.identifier)}`, computed by PySpark from "
        f"{names}.\n\n{sections_as_lists(derived.description)}\n\n"
        "A run replaces exactly its partitions. A sensor requests the partitions in which records "
        "arrived, so partitions without records stay unmaterialized. The check `up_to_date` fails "
        "if one with records is missing or stale.",
        metadata={
            "dagster/table_name": ".".join(table.identifier),
            **documentation("add-a-pipeline.md"),
            "dagster/column_lineage": column_lineage(keys, derived.lineage, derived.sources),
        },
        code_version=code_version(derived, lake),
    )
    @retried()
    def compute(
        context: dg.AssetExecutionContext,
        topicberg_lakehouse: Lakehouse,
        topicberg_spark: Spark,
        topicberg_snowflake: Snowflake,
    ) -> dg.MaterializeResult:
        lakehouse, began = topicberg_lakehouse, time.monotonic()
        requested = requested_windows(partitions, context.run.tags)
        if not requested:
            raise TopicbergError(
                f"table {table.name}: the run has no partitions",
                hint="choose partitions: `topicberg sync` or Dagster's UI request those that are "
                "missing",
            )
        catalog = lakehouse.catalog()
        for name, origin in parents.items():
            if not catalog.table_exists(origin.identifier):
                # A table that reads two topics is computed if only one of them has records yet. The
                # run of another derived table is left to its own asset.
                context.log.info(f"there is no table of {name} yet: creating it")
                origin.create(lakehouse)
        with reported(_job_run(context, derived, requested, parents, catalog)) as outcome:
            # The run may have waited, or other tables of it have sources that keep their rows
            # longer: either leaves out what is past a retention when it begins.
            try:
                written = _compute(context, derived, plan, requested, lakehouse, topicberg_spark)
            except FailedPartitionsError as error:
                # Only they count as failed. The steps that follow are skipped, but readers get the
                # others.
                if error.written.windows:
                    _report_partitions(context, table, partitions, error.written)
                    for system, where in catalogs().items():
                        result = where.register(table, lakehouse, topicberg_snowflake)
                        context.log_event(
                            dg.AssetMaterialization(table.key(system), metadata=result.metadata)
                        )
                raise
            if not written.windows:
                context.log.info("its sources may have deleted the rows: its own stay as they are")
                return dg.MaterializeResult(metadata={"rows_written": 0})
            target = catalog.load_table(table.identifier)
            outcome.update(output=TableState.of(target), rows=written.rows)
        context.log.info(f"wrote {count(written.rows, 'row')}")
        duration = round(time.monotonic() - began, 3)
        if derived.chart and written.rows and lakehouse.endpoints().spark_connect:
            # One for all: each partition would store it.
            before = CHART_PARTITIONS * timedelta(hours=plan.hours)
            drawn = [hours.back(before) for hours in requested]
            frame = read_window(topicberg_spark.spark_session, plan.target, plan.target_time, drawn)
            draw = with_parameters(derived.chart, derived.parameters_of(lake.root(derived)))
            context.add_asset_metadata(
                {"chart": markdown(draw(frame))}, partition_key=context.partition_keys[-1]
            )
        metadata = {
            # Every partition gets a copy of the metadata: no sample for a long backfill.
            **table_metadata(target, sample=sum(len(span.hours) for span in requested) <= DAY),
            "rows_written": written.rows,
            "duration_seconds": duration,
            **_lag(catalog, [parent.identifier for parent in parents.values()], written),
            "source_snapshots": {name: str(snapshot) for name, snapshot in written.sources.items()},
        }
        _report_partitions(context, table, partitions, written, metadata)
        return dg.MaterializeResult(metadata=metadata)

    return compute


def _compute(
    context: dg.AssetExecutionContext,
    derived: DerivedTable,
    plan: Derivation,
    windows: Sequence[Window],
    lakehouse: Lakehouse,
    spark: Spark,
) -> WrittenWindow:
    """Compute windows, here or on EMR Serverless; see :func:`write_window`."""
    if emr := emr_settings():
        # Not above: dagster-aws takes as long to import as all else of a run.
        from topicberg.orchestration.emr.client import write_window_on_emr

        return write_window_on_emr(
            context, derived.name, windows, emr, lakehouse.config, lakehouse.endpoints()
        )
    session, catalog = spark.spark_session, lakehouse.catalog()
    of_sensor = is_computation_of_sensor(context.run.tags)
    return write_window(session, catalog, plan, *windows, keep_expired=of_sensor)


def _report_partitions(
    context: dg.AssetExecutionContext,
    table: LakeTable,
    partitions: TimePartitions,
    written: WrittenWindow,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """:param metadata: of each; None: the step fails, else Dagster materializes those of the run"""
    keys_of = partial(partition_keys, partitions, now=datetime.now(UTC))
    rows = Counter(dict.fromkeys(keys_of([window.hours for window in written.windows]), 0))
    for hour, added in written.rows_by_hour.items():
        rows.update(dict.fromkeys(keys_of([Hours(hour, hour + 1)]), added))
    materialized = set() if metadata is None else {*context.partition_keys}
    for key, rows_of_key in rows.items():
        facts = {"dagster/partition_row_count": rows_of_key}
        if key in materialized:
            context.add_asset_metadata(facts, partition_key=key)
        else:
            facts = {**(metadata or {}), **facts}
            context.log_event(
                dg.AssetMaterialization(table.key("iceberg"), partition=key, metadata=facts)
            )


def _job_run(
    context: dg.AssetExecutionContext,
    derived: DerivedTable,
    requested: Sequence[Window],
    parents: Mapping[str, LakeTable],
    catalog: "Catalog",
) -> JobRun:
    """Return what OpenLineage's events say of a run; nothing is read if lineage is off."""
    run = JobRun(f"{context.run.job_name}.{derived.name}", run_id(context.run.run_id, derived.name))
    if not is_on():
        return run
    states = {
        name: TableState.of(catalog.load_table(parent.identifier))
        for name, parent in parents.items()
    }
    return replace(
        run,
        inputs=tuple(states.values()),
        origins={
            column: tuple(
                (states[source].dataset, name)
                for source, name in source_columns(origins, states, derived.sources)
            )
            for column, origins in derived.lineage.items()
        },
        parent=(context.run.run_id, context.run.job_name),
        window=(start, requested[-1].end) if (start := requested[0].start) else None,
    )


def _lag(
    catalog: "Catalog", parents: Iterable[tuple[str, str]], written: WrittenWindow
) -> dict[str, float]:
    """Return the seconds from the newest commit of the sources that was read until now."""
    read = {identifier: written.sources.get(".".join(identifier)) for identifier in parents}
    snapshots = (
        catalog.load_table(identifier).snapshot_by_id(snapshot_id)
        for identifier, snapshot_id in read.items()
        if snapshot_id is not None
    )
    if not (times := [snapshot.timestamp_ms for snapshot in snapshots if snapshot]):
        return {}
    return {"source_lag_seconds": round(max(0.0, time.time() - max(times) / 1000), 3)}


def code_version(derived: DerivedTable, lake: "Lake") -> str:
    """Return what changes with what the rows depend on: code, parameters, and what is read."""
    root = lake.root(derived)
    parameters = derived.parameters_of(root)
    given = repr(
        (
            derived.sources,
            derived.lookups,
            derived.time_column,
            derived.reach("lookback", root),
            derived.reach("lookahead", root),
            str(root.derived_partitions.granularity) if root.derived_partitions else None,
            parameters.model_dump_json() if parameters else None,
        )
    )
    if derived.code_version is not None:
        return code.hashed(given, derived.code_version)
    models = (derived.parameters,) if derived.parameters else ()
    return code.code_version(derived.transform, given, *models)
