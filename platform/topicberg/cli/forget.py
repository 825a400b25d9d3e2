"""``topicberg forget``: erases one key of a topic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.output import Yes, confirm, echo, load_endpoints, load_lake, settings, warn
from topicberg.cli.tableflow import require_own_engine
from topicberg.errors import SpecError, TopicbergError
from topicberg.wording import count

if TYPE_CHECKING:
    from topicberg.orchestration.assets.derived import DerivedTable
    from topicberg.orchestration.assets.tables import LakeTable
    from topicberg.settings import Settings
    from topicberg.tableflow.erasure.catch_up import Uncovered
    from topicberg.tableflow.erasure.forgetting import Forgetting
    from topicberg.tableflow.erasure.locations import Found
    from topicberg.tableflow.erasure.records import KeyRecords
    from topicberg.tableflow.erasure.rows import ErasureTarget, KeyRows
    from topicberg.tableflow.erasure.steps import Erased

NOT_FOUND = 1
"""The exit code if nothing holds the key."""


def forget(
    topic: Annotated[str, typer.Argument(help="name of the topic")],
    key: Annotated[
        str | None,
        typer.Argument(
            help="value of the key; JSON with all columns if it has several; - reads it from "
            "standard input, so that it is not in the list of processes"
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="COLUMN=VALUE",
            help="instead of KEY: the rows whose column has the value; COLUMN=- reads it from "
            "standard input",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="TABLE.COLUMN",
            help="a column of a derived table that holds the key, although its lineage does not "
            "say so; repeat it for each",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what is deleted")] = False,
    yes: Yes = False,
    reason: Annotated[str, typer.Option(help="why; recorded in the tables")] = "not given",
) -> None:
    """Erase the rows of one key, also from history, dead letters, derived tables and old files.

    In a compacted topic, a tombstone deletes the key's records. You cannot undo it. The exit code
    is 1 if nothing holds the key.
    """
    from topicberg.tableflow.erasure.catch_up import CatchUp
    from topicberg.tableflow.erasure.forgetting import Forgetting
    from topicberg.tableflow.erasure.records import write_tombstones
    from topicberg.tableflow.erasure.rows import KeyRows, topic_targets
    from topicberg.tableflow.service.control import enabled_topics, find_topic

    require_own_engine()
    config = settings()
    where_column, text = _wanted(key, where)
    spec = find_topic(config, topic)
    endpoints = load_endpoints(config)
    key_rows = KeyRows.parse(spec, text, endpoints, config, where_column)
    derived = _Derived(key_rows, config, column or ())
    targets = [*topic_targets(spec, config, key_rows.key, where_column), *derived.targets]
    catch_up = CatchUp(spec, targets, endpoints, config)
    job = Forgetting(key_rows, targets, endpoints, config, reason)
    enabled = topic in enabled_topics(config)
    left = catch_up.unread() if dry_run else catch_up.drain(enabled=enabled)
    records = job.records()
    reports = {target.name: report for target in targets if (report := job.find(target)).holders}
    if not reports and not records.pending:
        derived.report()
        _report_uncovered(left, fails=not dry_run)
        if not dry_run:
            job.remember()
        echo(f"{topic}: no table holds the key, and Kafka needs no tombstone for it")
        raise typer.Exit(NOT_FOUND)
    holding = [target for target in targets if target.name in reports]
    dead = job.dead_letters() if any(target.is_dead_letters for target in holding) else None
    echo(f"{each.name} ({each.description}): {_shown(reports[each.name])}" for each in holding)
    if records.compacted:
        echo(
            f"Kafka topic {topic}, compacted: {count(records.count, 'record')} of the key, "
            f"{count(len(records.pending), 'tombstone')} to write"
        )
    if dry_run:
        derived.report()
        echo((*_stays(job, records, dead), *derived.uncovered(), *derived.next_steps({})))
        _report_uncovered(left, fails=False)
        echo("nothing was changed")
        return
    if not yes:
        derived.report()
    confirm("Erase all of this? It cannot be undone", yes=yes)
    echo(
        f"Kafka topic {each.topic}: {count(written, 'tombstone')} written"
        for each in (records, dead)
        if each is not None and (written := write_tombstones(endpoints, each))
    )
    left = catch_up.drain(enabled=enabled)
    done: dict[str, Erased] = {}
    for target in targets:
        done[target.name] = erased = job.erase(target)
        if erased.replaced or erased.snapshots_expired:
            echo(f"{target.name}: {_done(erased)}")
    echo(
        f"{target.name}: proof: none of {count(proof.files, 'file')} holds the key; read were all "
        f"files of {count(proof.snapshots, 'snapshot')}, and {proof.unreachable} that are only in "
        "the table's folder"
        for target in targets
        if (proof := job.prove(target)) is not None
    )
    derived.report()
    echo((*_stays(job, records, dead), *derived.uncovered(), *derived.next_steps(done)))
    _report_uncovered(left, fails=True)
    for name, erased in done.items():
        if erased.readers:
            raise TopicbergError(
                f"{name}: {', '.join(erased.readers)}: what reads the table as it was before has "
                "not ended, and may still write the key",
                hint="run the command again when it has ended",
            )


def _wanted(key: str | None, where: str | None) -> tuple[str | None, str]:
    """Return the column of ``--where``, None if there is none, and the value; raise SpecError if
    neither or both of KEY and ``--where`` are given."""
    if (key is None) == (where is None):
        raise SpecError(
            "forget: expected either KEY or --where COLUMN=VALUE",
            hint="write `topicberg forget TOPIC KEY`, or `topicberg forget TOPIC --where "
            "COLUMN=VALUE` for a value that is not the key",
        )
    column, equals, text = (where or "").partition("=")
    if where is not None and not (column and equals):
        raise SpecError(
            "forget: --where is not of the form COLUMN=VALUE",
            hint="write for instance --where email=alice@example.org",
        )
    text = text if key is None else key
    return column or None, sys.stdin.readline().rstrip("\n") if text == "-" else text


def _stays(job: Forgetting, *of_topics: KeyRecords | None) -> Iterator[str]:
    """Yield what Kafka keeps, and what a value that is not the key does not find."""
    for records in of_topics:
        yield from _kept(records)
    name, where = job.key_rows.spec.name, job.key_rows.where
    if where is not None:
        yield (
            f"not covered: records whose value could not be decoded, and so have no {where}: run "
            f"`topicberg forget {name} KEY` with the keys of the person for dead letters"
        )
    if where is not None and job.lacks_keys:
        yield (
            f"not covered: Kafka topic {name}: the table does not hold the keys of its "
            "records, so no tombstone is written: delete the rows at their source, or run "
            f"`topicberg forget {name} KEY` with their keys"
        )


class _Derived:
    """The tables that are derived from a topic: those with the key's columns, and the others."""

    def __init__(self, key_rows: KeyRows, config: Settings, options: Sequence[str]) -> None:
        """:param options: columns that the user says hold the key

        :raises SpecError: there is no such column, or it cannot hold the key
        """
        from topicberg.tableflow.erasure.candidates import chosen_columns
        from topicberg.tableflow.erasure.rows import ErasureTarget

        self._key_rows, self._lake = key_rows, load_lake(config)
        self.targets: list[ErasureTarget] = []
        self._others: list[str] = []
        self._searched: dict[str, tuple[tuple[str, str], Callable[[str], bool]]] = {}
        self._parents = {derived.name: derived.reads for derived in self._lake.derived}
        self._known: dict[str, Sequence[Mapping[str, str]]] = {}
        """Source of derived tables → column of the key → its column there, for each such way."""
        columns = {field.name: field.name for field in key_rows.key.fields}
        for table in (t for t in self._lake.tables if t.root.name == key_rows.spec.name):
            if table.source is None:
                target = ErasureTarget(table.identifier, "upsert view", None, columns)
                if self._fits(target.identifier, columns):
                    self.targets.append(target)
            elif table.source not in self._lake.derived_by_name:
                self._known[table.source] = (columns,)
        following: list[str] = []
        for name in TopologicalSorter(self._parents).static_order():
            if not {*self._known, *following}.isdisjoint(self._parents.get(name, ())):
                following.append(name)
        chosen = chosen_columns(options, following, key_rows.key)
        for name in following:
            derived = self._lake.derived_by_name[name]
            table = self._lake.table(derived)
            ways = chosen.get(name, [])
            if misfit := next((w for w in ways if not self._fits(table.identifier, w)), None):
                raise SpecError(
                    f"--column: table {name} has no column {', '.join(misfit.values())} that can "
                    "hold the value",
                    hint="write one of its columns, of a type that can have the value",
                )
            fits = self._by_lineage(derived, table)
            self._known[name] = fits = (*fits, *(way for way in ways if way not in fits))
            if fits:
                self.targets.append(
                    ErasureTarget(table.identifier, "derived table", table.time, fits[0], fits[1:])
                )
            else:
                self._others.append(name)
            self._search(derived, table)

    def _by_lineage(self, derived: DerivedTable, table: LakeTable) -> Sequence[Mapping[str, str]]:
        """Return column of the key → column of a derived table, as it has them."""
        value_field = self._key_rows.spec.key.field if self._key_rows.where is None else None
        fits: list[Mapping[str, str]] = []
        for source in self._parents[derived.name]:
            ways = self._known.get(source, ())
            for names in ways[1:] if fits else ways:
                carried = [_carried(names, source, derived.lineage)]
                if value_field is not None and len(names) == 1:
                    field = dict.fromkeys(names, value_field)
                    carried.append(_carried(field, source, derived.lineage))
                fitting = (fit for fit in carried if fit and self._fits(table.identifier, fit))
                if (fit := next(fitting, None)) is not None and fit not in fits:
                    fits.append(fit)
        return fits

    def _fits(self, identifier: tuple[str, str], names: Mapping[str, str]) -> bool:
        """Return whether a table has the columns of the key, or no rows yet."""
        from topicberg.iceberg.tables import find_table

        if (table := find_table(self._key_rows.catalog, identifier)) is None:
            return True
        try:
            return self._key_rows.condition(table.schema(), names) is not None
        except SpecError:
            return False

    def _search(self, derived: DerivedTable, lake_table: LakeTable) -> None:
        """Note the columns to search for the value, of which the lineage says nothing else."""
        from topicberg.iceberg.tables import find_table

        if (table := find_table(self._key_rows.catalog, lake_table.identifier)) is None:
            return
        erased = {column for names in self._known[derived.name] for column in names.values()}

        def is_searched(column: str) -> bool:
            is_erased = any(column == each or each.startswith(f"{column}.") for each in erased)
            return not is_erased and not self._is_of_others(column, derived)

        if any(is_searched(field.name) for field in table.schema().fields):
            self._searched[derived.name] = lake_table.identifier, is_searched

    def _is_of_others(self, column: str, derived: DerivedTable) -> bool:
        """Return whether the lineage says that a column comes from other columns than the key's."""
        if not (origins := derived.lineage.get(column)):
            return False
        parents = self._parents[derived.name]
        for origin in origins:
            owners = [parent for parent in parents if origin.startswith(f"{parent}.")] or parents
            for owner in owners:
                if owner in self._known:  # else it does not follow from the topic
                    of_key = {name for names in self._known[owner] for name in names.values()}
                    if not of_key or origin.removeprefix(f"{owner}.") in of_key:
                        return False
        return True

    def report(self) -> None:
        """Print which columns hold the key now, and are not erased."""
        from topicberg.iceberg.tables import find_table
        from topicberg.tableflow.erasure.candidates import find_candidates

        for name, (identifier, is_searched) in self._searched.items():
            if (table := find_table(self._key_rows.catalog, identifier)) is not None:
                warn(
                    f"{copy.table}.{copy.column} holds the value in {count(copy.rows, 'row')} of "
                    f"{count(copy.files, 'file')}, and is not erased: add `--column {copy.option}` "
                    "if it is the key there"
                    for copy in find_candidates(name, table, self._key_rows.key, is_searched)
                )

    def uncovered(self) -> Iterator[str]:
        """Yield what the proof does not cover."""
        if self._searched:
            yield (
                f"not covered by the proof: columns of {', '.join(self._searched)} of which no "
                "lineage says where they come from. They were searched for the value, but lists, "
                "maps, parts of text and changed values were not"
            )

    def next_steps(self, done: Mapping[str, Erased]) -> Iterator[str]:
        """Yield what follows for tables that are not erased themselves."""
        from topicberg.checks.check import materialization
        from topicberg.orchestration.assets.partitions import partition_keys, time_partitions

        hours = [hour for erased in done.values() for hour in erased.hours]
        for name in self._others:
            derived = self._lake.derived_by_name[name]
            partitions = time_partitions(self._lake.root(derived))
            keys = sorted(partition_keys(partitions, hours, datetime.now(UTC)))
            where = f"--partition-range {keys[0]}...{keys[-1]}" if keys else "and its partitions"
            topics = (f"kafka/{spec.asset_name}" for spec in self._lake.published(derived))
            yield (
                f"{name} has no columns of the key: its affected partitions are computed again by "
                f"the sensor `snapshots`, or by `{materialization([f'iceberg/{name}', *topics])} "
                f"{where}`"
            )
        erased_tables = {target.name for target in self.targets}
        yield from (
            f"topic {published.name} is published from {derived.name}: run "
            f"`topicberg forget {published.name} KEY` for its records and its table"
            for derived in self._lake.derived
            if ".".join(self._lake.table(derived).identifier) in erased_tables
            for published in self._lake.published(derived)
        )
        if any(erased.snapshots_expired for erased in done.values()):
            yield (
                "Glue and Snowflake show the tables' new state after the next run of the sensor "
                "`snapshots`, or after `topicberg sync TABLE`"
            )


