"""``topicberg forget``: erases one key of a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.lazy import load_endpoints, settings
from topicberg.cli.output import echo
from topicberg.errors import TopicbergError
from topicberg.wording import count

if TYPE_CHECKING:
    from topicberg.iceberg.erasure import Erased, Found
    from topicberg.settings import Settings
    from topicberg.tableflow.forgetting import Forgetting, Records, Target, Uncovered
    from topicberg.topics import TopicSpec

NOT_FOUND = 1
"""The exit code if nothing holds the key."""


def register(app: typer.Typer) -> None:
    app.command()(forget)


def forget(
    topic: Annotated[str, typer.Argument(help="name of the topic")],
    key: Annotated[
        str,
        typer.Argument(
            help="value of the key; JSON with all columns if it has several; - reads it from "
            "standard input, so that it is not in the list of processes"
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what is deleted")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    reason: Annotated[str, typer.Option(help="why; recorded in the tables")] = "not given",
) -> None:
    """Erase the rows of one key, also from history, dead letters, derived tables and old files.

    In a compacted topic, a tombstone deletes the key's records. You cannot undo it. The exit code
    is 1 if nothing holds the key.
    """
    from topicberg.cli.tableflow import require_own_engine
    from topicberg.tableflow.control import enabled_topics, find_topic
    from topicberg.tableflow.forgetting import Forgetting

    require_own_engine()
    config = settings()
    text = sys.stdin.readline().rstrip("\n") if key == "-" else key
    spec = find_topic(config, topic)
    job = Forgetting(spec, text, load_endpoints(config), config, reason)
    derived = _Derived(job, spec, config)
    job.targets += derived.targets
    enabled = topic in enabled_topics(config)
    left = job.unread() if dry_run else job.drain(enabled=enabled)
    records = job.records()
    found = {target.name: job.find(target) for target in job.targets}
    if not any(found.values()) and not records.pending:
        if left and not dry_run:
            _raise(left)
        for one in left:
            _warn(one)
        echo(f"{topic}: no table holds the key, and Kafka needs no tombstone for it")
        raise typer.Exit(NOT_FOUND)
    has_dead = any(t.is_dead_letters and found[t.name] for t in job.targets)
    dead = job.dead_letters() if has_dead else None
    for target in job.targets:
        if found[target.name]:
            echo(f"{target.name} ({target.what}): {_shown(found[target.name])}")
    if records.compacted:
        echo(
            f"Kafka topic {topic}, compacted: {count(records.count, 'record')} of the key, "
            f"{count(len(records.pending), 'tombstone')} to write"
        )
    if dry_run:
        for line in (*_kept(records), *_kept(dead), *derived.next_steps({})):
            echo(line)
        for one in left:
            _warn(one)
        echo("nothing was changed")
        return
    if not yes:
        typer.confirm("Erase all of this? It cannot be undone", abort=True)
    for each in (records, dead):
        if each is not None and (written := job.write_tombstones(each)):
            echo(f"Kafka topic {each.topic}: {count(written, 'tombstone')} written")
    left = job.drain(enabled=enabled)
    done: dict[str, Erased] = {}
    for target in job.targets:
        done[target.name] = erased = job.erase(target)
        if erased.replaced or erased.snapshots_expired:
            echo(f"{target.name}: {_done(erased)}")
    for target in job.targets:
        if (proof := job.prove(target)) is not None:
            echo(
                f"{target.name}: proof: none of {count(proof.files, 'file')} holds the key; read "
                f"were all files of {count(proof.snapshots, 'snapshot')}, and "
                f"{proof.unreachable} that are only in the table's folder"
            )
    for line in (*_kept(records), *_kept(dead), *derived.next_steps(done)):
        echo(line)
    if left:
        _raise(left)


class _Derived:
    """The tables that are derived from a topic: those with the key's columns, and the others."""

    def __init__(self, job: Forgetting, spec: TopicSpec, config: Settings) -> None:
        from topicberg.cli.compute import load_lake

        self._job, self._lake = job, load_lake(config)
        self.targets: list[Target] = []
        self._others: list[str] = []
        own = {each.name: each.name for each in job.key.fields}
        of_topic = [table for table in self._lake.tables if table.root.name == spec.name]
        known: dict[str, Mapping[str, str] | None] = {}
        for table in of_topic:
            if table.source is None:
                self._add(table.identifier, "upsert view", None, own)
            elif table.source not in self._lake.derived_by_name:
                known[table.source] = own
        parents = {d.name: (*d.sources, *d.lookups) for d in self._lake.derived}
        for name in TopologicalSorter(parents).static_order():
            if name not in parents or not known.keys() & set(parents[name]):
                continue
            derived = self._lake.derived_by_name[name]
            table = self._lake.table(derived)
            known[name] = None
            for names in self._candidates(known, parents[name], derived.lineage, spec):
                if self._add(table.identifier, "derived table", table.time, names):
                    known[name] = names
                    break
            else:
                self._others.append(name)

    def _candidates(
        self,
        known: Mapping[str, Mapping[str, str] | None],
        parents: Sequence[str],
        lineage: Mapping[str, tuple[str, ...]],
        spec: TopicSpec,
    ) -> Iterator[Mapping[str, str]]:
        """Yield column of the key → column of a derived table, as it may have them."""
        for source in parents:
            if (names := known.get(source)) is not None:
                yield _carried(names, source, lineage)
                if spec.key.field is not None and len(names) == 1:  # a field of the value
                    yield _carried(dict.fromkeys(names, spec.key.field), source, lineage)

    def _add(
        self, identifier: tuple[str, str], what: str, time: str | None, names: Mapping[str, str]
    ) -> bool:
        """Add a table if it has the columns of the key."""
        from topicberg.errors import SpecError
        from topicberg.tableflow.forgetting import Target

        target = Target(identifier, what, time, names)
        if (table := self._job.table(target)) is None:
            return True  # it has no rows
        types = {each.name: each.field_type for each in table.schema().fields}
        try:
            for name, column in names.items():
                self._job.key.value(name, types[column])
        except (KeyError, SpecError):
            return False
        self.targets.append(target)
        return True

    def next_steps(self, done: Mapping[str, Erased]) -> Iterator[str]:
        """Yield what follows for tables that are not erased themselves."""
        from assets.partitions import partition_keys, time_partitions

        hours = [each for erased in done.values() for each in erased.hours]
        for name in self._others:
            derived = self._lake.derived_by_name[name]
            keys = []
            if hours:
                partitions = time_partitions(self._lake.root(derived))
                keys = sorted(partition_keys(partitions, hours, datetime.now(UTC)))
            where = f"--partition-range {keys[0]}...{keys[-1]}" if keys else "and its partitions"
            yield (
                f"{name} has no columns of the key: its affected partitions are computed again by "
                "the sensor `snapshots`, or by `dagster asset materialize -f definitions.py "
                f"--select 'key:\"iceberg/{name}\"' {where}`"
            )
        erased_tables = {target.name for target in self.targets}
        for derived in self._lake.derived:
            table = self._lake.table(derived)
            if ".".join(table.identifier) in erased_tables:
                for published in self._lake.published(derived):
                    yield (
                        f"topic {published.name} is published from {derived.name}: run "
                        f"`topicberg forget {published.name} KEY` for its records and its table"
                    )
        if any(erased.snapshots_expired for erased in done.values()):
            yield (
                "Glue and Snowflake show the tables' new state after the next run of the sensor "
                "`snapshots`, or after `topicberg sync TABLE`"
            )


