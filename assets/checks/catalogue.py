"""The checks of all tables; :mod:`assets.registry` says which kind of table has which."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import dagster as dg

from assets.lake import Lake
from assets.registry import Table
from topicberg.checks.check import TableCheck


def table_checks(lake: Lake) -> Iterator[tuple[Table, str, list[TableCheck]]]:
    """Return table, system (the first part of the asset's key), and the checks of that asset."""
    from topicberg.checks.catalogs import parity_check, pointer_check

    for table in lake.tables:
        yield table, "iceberg", [*table.checks(lake)]
        dropped = f"iceberg/{table.name}:up_to_date" if table.reports_drop else None
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
        self._of_table: dict[str, list[int]] = {}
        for place, (name, *_) in enumerate(self._known):
            self._of_table.setdefault(name, []).append(place)

    def all(self) -> list[dg.AssetCheckKey]:
        """Return every check of :func:`table_checks`."""
        return [key for *_, key in self._known]

    def of_runs(self, names: Collection[str]) -> list[dg.AssetCheckKey]:
        """Return the checks that belong into each run that computes or registers these tables."""
        places = sorted(place for name in set(names) for place in self._of_table.get(name, ()))
        keys = [self._known[place][-1] for place in places]
        for derived in self._lake.derived:
            if derived.name in names:
                asset = self._lake.table(derived).key("iceberg")
                keys += [dg.AssetCheckKey(asset, check.__name__) for check in derived.checks]
        return keys

    def blocking(self, name: str) -> list[dg.AssetCheckKey]:
        """Return the checks of a table that prevent runs from computing with it."""
        return [
            key
            for _, system, check, key in map(self._known.__getitem__, self._of_table.get(name, ()))
            if system == "iceberg" and check.blocking
        ]
