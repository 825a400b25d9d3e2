"""What is watched: the tables whose snapshots matter, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import dagster as dg

from topicberg.orchestration.assets.derived import DerivedTable
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.partitions import TimePartitions, time_partitions
from topicberg.orchestration.assets.registry import Table
from topicberg.orchestration.catalogs.catalog import catalogs, systems
from topicberg.orchestration.checks.catalogue import CheckKeys
from topicberg.orchestration.jobs.pipelines import compute_job, keys_of
from topicberg.transforms.derivation import Derivation
from topicberg.wording import listed

TABLES, HOURS = "topicberg/tables", "topicberg/hours"
"""Tags of runs that sensors request: what they compute or register, for people."""
MAX_LISTED = 5


@dataclass(frozen=True)
class Computation:
    """How a run computes a derived table."""

    plan: Derivation
    partitions: TimePartitions
    job: str
    assets: tuple[dg.AssetKey, ...]
    """The table in Iceberg, then in the catalogs, and its topics."""
    checks: tuple[dg.AssetCheckKey, ...]
    """Of the run; a blocking one of a source that fails stops what is downstream of it."""
    downstream: tuple[str, ...] = ()
    """The tables that change in the same partitions and in no others, in the order in which they
    can be computed: the same run computes them."""


@dataclass(frozen=True)
class TableWatch:
    """A table whose snapshots are watched."""

    origin: Table
    readers: tuple[str, ...] = ()
    """The names of the derived tables that read it."""
    registrations: tuple[dg.AssetKey, ...] = ()
    """Unpartitioned assets that follow every snapshot. Catalogs do not wait for computations: these
    assets are materialized by the sensor or in a run of their own."""
    registration_checks: tuple[dg.AssetCheckKey, ...] = ()
    pointers: tuple[Table, ...] = ()
    """The tables among the registrations of which only pointers are moved: nothing is computed."""
    computation: Computation | None = None
    """None: no run computes it, but the engine or a registration."""

    @property
    def name(self) -> str:
        return self.origin.name

    @property
    def computed_registrations(self) -> tuple[dg.AssetKey, ...]:
        """The registrations of the other tables."""
        moved = {table.name for table in self.pointers}
        return tuple(key for key in self.registrations if key.path[-1] not in moved)


def watches(lake: Lake) -> dict[str, TableWatch]:
    """Return what there is to watch, by name; a derived table comes after what it reads."""
    checks = CheckKeys(lake)
    requested: dict[str, list[Table]] = {}
    for table in lake.tables:
        if table.requested_with_topic != "nothing":
            requested.setdefault(table.root.name, []).append(table)
    names = {table.source: table.name for table in lake.tables if table.source}
    readers: dict[str, list[str]] = {}
    for derived in lake.derived:
        for source in {*derived.sources, *derived.lookups}:
            readers.setdefault(names[source], []).append(derived.name)
    watched: dict[str, TableWatch] = {}
    for table in lake.tables:
        of_table = tuple(sorted(readers.get(table.name, ())))
        if not table.has_snapshot_sensor or not (table.reported or of_table):
            continue
        registered = requested[table.root.name] if table.reported else []
        watched[table.name] = TableWatch(
            table,
            of_table,
            registrations=tuple(
                each.key(system)
                for each in registered
                for system in (systems() if each.requested_with_topic == "all" else catalogs())
            ),
            registration_checks=tuple(checks.of_runs([each.name for each in registered])),
            pointers=tuple(each for each in registered if each.requested_with_topic == "catalogs"),
        )
    for derived in _in_order(lake.derived_by_name):
        sources = [lake.origin(name).name for name in (*derived.sources, *derived.lookups)]
        watched[derived.name] = TableWatch(
            lake.table(derived),
            tuple(sorted(readers.get(derived.name, ()))),
            computation=Computation(
                lake.plan_of(derived.name),
                time_partitions(lake.root(derived)),
                compute_job(lake, derived),
                tuple(keys_of(lake, derived)),
                (
                    *(key for source in sources for key in checks.blocking(source)),
                    *checks.of_runs([derived.name]),
                ),
                tuple(each.name for each in lake.downstream(derived.name)),
            ),
        )
    return watched


def _in_order(derived: Mapping[str, DerivedTable]) -> list[DerivedTable]:
    """Return derived tables, each after those that it reads."""
    ordered: dict[str, DerivedTable] = {}

    def add(table: DerivedTable) -> None:
        for source in (*table.sources, *table.lookups):
            if source in derived and source not in ordered:
                add(derived[source])
        ordered[table.name] = table

    for table in derived.values():
        add(table)
    return list(ordered.values())


def listed_tables(keys: Iterable[dg.AssetKey]) -> str:
    """Return the names of the tables of some assets, as the tag of a run: the first of them."""
    names = list(dict.fromkeys(key.path[-1] for key in keys))
    return listed(names, MAX_LISTED)
