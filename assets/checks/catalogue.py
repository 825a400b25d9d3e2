"""Which table has which checks. What each of them does is in :mod:`topicberg.checks`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from assets.derived import DerivedTable, derivation
from assets.lake import Lake
from assets.partitions import partition_keys, time_partitions
from assets.tables import LakeTable, history_lake_table, topic_table
from topicberg.checks.check import Probe, TableCheck
from topicberg.iceberg.hours import Hours
from topicberg.topics import Rules, TopicSpec

if TYPE_CHECKING:
    from topicberg.transforms.unread import SourceTable


def table_checks(lake: Lake) -> Iterator[tuple[LakeTable, str, list[TableCheck]]]:
    """Return table, system (the first part of the asset's key), and the checks of that asset."""
    from topicberg.checks.catalogs import parity_check, pointer_check
    from topicberg.checks.derived import view_check
    from topicberg.checks.table import equality_deletes_check
    from topicberg.checks.topic import history_checks, topic_checks

    config = lake.config
    for spec in lake.materialized.values():
        table = topic_table(spec, config)
        defined_in = f"`checks:` in {config.topics_dir.name}/{spec.name}.yaml"
        checks = [*topic_checks(spec), *_rows_checks(spec.checks, spec, table, defined_in)]
        yield table, "iceberg", checks
    for spec in lake.histories.values():
        table = history_lake_table(spec)
        checks = [*history_checks(spec, table, _allowed_minutes(spec))]
        yield table, "iceberg", [*checks, equality_deletes_check(table)]
    for spec, view in lake.upsert_views:
        checks = [view_check(spec, view, _allowed_minutes(spec)), equality_deletes_check(view)]
        yield view, "iceberg", checks
    for derived in lake.derived:
        table = lake.table(derived)
        defined_in = f"`rules=Rules(…)` of {derived.name} in {derived.file}"
        checks = [
            _derived_check(derived, lake),
            *_rows_checks(derived.rules, None, table, defined_in),
        ]
        yield table, "iceberg", checks
    for table in lake.tables():
        is_derived = table.name in lake.derived_by_name
        dropped = f"iceberg/{table.name}:up_to_date" if is_derived else None
        yield table, "glue", [pointer_check(table, dropped)]
        yield table, "snowflake", [parity_check(table)]


class CheckKeys:
    """The keys of the checks of all tables, chosen by their purpose."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known = [
            (table.name, system, check, dg.AssetCheckKey(table.key(system), check.name))
            for table, system, checks in table_checks(lake)
            for check in checks
        ]

    def all(self) -> list[dg.AssetCheckKey]:
        """Return every check of :func:`table_checks`."""
        return [key for *_, key in self._known]

    def of_runs(self, names: Collection[str]) -> list[dg.AssetCheckKey]:
        """Return the checks that belong into each run that computes or registers these tables."""
        keys = [key for name, *_, key in self._known if name in names]
        for derived in self._lake.derived:
            if derived.name in names:
                asset = self._lake.table(derived).key("iceberg")
                keys += [dg.AssetCheckKey(asset, check.__name__) for check in derived.checks]
        return keys

    def blocking(self, name: str) -> list[dg.AssetCheckKey]:
        """Return the checks of a table that prevent runs from computing with it."""
        return [
            key
            for table, system, check, key in self._known
            if table == name and system == "iceberg" and check.blocking
        ]


def _rows_checks(
    rules: Rules, spec: TopicSpec | None, table: LakeTable, defined_in: str
) -> Iterator[TableCheck]:
    """Return the checks of manifests, and those of the rules of a spec."""
    from topicberg.checks.rules import rule_checks
    from topicberg.checks.table import equality_deletes_check, volume_check

    yield equality_deletes_check(table)
    if rules.volume_factor is not None:
        yield volume_check(rules.volume_factor)
    yield from rule_checks(rules, spec, defined_in)


def _derived_check(derived: DerivedTable, lake: Lake) -> TableCheck:
    from topicberg.checks.derived import derived_check

    root = lake.root(derived)
    partitions, plan = time_partitions(root), derivation(derived, lake)

    def sources(probe: Probe) -> Mapping[str, SourceTable]:
        from topicberg.transforms.unread import SourceTable

        return {
            source.name: SourceTable(found, source.time, plan.reach(source))
            for source in plan.sources
            if source.time and (found := probe.find(source.table))
        }

    def keys(hours: Iterable[Hours], now: datetime) -> list[str]:
        return partition_keys(partitions, hours, now, plan.first_hour(now))

    return derived_check(
        derived.name,
        (*derived.sources, *derived.lookups),
        _allowed_minutes(root),
        plan.target_time,
        sources,
        keys,
        plan.first_hour,
    )


def _allowed_minutes(root: TopicSpec) -> int:
    """Return how stale a table may be that is computed from a topic."""
    from topicberg.checks.derived import ALLOWED_MINUTES

    return root.freshness.warn_minutes if root.freshness else ALLOWED_MINUTES