def _carried(
    names: Mapping[str, str], source: str, lineage: Mapping[str, tuple[str, ...]]
) -> Mapping[str, str] | None:
    """Return the column of the key → its column in a table that is derived from ``source``. Without
    lineage it is the column of the same name. None: the lineage says that this one comes from
    another column."""
    carried = {}
    for name, column in names.items():
        renamed = [
            result
            for result, origins in lineage.items()
            if len(origins) == 1 and origins[0] in (column, f"{source}.{column}")
        ]
        if not renamed and column in lineage:
            return None
        carried[name] = column if column in renamed or not renamed else renamed[0]
    return carried


def _shown(found: Found) -> str:
    return (
        f"{count(found.rows, 'row')} in {count(found.live, 'data file')}; "
        f"{count(found.history, 'data file')} of history; "
        f"{count(len(found.outside) + len(found.elsewhere), 'file')} without a snapshot; "
        f"{count(found.expired, 'snapshot')} to expire"
        + (f"; branches and tags to remove: {', '.join(found.refs)}" if found.refs else "")
    )


def _done(erased: Erased) -> str:
    rows = f"{count(erased.rows, 'row')} erased"
    if not erased.rows and erased.files_deleted:
        rows = "its rows were deleted before, and are erased from older files"
    return (
        f"{rows}, {count(erased.files_rewritten, 'file')} rewritten, "
        f"{count(erased.snapshots_expired, 'snapshot')} expired, "
        f"{count(erased.files_deleted, 'file')} deleted"
        + (f", branches and tags removed: {', '.join(erased.refs)}" if erased.refs else "")
    )