def _carried(
    names: Mapping[str, str], source: str, lineage: Mapping[str, tuple[str, ...]]
) -> Mapping[str, str]:
    """Return the column of the key → its column in a table that is derived from ``source``."""
    found = {}
    for name, column in names.items():
        renamed = [
            result
            for result, origins in lineage.items()
            if len(origins) == 1 and origins[0] in (column, f"{source}.{column}")
        ]
        found[name] = column if column in renamed or not renamed else renamed[0]
    return found


def _shown(found: Found) -> str:
    parts = [
        f"{count(found.rows, 'row')} in {count(found.live, 'data file')}",
        f"{count(found.history, 'data file')} of history",
        f"{count(found.unreachable, 'file')} without a snapshot",
        f"{count(found.snapshots, 'snapshot')} to expire",
    ]
    if found.refs:
        parts.append(f"branches and tags to remove: {', '.join(found.refs)}")
    return "; ".join(parts)


def _done(erased: Erased) -> str:
    parts = [
        f"{count(erased.rows, 'row')} erased",
        f"{count(erased.files_rewritten, 'file')} rewritten",
        f"{count(erased.snapshots_expired, 'snapshot')} expired",
        f"{count(erased.files_deleted, 'file')} deleted",
    ]
    if erased.refs:
        parts.append(f"branches and tags removed: {', '.join(erased.refs)}")
    return ", ".join(parts)


def _kept(records: Records | None) -> Iterator[str]:
    """Yield until when Kafka keeps records of the key."""
    if records is None or (records.compacted and not records.newest):
        return
    until = records.until()
    at = None if until is None else datetime.fromtimestamp(until, UTC)
    if records.compacted:
        when = f"at {at:%Y-%m-%d %H:%M} UTC at the latest" if at else "at a time that has no limit"
        hint = "" if at else ": set max.compaction.lag.ms of the topic to limit it"
        yield (
            f"Kafka topic {records.topic}: the records before the tombstone are deleted when Kafka "
            f"compacts them, {when}{hint}"
        )
    else:
        when = f"until {at:%Y-%m-%d %H:%M} UTC at the latest" if at else "for ever"
        hint = "" if at else ": set retention.ms of the topic to limit it"
        yield (
            f"Kafka topic {records.topic}: it is not compacted, so records of the key stay in "
            f"Kafka {when}, by its retention{hint}"
        )


def _warn(left: Uncovered) -> None:
    offsets = ", ".join(f"partition {p} from offset {o}" for p, o in sorted(left.first.items()))
    echo(
        f"{left.table}: records of topic {left.topic} on {offsets} are not covered: {left.reason}",
        fg="yellow",
        err=True,
    )


def _raise(left: list[Uncovered]) -> None:
    """:raises TopicbergError: always"""

    for one in left:
        _warn(one)
    raise TopicbergError(
        f"{left[0].table} has not read all records of topic {left[0].topic}: if the key is among "
        "them, it comes back",
        hint=f"run `topicberg tableflow status {left[0].topic}` to see why, fix it, and run the "
        "command again",
    )
