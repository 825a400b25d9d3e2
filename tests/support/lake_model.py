"""A small lake for tests: sources, tables that are derived from them, sensors and their runs.

Tables are real Iceberg tables; what computes them is Python instead of Spark. Everything that
decides what is computed is the product's own.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import dagster as dg
import numpy as np
import pyarrow as pa
from dagster import DagsterEventType
from dagster._core.events import JobFailureData, RunFailureReason
from format_versions import assert_summary_has_hours, written
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import HourTransform
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.types import LongType, NestedField, TimestamptzType

from topicberg.checks.derived import MEMORY, check_up_to_date
from topicberg.checks.finding import Finding
from topicberg.iceberg.hours import Hours
from topicberg.iceberg.maintenance.expiry import expire
from topicberg.iceberg.maintenance.policy import MaintenancePolicy
from topicberg.iceberg.position_deletes import FileRows, delete_rows
from topicberg.iceberg.read_tags import PREFIX, reading
from topicberg.iceberg.summaries import END_OFFSETS, ancestry, summary
from topicberg.orchestration.assets.partitions import (
    partition_keys,
    requested_windows,
    time_partitions,
)
from topicberg.orchestration.assets.registry import TopicTable
from topicberg.orchestration.jobs.registration import Registrar
from topicberg.orchestration.jobs.sensors import INTERVAL_SECONDS, SensorTick
from topicberg.orchestration.jobs.watches import MAX_DELAY_SECONDS, TableWatch
from topicberg.orchestration.jobs.watches import Computation as TableComputation
from topicberg.tableflow.values.commit import add_files
from topicberg.topics import TopicSpec
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import summary_of
from topicberg.transforms.windows import FOREVER, WINDOW, Window

SCHEMA = Schema(NestedField(1, "at", TimestamptzType()), NestedField(2, "id", LongType()))
ARROW = schema_to_pyarrow(SCHEMA)
HOURLY = PartitionSpec(PartitionField(1, 1000, HourTransform(), "at_hour"))
HOURS = 5
"""Rows are of the hours 0 to this one, which is two hours ago."""
NOW = timedelta(0)
EAGER = MaintenancePolicy(
    retention=NOW, min_snapshots=1, max_snapshots=1, reader_age=NOW, staged_age=NOW
)
numbers = count()

Row = tuple[datetime | None, int]
Rows = list[Row]
Function = Callable[..., Rows]
"""Rows of each source in a window (and before it), the window: rows of the derived table."""


def _hour_of(self: HourTransform, _source: Any) -> Any:
    """What PyIceberg does with its core in Rust, which is not installed."""
    import pyarrow.compute as pc

    def hours(times: Any) -> Any:
        micros = pc.cast(pc.cast(times, pa.timestamp("us")), pa.int64())
        return pc.cast(pc.divide(micros, 3_600_000_000), pa.int32())

    return hours


HourTransform.pyarrow_transform = _hour_of  # type: ignore[method-assign,assignment]


def this_hour() -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def present(window: Window, row: Row) -> bool:
    if row[0] is None:
        return window.start is None
    return row[0] < window.end and (window.start is None or row[0] >= window.start)


def even(window: Window, rows: Rows) -> Rows:
    """Some rows of the window."""
    return [row for row in rows if row[1] % 2 == 0]


def counted(window: Window, rows: Rows) -> Rows:
    """Each row, with the number of those in the hour before it: a lookback."""
    hour = timedelta(hours=1)
    return [
        (at, number * 1000 + sum(1 for other, _ in rows if other and at - hour <= other < at))
        for at, number in rows
        if at is not None and present(window, (at, number))
    ]


def unmatched(window: Window, rows: Rows, others: Rows) -> Rows:
    """Rows without another of their hour and id: rows appear when those of others are removed."""

    def hour(row: Row) -> tuple[datetime | None, int]:
        return row[0].replace(minute=0, second=0) if row[0] else None, row[1]

    there = {hour(other) for other in others}
    return [row for row in rows if hour(row) not in there]


def looked_up(window: Window, rows: Rows, all_others: Rows) -> Rows:
    """Each row, with the number of rows that a lookup had at its time."""
    return [
        (at, number * 1000 + sum(1 for other, _ in all_others if other and at and other <= at))
        for at, number in rows
    ]


def late(window: Window, rows: Rows) -> Rows:
    """Each row at a time of its payload, up to three hours before it arrived."""
    return [(at - timedelta(hours=number % 4), number) for at, number in rows if at]


def from_far(window: Window, rows: Rows) -> Rows:
    """Each row at a time of its payload, any time before it arrived."""
    return [(at - timedelta(hours=number % 4 * 3), number) for at, number in rows if at]


def neighbours(window: Window, rows: Rows) -> Rows:
    """Each row, with the number of those in the hours before and after it."""
    hour, times = timedelta(hours=1), [at for at, _ in rows if at]
    return [
        (at, number * 1000 + sum(1 for other in times if at - hour <= other <= at + hour))
        for at, number in rows
        if at is not None
    ]


def partnered(window: Window, rows: Rows, others: Rows) -> Rows:
    """Each row, with the number of all others that it gets from its own hour on."""
    return [(at, number * 1000 + sum(at <= o for o, _ in others if o)) for at, number in rows if at]


@dataclass
class Derived:
    plan: Derivation
    function: Function
    memory: Any = None


@dataclass
class Computation:
    """Windows that are being computed: what was read, and the head of the target before."""

    derived: Derived
    windows: tuple[Window, ...]
    head: int | None
    properties: dict[str, str]
    heads: dict[str, int | None]
    versions: dict[int, Any]
    uuids: dict[str, str]
    tags: ExitStack


@dataclass
class Run:
    """A run that was requested; ``computing``: by table, what has begun."""

    run_id: str
    tables: list[str]
    windows: list[Window]
    computing: dict[str, Computation] = field(default_factory=dict)

    @property
    def described(self) -> str:
        hours = ",".join(str(window) for window in self.windows)
        return f"{' '.join(self.tables)} {hours}"


class SourceOfModel(TopicTable):
    """A table whose snapshots no materialization reports."""

    reported: ClassVar[bool] = False


class SweepOfSources(SensorTick):
    """A tick that looks at derived tables only where it has a reason to."""

    def swept(self) -> set[str]:
        return {"a", "b", "l"}


class Compaction(_OverwriteFiles):
    """Every row in one new file, with the sequence number of the rewrite's start, as by Spark."""

    starting = 0

    def _manifests(self) -> list[ManifestFile]:
        written = []
        with self.new_manifest_writer(self._transaction.table_metadata.spec()) as writer:
            for file in self._added_data_files:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=self.starting,
                        data_file=file,
                    )
                )
        written.append(writer.to_manifest_file())
        return written

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        records = sum(file.record_count for file in self._added_data_files)
        size = sum(file.file_size_in_bytes for file in self._added_data_files)
        return Summary(
            operation=Operation.REPLACE,
            **{
                "total-records": str(records),
                "total-data-files": str(len(self._added_data_files)),
                "total-files-size": str(size),
                "deleted-data-files": "1",
            },
        )


