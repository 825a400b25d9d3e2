"""The keys of the checks; :mod:`assets.registry` says which kind of table has which checks."""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg

from assets.lake import Lake


class CheckKeys:
    """The keys of the checks of all tables, chosen by their purpose."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known = [
            (table.name, system, check, dg.AssetCheckKey(table.key(system), check.name))
            for table, system, checks in lake.checks
            for check in checks
        ]
        self._of_table: dict[str, list[int]] = {}
        for place, (name, *_) in enumerate(self._known):
            self._of_table.setdefault(name, []).append(place)

    def all(self) -> list[dg.AssetCheckKey]:
        """Return every check of :attr:`assets.lake.Lake.checks`."""
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
