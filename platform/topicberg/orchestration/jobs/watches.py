"""What is watched: the tables whose snapshots matter, and what is requested when they change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg

from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.orchestration.assets.derived import DerivedTable
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.partitions import TimePartitions, time_partitions
from topicberg.orchestration.assets.registry import Table
from topicberg.orchestration.catalogs.catalog import catalogs, systems
from topicberg.orchestration.checks.catalogue import CheckKeys
from topicberg.orchestration.jobs.pipelines import COMPUTE, compute_job, keys_of
from topicberg.transforms.derivation import Derivation
from topicberg.transforms.windows import FOREVER, reached
from topicberg.wording import listed

TABLES, HOURS = "topicberg/tables", "topicberg/hours"
"""Tags of runs that sensors request: what they compute or register, for people."""
MAX_LISTED = 5


@dataclass(frozen=True)
class TableWatch:
    """A table whose snapshots are watched, and what is requested when they touch partitions."""

    name: str
    origin: Table
    registrations: tuple[dg.AssetKey, ...]
    """Unpartitioned assets that follow every snapshot. Catalogs do not wait for computations: these
    assets are materialized by the sensor or in a run of their own."""
    derived: tuple[dg.AssetKey, ...]
    partitions: TimePartitions | None = None
    """Those of what is derived."""
    job: str = COMPUTE
    """That computes them."""
    pointers: tuple[Table, ...] = ()
    """The tables among the registrations of which only pointers are moved: nothing is computed."""
    registration_checks: tuple[dg.AssetCheckKey, ...] = ()
    derived_checks: tuple[dg.AssetCheckKey, ...] = ()
    """Checks of the run; a blocking one that fails stops what is downstream of it."""
    reach: timedelta = timedelta()
    """How far after a touched hour partitions are requested."""
    lookahead: timedelta = timedelta()
    """How far before a touched hour partitions are requested."""
    reported: bool = True
    """Its snapshots become materializations: nothing else reports those of a topic's table."""
    plans: tuple[Derivation, ...] = ()
    """How the tables that are computed come from their sources."""

    @property
    def time(self) -> str:
        """The event time of the table."""
        assert self.origin.time is not None  # noqa: S101  sources have one
        return self.origin.time

    def reached(self, hours: Hours, now: datetime) -> Hours:
        """Return the hours to compute when some hours of the table changed."""
        return reached(hours, self.reach, now, self.lookahead)

    @property
    def computed_registrations(self) -> tuple[dg.AssetKey, ...]:
        """The registrations of the other tables."""
        moved = {table.name for table in self.pointers}
        return tuple(key for key in self.registrations if key.path[-1] not in moved)

    @property
    def _direct(self) -> list[Derivation]:
        """How those of the tables are computed that read this one."""
        return [
            plan
            for plan in self.plans
            if any(source.table == self.origin.identifier for source in plan.sources)
        ]

    def first_hour(self, now: datetime) -> int:
        """Return the first hour that may be computed again for some of the tables.

        A run computes it only for these. Tables that are derived from these have no limit of their
        own, and change only where these do.
        """
        return min((plan.first_hour(now) for plan in self._direct), default=BEFORE_EVERYTHING)

    def first_in_time(self, committed: datetime) -> int:
        """Return the first hour that is computed because of rows that were committed at a time."""
        limits = [plan.first_in_time(committed) for plan in self._direct]
        return min(limits, default=BEFORE_EVERYTHING)


def watches(lake: Lake) -> Iterator[TableWatch]:
    """What there is to watch: every topic's table, and the sources of tables that read around."""
    checks = CheckKeys(lake)

    def of_computation(source: str, tables: Iterable[DerivedTable]) -> tuple[dg.AssetCheckKey, ...]:
        """What is wrong with the source keeps the tables from being computed."""
        names = [table.name for table in tables]
        return (*(checks.blocking(source) if names else ()), *checks.of_runs(names))

    requested: dict[str, list[Table]] = {}
    for table in lake.tables:
        if table.requested_with_topic != "nothing":
            requested.setdefault(table.root.name, []).append(table)
    for table in lake.tables:
        if not table.has_snapshot_sensor or table.source is None:
            continue
        downstream = lake.downstream(table.source)
        if not table.reported and not downstream:
            continue
        registered = requested[table.root.name] if table.reported else []
        yield TableWatch(
            name=f"{table.name}_snapshots",
            origin=table,
            registrations=tuple(
                each.key(system)
                for each in registered
                for system in (systems() if each.requested_with_topic == "all" else catalogs())
            ),
            derived=_assets(lake, downstream),
            pointers=tuple(each for each in registered if each.requested_with_topic == "catalogs"),
            registration_checks=tuple(checks.of_runs([each.name for each in registered])),
            derived_checks=of_computation(table.name, downstream),
            partitions=time_partitions(table.root) if downstream else None,
            job=compute_job(lake, downstream[0]) if downstream else COMPUTE,
            reported=table.reported,
            plans=tuple(lake.plan_of(each.name) for each in downstream),
        )
    for derived in lake.derived:
        root = lake.root(derived)
        why = "lookback" if derived.lookback is not None else "lookahead"
        around = dict[str, tuple[str, timedelta, timedelta]]()
        if derived.reads_around:
            plan = lake.plan_of(derived.name)
            around = {
                name: (why, plan.back(each), plan.ahead(each))
                for name, each in zip(derived.sources, plan.windowed, strict=True)
            }
        # A row of a lookup may count for any time: all that came after it. A lookup may be a source
        # as well, which has its lookahead.
        for lookup in derived.lookups:
            _, _, ahead = around.get(lookup, ("", timedelta(), timedelta()))
            around[lookup] = "lookup", FOREVER, ahead
        for source, (why, back, ahead) in around.items():
            downstream = [derived, *lake.downstream(derived.name)]
            several = f"_of_{source}" if len(around) > 1 else ""
            yield TableWatch(
                name=re.sub(r"[.-]", "_", f"{derived.name}_{why}{several}"),
                origin=lake.origin(source),
                registrations=(),
                derived=_assets(lake, downstream),
                derived_checks=of_computation(lake.origin(source).name, downstream),
                partitions=time_partitions(root),
                job=compute_job(lake, derived),
                reach=back,
                lookahead=ahead,
                reported=False,
                plans=tuple(lake.plan_of(each.name) for each in downstream),
            )


def listed_tables(keys: Iterable[dg.AssetKey]) -> str:
    """Return the names of the tables of some assets, as the tag of a run: the first of them."""
    names = list(dict.fromkeys(key.path[-1] for key in keys))
    return listed(names, MAX_LISTED)


def _assets(lake: Lake, tables: Iterable[DerivedTable]) -> tuple[dg.AssetKey, ...]:
    return tuple(key for derived in tables for key in keys_of(lake, derived))