def _kept(records: KeyRecords | None) -> Iterator[str]:
    """Yield until when Kafka keeps records of the key."""
    if records is None or (records.compacted and not records.newest):
        return
    setting = "max.compaction.lag.ms" if records.compacted else "retention.ms"
    latest, hint = "", f": set {setting} of the topic to limit it"
    if (until := records.until()) is not None:
        moment = datetime.fromtimestamp(until, UTC)
        latest, hint = f"{moment:%Y-%m-%d %H:%M} UTC at the latest", ""
    if records.compacted:
        yield (
            f"Kafka topic {records.topic}: the records before the tombstone are deleted when Kafka "
            f"compacts them, at {latest or 'a time that has no limit'}{hint}"
        )
    else:
        when = f"until {latest}" if latest else "for ever"
        yield (
            f"Kafka topic {records.topic}: it is not compacted, so records of the key stay in "
            f"Kafka {when}, by its retention{hint}"
        )


def _report_uncovered(left: Sequence[Uncovered], *, fails: bool) -> None:
    """Report the records that a table has not read.

    :raises TopicbergError: there are some, and the command fails because of them
    """
    for each in left:
        offsets = ", ".join(f"partition {p} from offset {o}" for p, o in sorted(each.first.items()))
        warn(
            f"{each.table}: records of topic {each.topic} on {offsets} are not covered: "
            f"{each.reason}"
        )
    if left and fails:
        raise TopicbergError(
            f"{left[0].table} has not read all records of topic {left[0].topic}: if the key is "
            "among them, it comes back",
            hint=f"run `topicberg tableflow status {left[0].topic}` to see why, fix it, and run "
            "the command again",
        )
