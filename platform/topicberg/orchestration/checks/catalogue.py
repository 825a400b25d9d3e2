"""The keys of the checks; :mod:`.assets.registry` says which kind of table has which checks."""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg

from topicberg.orchestration.assets.lake import Lake


class CheckKeys:
    """The keys of the checks of all tables, chosen by their purpose."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._of_table: dict[str, list[tuple[bool, dg.AssetCheckKey]]] = {}
        """Table → its checks, and whether each is a blocking one of its rows."""
        for table, system, checks in lake.checks:
            self._of_table.setdefault(table.name, []).extend(
                (
                    system == "iceberg" and check.blocking,
                    dg.AssetCheckKey(table.key(system), check.name),
                )
                for check in checks
            )

    def all(self) -> list[dg.AssetCheckKey]:
        """Return every check of :attr:`topicberg.orchestration.assets.lake.Lake.checks`."""
        return [key for checks in self._of_table.values() for _, key in checks]

    def of_runs(self, names: Collection[str]) -> list[dg.AssetCheckKey]:
        """Return the checks that belong into each run that computes or registers these tables."""
        keys = [key for name in dict.fromkeys(names) for _, key in self._of_table.get(name, ())]
        return keys + [
            dg.AssetCheckKey(self._lake.table(derived).key("iceberg"), check.__name__)
            for derived, check in self._lake.row_checks
            if derived.name in names
        ]

    def blocking(self, name: str) -> list[dg.AssetCheckKey]:
        """Return the checks of a table that prevent runs from computing with it."""
        return [key for is_blocking, key in self._of_table.get(name, ()) if is_blocking]