class Lake:
    """Sources ``a``, ``b`` and ``l`` (a lookup), and tables of them."""

    def __init__(
        self,
        catalog: SqlCatalog,
        instance: dg.DagsterInstance,
        *,
        partitioned: bool,
        exact: bool = False,
    ) -> None:
        """:param exact: it is known which hours are complete: each file has rows of one hour, and
        no history is lost or reverted, as by rollbacks and other tools' expiry
        """
        self.catalog, self.instance, self.partitioned = catalog, instance, partitioned
        self.exact, self.steps = exact, EXACT_STEPS if exact else STEPS
        self.touched: dict[str, Counter[int]] = defaultdict(Counter)
        """Table → hour → how often its rows changed."""
        self.shop = f"shop{next(numbers)}"
        catalog.create_namespace(self.shop)
        self.ids = count(1)
        self.hours = [this_hour() + timedelta(hours=hour - HOURS - 2) for hour in range(HOURS + 1)]
        for name in ("a", "b", "l"):
            self._create(name)
        self.spec = TopicSpec.model_validate(
            {
                "name": "a",
                "pipeline": "p",
                "schema": {"format": "none"},
                "derived_partitions": {
                    "granularity": "hourly",
                    "start": self.hours[1].date() if self.hours[1].hour else self.hours[0].date(),
                },
            }
        )
        self.partitions = time_partitions(self.spec)
        hour = timedelta(hours=1)
        self.derived = {
            name: Derived(
                Derivation(
                    sources=tuple(
                        Source(
                            (self.shop, each),
                            "at",
                            whole=each == "l",
                            lookback=lookback,
                            lookahead=None if (name, each) == ("partnered", "a") else lookahead,
                        )
                        for each in sources
                    ),
                    target=(self.shop, name),
                    transform=lambda *_: None,  # type: ignore[arg-type]
                    target_time="at",
                    first=self.partitions.start,
                ),
                function,
            )
            for name, sources, function, lookback, lookahead in (
                ("even", "a", even, None, None),
                ("counted", "a", counted, hour, None),
                ("unmatched", "ab", unmatched, None, None),
                ("looked_up", "al", looked_up, None, None),
                ("again", ("even",), even, hour, None),
                ("chained", ("even",), even, None, None),
                ("late", "a", late, None, 3 * hour),
                ("from_far", "a", from_far, None, FOREVER),
                ("neighbours", "a", neighbours, hour, hour),
                ("partnered", "ab", partnered, None, 2 * hour),
            )
        }
        self.watched = {
            name: TableWatch(self._origin(name), tuple(self._readers(name)))
            for name in ("a", "b", "l")
        }
        for name, derived in self.derived.items():
            key = dg.AssetKey(["iceberg", name])
            self.watched[name] = TableWatch(
                self._origin(name),
                tuple(self._readers(name)),
                computation=TableComputation(
                    derived.plan,
                    self.partitions,
                    "compute_tables",
                    assets=(key,),
                    checks=(),
                    downstream=("chained",) if name == "even" else (),
                ),
            )
        self.cursor: str | None = None
        self.now = time.time()
        self.keys: set[str] = set()
        """Of the runs that were launched."""
        self.runs: list[Run] = []
        """Those that have not ended."""
        self.read: dict[tuple[str, int], Any] = {}
        """Table and hour → the version of the sources that it was last computed from."""

    def _readers(self, name: str) -> Iterator[str]:
        for derived in self.derived.values():
            if any(source.table[1] == name for source in derived.plan.sources):
                yield derived.plan.target[1]

    def _origin(self, name: str) -> TopicTable:
        return SourceOfModel(
            name=name,
            identifier=(self.shop, name),
            group="p",
            root=self.spec,
            time="at",
            source=name,
        )

    def _create(self, name: str) -> Table:
        is_hourly = self.exact or (self.partitioned and name == "a")
        spec = HOURLY if is_hourly else PartitionSpec()
        return self.catalog.create_table((self.shop, name), SCHEMA, partition_spec=spec)

    # --- sources ---

    def table(self, name: str) -> Table:
        return self.catalog.load_table((self.shop, name))

    def _find(self, name: tuple[str, str]) -> Table | None:
        return self.catalog.load_table(name) if self.catalog.table_exists(name) else None

    def rows(self, name: str, snapshot: int | None = None) -> Rows:
        try:
            table = self.table(name)
        except NoSuchTableError:
            return []
        if snapshot is None and table.current_snapshot() is None:
            return []
        found = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
        return sorted(((row["at"], row["id"]) for row in found), key=str)

    @contextmanager
    def _changing(self, name: str) -> Iterator[None]:
        """Count which hours of a source change."""
        before = Counter(self.rows(name))
        yield
        after = Counter(self.rows(name))
        self._touch(name, (*(before - after), *(after - before)))

    def _touch(self, name: str, rows: Iterable[Row]) -> None:
        self.touched[name].update({int(at.timestamp()) // 3600 for at, _ in rows if at})

    def _new_rows(self, hours: Iterable[int], ids: list[int] | None) -> pa.Table:
        rows = [
            {"at": self.hours[hour] + timedelta(seconds=number), "id": number}
            for hour, number in zip(hours, ids or self.ids, strict=False)
        ]
        return pa.Table.from_pylist(rows, ARROW)

    def append(self, name: str, *hours: int, ids: list[int] | None = None) -> None:
        """Add rows, as another tool does it."""
        with self._changing(name):
            self.table(name).append(self._new_rows(hours, ids))

    def ingest(
        self, name: str, *hours: int, ids: list[int] | None = None, replaced: Collection[int] = ()
    ) -> None:
        """Commit a batch, as the engine does it.

        :param replaced: the ids of rows that it deletes
        """
        table, rows = self.table(name), self._new_rows(hours, ids)
        head = table.current_snapshot()
        with self._changing(name):
            add_files(
                table,
                head.snapshot_id if head else None,
                written(table, rows),
                self._places(table, replaced),
                {END_OFFSETS: "{}"},
                time="at",
            )
        assert_summary_has_hours(table.refresh(), "at")

    def delete(self, name: str, ids: list[int]) -> None:
        """Files are written again without these rows."""
        with self._changing(name):
            self.table(name).delete(f"id IN ({', '.join(map(str, ids))})")

    def delete_by_position(self, name: str, ids: list[int]) -> None:
        table = self.table(name)
        if found := self._places(table, ids):
            with self._changing(name):
                delete_rows(table, found, {}, ())

    def _places(self, table: Table, ids: Collection[int]) -> list[FileRows]:
        """Return where rows are."""
        found = []
        for task in table.scan().plan_files():
            with table.io.new_input(task.file.file_path).open() as stream:
                column = pa.parquet.read_table(stream, columns=["id"]).column("id").to_pylist()
            places = [place for place, number in enumerate(column) if number in ids]
            if places:
                found.append(FileRows(task.file, np.array(places, np.uint32)))
        return found

    def compact(self, name: str, *, starting: bool = True) -> None:
        table = self.table(name)
        head = table.current_snapshot()
        data = table.scan().to_arrow() if head else None
        if head is None or data is None or not data.num_rows:
            return
        transaction = table.transaction()
        change = Compaction(Operation.OVERWRITE, transaction, table.io)
        change.starting = head.sequence_number or 0
        if not starting:
            change.starting += 1
        for file in _dataframe_to_data_files(transaction.table_metadata, data, table.io):
            change.append_data_file(file)
        change.commit()
        transaction.commit_transaction()

    def roll_back(self, name: str, steps: int) -> None:
        table = self.table(name)
        line = list(ancestry(table))
        if len(line) > 1:
            to = line[min(steps, len(line) - 1)].snapshot_id
            table.manage_snapshots().rollback_to_snapshot(to).commit()

    def expire(self, name: str, keep: int = 1) -> None:
        """As another tool does it."""
        table = self.table(name)
        keep_ids = {each.snapshot_id for each in list(ancestry(table))[:keep]}
        keep_ids |= {ref.snapshot_id for ref in table.metadata.refs.values()}
        expired = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in keep_ids]
        if expired:
            before = table.metadata.snapshots
            table.maintenance.expire_snapshots().by_ids(expired).commit()
            removed = [s for s in before if s.snapshot_id in expired]
            self._delete_files(table, removed, [s for s in before if s not in removed])

    def _delete_files(self, table: Table, removed: list[Any], kept: list[Any]) -> None:
        from topicberg.iceberg.files import delete_files
        from topicberg.iceberg.maintenance.expiry import _only_of

        delete_files(table.io, _only_of(removed, kept, table.io))

    def maintain(self, name: str) -> None:
        """As topicberg does it."""
        expire(self.table(name), EAGER, int(datetime.now(UTC).timestamp() * 1000), "at")

    def create_again(self, name: str) -> None:
        self.catalog.drop_table((self.shop, name))
        self._create(name)

    # --- derived tables ---

    def truth(self, name: str) -> Rows:
        """What computing everything again makes of the sources."""
        derived, everything = self.derived[name], Window(None, this_hour() + timedelta(hours=1))
        sources = [self.rows(each.table[1]) for each in derived.plan.sources]
        if name == "partnered":  # how many others a row gets depends on what is read
            rows, others = sources
            return sorted(self._partnered(rows, others), key=str)
        found = derived.function(everything, *sources)
        return sorted((row for row in found if present(everything, row)), key=str)

    def _partnered(self, rows: Rows, others: Rows) -> Iterator[Row]:
        """Yield the rows of the hours until now, with the others of its hour and the two after."""
        for at, number in rows:
            if at and at < this_hour() + timedelta(hours=1):
                hour = max(at.replace(minute=0, second=0, microsecond=0), self.partitions.start)
                end = hour + timedelta(hours=3)
                yield at, number * 1000 + sum(at <= other < end for other, _ in others if other)

    def begin(self, derived: Derived, *windows: Window) -> Computation:
        plan, tags = derived.plan, ExitStack()
        try:
            target = self.catalog.load_table(plan.target)
        except NoSuchTableError:
            target = self.catalog.create_table(plan.target, SCHEMA, partition_spec=HOURLY)
        sources = {each.name: self.catalog.load_table(each.table) for each in plan.sources}
        properties = summary_of(plan, target, sources, windows, [])
        tags.enter_context(reading(sources.values(), plan.name))
        head = target.current_snapshot()
        return Computation(
            derived,
            windows,
            head.snapshot_id if head else None,
            properties,
            {n: h.snapshot_id if (h := t.current_snapshot()) else None for n, t in sources.items()},
            self._versions(plan.target[1], windows),
            {name: table.metadata.table_uuid.hex for name, table in sources.items()},
            tags,
        )

    def finish(self, computation: Computation) -> bool:
        """False: another run computed some of the same hours meanwhile."""
        plan, windows = computation.derived.plan, computation.windows
        target = self.catalog.load_table(plan.target)
        for snapshot in ancestry(target):
            if snapshot.snapshot_id == computation.head:
                break
            text = summary(snapshot).get(WINDOW)
            parsed = Window.parse_all(text) if text else ()
            if any(_meet(other, window) for other in parsed for window in windows):
                computation.tags.close()
                return False
        for source in plan.sources:
            head, table = computation.heads[source.name], self.table(source.table[1])
            if table.metadata.table_uuid.hex != computation.uuids[source.name]:
                computation.tags.close()
                return False  # the source was dropped meanwhile
            assert head is None or table.snapshot_by_id(head), "what is read must not expire"
        everything = []
        for source in plan.sources:
            head = computation.heads[source.name]
            everything.append(self.rows(source.table[1], head) if head else [])
        computation.tags.close()
        rows = []
        for call in [call for window in windows for call in plan.calls(window)]:
            sources = [
                [
                    row
                    for row in all_
                    if (read := plan.read(source, call)) is None or present(read, row)
                ]
                for source, all_ in zip(plan.sources, everything, strict=True)
            ]
            found = computation.derived.function(call, *sources)
            rows += [row for row in found if present(call, row)]
        data = pa.Table.from_pylist([{"at": at, "id": number} for at, number in rows], ARROW)
        inside = " OR ".join(f"({_inside(window)})" for window in windows)
        name, before = plan.target[1], self.rows(plan.target[1])
        target.overwrite(data, inside, snapshot_properties=computation.properties)
        rewritten = [row for row in {*before, *rows} if any(present(w, row) for w in windows)]
        self._touch(name, rewritten)
        self.read |= {(name, hour): version for hour, version in computation.versions.items()}
        return True

    def _versions(self, name: str, windows: Iterable[Window]) -> dict[int, Any]:
        """Return hour → the state of the sources that its rows follow from."""
        now, sources = datetime.now(UTC), self.derived[name].plan.source_tables(self._find)
        hours = [
            hour
            for window in windows
            for hour in range(max(window.hours.start, self.first_hour), window.hours.stop)
        ]
        if not self.exact:
            heads = [source.table.metadata.current_snapshot_id for source in sources.values()]
            return dict.fromkeys(hours, heads)
        reached = [
            (source.reached(Hours(hour, hour + 1), now), changes)
            for source in sources.values()
            for hour, changes in self.touched[source.table.name()[-1]].items()
        ]
        return {hour: sum(n for of_change, n in reached if hour in of_change) for hour in hours}

    @property
    def first_hour(self) -> int:
        return int(self.partitions.start.timestamp()) // 3600

    def compute(self, name: str, *windows: Window) -> None:
        while not self.finish(self.begin(self.derived[name], *windows)):
            pass

    # --- Dagster ---

    def tick(self, *, crash: bool = False, launch: bool = True, sweeps: bool = False) -> bool:
        """Whether anything was done.

        :param crash: nothing of the tick is kept
        :param sweeps: it looks at every table
        """
        self.now += INTERVAL_SECONDS
        context = SimpleNamespace(
            instance=self.instance, cursor=self.cursor, log=logging.getLogger("tick")
        )
        endpoints = SimpleNamespace(catalog=lambda _: self.catalog)
        evaluation = (SensorTick if sweeps else SweepOfSources)(
            cast("Any", context),
            cast("Any", endpoints),
            cast("Any", SimpleNamespace(prefix=self.shop)),
            self.watched,
            {},
            Registrar(lambda _: []),
            self.now,
        )
        result = evaluation.run()
        if crash or isinstance(result, dg.SkipReason):
            return False
        self.cursor = result.cursor
        for request in result.run_requests or ():
            assert request.run_key not in self.keys, "Dagster launches no key twice"
            if launch:
                self.keys.add(str(request.run_key))
                self._launch(request)
        return True

    def _launch(self, request: dg.RunRequest) -> None:
        run = Run(
            str(uuid.uuid4()),
            [key.path[1] for key in request.asset_selection or ()],
            requested_windows(self.partitions, request.tags),
        )
        self._assert_not_computed(run)
        self.instance.add_run(
            dg.DagsterRun(
                job_name=str(request.job_name),
                run_id=run.run_id,
                tags={**request.tags, "dagster/run_key": str(request.run_key)},
                asset_selection=frozenset(request.asset_selection or ()),
                status=dg.DagsterRunStatus.STARTED,
            )
        )
        self.runs.append(run)

    def _assert_not_computed(self, run: Run) -> None:
        """Each hour of each table follows from another state than when it was last computed."""
        for name in run.tables:
            if {*[source.table[1] for source in self.derived[name].plan.sources]} & {*run.tables}:
                continue  # which is computed before it
            for hour, version in self._versions(name, run.windows).items():
                assert self.read.get((name, hour)) != version, f"{name} {hour} is computed"

    def begin_run(self, run: Run) -> None:
        """Let it read its sources; tables that follow from others of the run wait for these."""
        for name in run.tables:
            if not {source.table[1] for source in self.derived[name].plan.sources} & {*run.tables}:
                run.computing[name] = self.begin(self.derived[name], *run.windows)

    def end_run(self, run: Run, left: int = 0, reason: RunFailureReason | None = None) -> None:
        """Let it compute its tables, and end.

        :param left: so many of them are not computed
        :param reason: why it fails; None: it succeeds
        """
        for name in run.tables[: len(run.tables) - left]:
            computation = run.computing.pop(name, None)
            if computation is None or not self.finish(computation):
                self.compute(name, *run.windows)
        for computation in run.computing.values():
            computation.tags.close()
        how, data = DagsterEventType.RUN_SUCCESS, None
        if reason:
            how, data = DagsterEventType.RUN_FAILURE, JobFailureData(None, failure_reason=reason)
        event = dg.DagsterEvent(how.value, "compute_tables", event_specific_data=data)
        self.instance.report_dagster_event(event, run.run_id, timestamp=self.now)
        self.runs.remove(run)

    def settle(self) -> int:
        """Let the sensor tick, and runs succeed, until nothing is left; return how many there were.
        Meanwhile runs that failed are tried again."""
        count = 0
        for _ in range(40):
            for run in [*self.runs]:
                self.end_run(run)
                count += 1
            self.now += 2 * MAX_DELAY_SECONDS
            if not self.tick() and not self.runs and not self.tick(sweeps=True):
                return count
        raise AssertionError("the sensor never comes to rest")

    # --- the check ---

    def check(self, name: str, minutes: float = 60) -> tuple[Finding, list[str]]:
        derived, late = self.derived[name], list[str]()
        plan, now = derived.plan, datetime.now(UTC)
        try:
            table = self.catalog.load_table(plan.target)
        except NoSuchTableError:
            table = None

        def keys(hours: Any) -> list[str]:
            late[:] = partition_keys(self.partitions, hours, now)
            return late

        found = check_up_to_date(
            table,
            "at",
            plan.source_tables(self._find),
            30,
            now + timedelta(minutes=minutes),
            derived.memory,
            keys,
            " ".join,
        )
        derived.memory = found.facts[MEMORY]
        return found, late

    def verify_check(self, name: str) -> None:
        """A table that is not what its sources make of it is never called up to date."""
        self.check(name, 0)
        found, _ = self.check(name)
        if found.passed:
            assert self.rows(name) == self.truth(name), f"{name}: the check passes"

    def verify(self) -> None:
        """Everything is computed, nothing is tagged, and the checks say so."""
        for name in self.derived:
            assert self.rows(name) == self.truth(name), name
            found, late = self.check(name)
            assert found.passed, (name, late, found.lines)
        for name in ("a", "b", "l"):
            tags = [ref for ref in self.table(name).refs() if ref.startswith(PREFIX)]
            assert not tags, tags


def _inside(window: Window) -> str:
    before_end = f"at < '{window.end.isoformat()}'"
    if window.start is None:
        return f"{before_end} OR at IS NULL"
    return f"at >= '{window.start.isoformat()}' AND {before_end}"


def _meet(one: Window, other: Window) -> bool:
    return one.hours.start < other.hours.stop and other.hours.start < one.hours.stop


STEPS = Counter(
    {
        "append": 6,
        "ingest": 6,
        "delete": 3,
        "delete by position": 4,
        "compact": 5,
        "roll back": 2,
        "expire": 5,
        "maintain": 5,
        "create again": 1,
        "tick": 8,
        "crash": 1,
        "no launch": 1,
        "begin": 4,
        "succeed": 6,
        "fail": 2,
        "kill": 2,
        "later": 2,
        "reset": 1,
        "backfill": 2,
        "check": 4,
    }
)


EXACT_STEPS = Counter(
    {
        what: times
        for what, times in STEPS.items()
        if what not in ("roll back", "expire", "create again")
    }
)


def step(lake: Lake, random: Random) -> str:
    """Do something; says what."""
    (what,) = random.choices([*lake.steps], [*lake.steps.values()])
    source, name = random.choice("aaabl"), random.choice([*lake.derived])
    runs, detail = lake.runs, ""
    match what:
        case "append" | "ingest":
            hours, ids = [random.randrange(HOURS + 1) for _ in range(random.randrange(1, 3))], None
            if source == "b" and (known := lake.rows("a")):
                at, number = random.choice(known)
                hours, ids = [lake.hours.index(at.replace(minute=0, second=0))], [number]
            if what == "append":
                lake.append(source, *hours, ids=ids)
            else:
                there = [number for _, number in lake.rows(source)]
                replaced = random.sample(there, min(len(there), random.randrange(3)))
                lake.ingest(source, *hours, ids=ids, replaced=replaced)
                detail = f"without {replaced} "
            detail += f"{source} {hours} {ids}"
        case "delete" | "delete by position":
            rows = lake.rows(source)
            if rows:
                ids = [number for _, number in random.sample(rows, min(2, len(rows)))]
                (lake.delete if what == "delete" else lake.delete_by_position)(source, ids)
                detail = f"{source} {ids}"
        case "compact":
            where = random.choice([source, "even"])
            if lake.catalog.table_exists((lake.shop, where)) and where != "even":
                starting = random.random() < 0.7
                lake.compact(where, starting=starting)
                detail = f"{where} {starting}"
        case "roll back":
            steps = random.randrange(1, 4)
            lake.roll_back(source, steps)
            detail = f"{source} {steps}"
        case "expire" | "maintain":
            where = random.choice([source, name])
            if lake.catalog.table_exists((lake.shop, where)):
                keep = random.randrange(1, 4)
                lake.expire(where, keep) if what == "expire" else lake.maintain(where)
                detail = f"{where} {keep}"
        case "create again":
            lake.create_again(source)
            detail = source
        case "tick":
            lake.tick(sweeps=random.random() < 0.2)
        case "crash":
            lake.tick(crash=True)
        case "no launch":
            lake.tick(launch=False)
        case "later":
            lake.now += 60
        case "begin" | "succeed" | "fail" | "kill" if runs:
            run = random.choice(runs)
            detail = run.described
            if what == "begin":
                if not run.computing:
                    lake.begin_run(run)
            elif what == "succeed":
                lake.end_run(run)
            else:
                failed = what == "fail"
                reason = RunFailureReason.STEP_FAILURE if failed else RunFailureReason.UNKNOWN
                lake.end_run(run, random.randrange(1, len(run.tables) + 1), reason)
        case "reset":
            lake.cursor = None
        case "backfill":
            start = random.randrange(HOURS + 1)
            end = lake.hours[random.randrange(start, HOURS + 1)] + timedelta(hours=1)
            if all(lake.catalog.table_exists(s.table) for s in lake.derived[name].plan.sources):
                lake.compute(name, Window(lake.hours[start], end))
                detail = f"{name} {start} {end}"
        case "check":
            lake.verify_check(name)
            detail = name
        case _:
            pass
    return f"{what} {detail}"
