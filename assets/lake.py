"""The tables that there are and how they come from one another, put together from the specs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from assets import pipelines
from assets.derived import DerivedTable
from assets.tables import LakeTable, history_lake_table, topic_table, upsert_view_table
from resources import Lakehouse
from topicberg.errors import SpecError
from topicberg.settings import Settings
from topicberg.tableflow.history import history_table, ingest_history
from topicberg.topics import TopicSpec


@dataclass(frozen=True)
class Origin:
    """A table that others are derived from; ``root``: the topic that its rows come from."""

    name: str
    table: LakeTable
    time: str
    root: TopicSpec


@dataclass(frozen=True)
class Lake:
    """Every topic and every derived table.

    :raises SpecError: (on making) a derived table has a source that does not exist, two sources
        with different partitions, itself as a source, or the name of a topic's table
    """

    config: Settings
    topics: tuple[TopicSpec, ...]
    derived: tuple[DerivedTable, ...]

    def __post_init__(self) -> None:
        self._check_names()
        for table in self.derived:
            self._check(table, ())
        self._check_published()

    @cached_property
    def materialized(self) -> dict[str, TopicSpec]:
        """The topics that have tables; those that are published have a name of their own here."""
        return {
            spec.table_name if spec.publishes else spec.name: spec
            for spec in self.topics
            if spec.tableflow.enabled
        }

    @cached_property
    def histories(self) -> dict[str, TopicSpec]:
        """The tables of every record of an upsert topic."""
        return {history_table(s)[1]: s for s in self.materialized.values() if s.history}

    @cached_property
    def upsert_views(self) -> list[tuple[TopicSpec, LakeTable]]:
        """The tables of the newest records, and the topics whose they are."""
        return [
            (spec, upsert_view_table(spec, name))
            for spec in self.materialized.values()
            for name in spec.upsert_views
        ]

    @cached_property
    def derived_by_name(self) -> dict[str, DerivedTable]:
        return {table.name: table for table in self.derived}

    def root(self, table: DerivedTable) -> TopicSpec:
        """The topic at the beginning: its spec gives pipeline, partitions, owners, parameters."""
        first = table.sources[0]
        topics = self.materialized | self.histories
        return topics.get(first) or self.root(self.derived_by_name[first])

    def table(self, derived: DerivedTable) -> LakeTable:
        return derived.table(self.root(derived))

    def origin(self, name: str) -> Origin:
        """A topic or a derived table, as something to read."""
        if spec := self.materialized.get(name):
            return Origin(name, topic_table(spec, self.config), spec.event_time, spec)
        if spec := self.histories.get(name):
            return Origin(name, history_lake_table(spec), spec.event_time, spec)
        derived = self.derived_by_name[name]
        return Origin(name, self.table(derived), derived.time_column, self.root(derived))

    def make(self, name: str, lakehouse: Lakehouse) -> None:
        """Make the table of a topic; a derived one is left to its own asset.

        So a table that reads two topics can be computed when only one of them has records yet.
        """
        if spec := self.materialized.get(name):
            lakehouse.ingest(spec, lambda missing: None)
        elif spec := self.histories.get(name):
            ingest_history(spec, lakehouse.endpoints(), self.config)

    def tables(self) -> Iterator[LakeTable]:
        """Every table: those of topics and of their records, then the derived ones."""
        for spec in self.materialized.values():
            yield topic_table(spec, self.config)
        for spec in self.histories.values():
            yield history_lake_table(spec)
        for _, view in self.upsert_views:
            yield view
        for derived in self.derived:
            yield self.table(derived)

    def published(self, derived: DerivedTable) -> list[TopicSpec]:
        """The topics that a derived table is published to."""
        return [spec for spec in self.topics if spec.publishes == derived.name]

    def downstream(self, name: str) -> list[DerivedTable]:
        """What a change in a window of a table changes in the same window, and nowhere else.

        In the order in which it can be computed.
        """
        found: dict[str, DerivedTable] = {}
        for table in self.derived:
            if name in table.sources and table.lookback is None:
                for each in (table, *self.downstream(table.name)):
                    found.pop(each.name, None)
                    found[each.name] = each
        return list(found.values())

    def _check_names(self) -> None:
        """In Snowflake all tables are in one schema, and in Dagster their names are keys."""
        seen: set[str] = set()
        for spec in self.materialized.values():
            seen.add(spec.table_name.lower())
        others = [
            (f"history of topic {s.name}", history_table(s)[1]) for s in self.histories.values()
        ]
        others += [(f"upsert view of topic {s.name}", view.name) for s, view in self.upsert_views]
        others += [("derived table", table.name) for table in self.derived]
        for what, name in others:
            if name.lower() in seen:
                raise SpecError(
                    f"the {what} has the name {name}, which another table has already",
                    hint="rename it, or set tableflow.enabled: false in the spec of the topic",
                )
            seen.add(name.lower())

    def _check(self, table: DerivedTable, below: tuple[str, ...]) -> None:
        if table.name in below:
            raise SpecError(
                f"derived table {table.name} comes from itself: {' → '.join((*below, table.name))}"
            )
        for source in (*table.sources, *table.lookups):
            known = (*self.materialized, *self.histories, *self.derived_by_name)
            if source not in known:
                there = ", ".join(sorted(known))
                raise SpecError(
                    f"derived table {table.name}: there is no table {source!r} to derive it from",
                    hint=f"topics with Tableflow enabled, and derived tables: {there or 'none'}",
                )
            if source in self.derived_by_name:
                self._check(self.derived_by_name[source], (*below, table.name))
        partitions = {str(self.origin(source).root.derived_partitions) for source in table.sources}
        if len(partitions) > 1:
            raise SpecError(
                f"derived table {table.name}: its sources differ in `derived_partitions`",
                hint="give their topics the same granularity and start",
            )

    def _check_published(self) -> None:
        for spec in self.topics:
            if spec.publishes and spec.publishes not in self.derived_by_name:
                there = ", ".join(sorted(self.derived_by_name))
                raise SpecError(
                    f"topic {spec.name} publishes {spec.publishes!r}, which is no derived table",
                    hint=f"derived tables: {there or 'none'}",
                )


def find_derived() -> list[DerivedTable]:
    """Every derived table that a module of ``assets/pipelines`` defines."""
    found: dict[str, DerivedTable] = {}
    for module in pkgutil.iter_modules(pipelines.__path__):
        members = vars(importlib.import_module(f"{pipelines.__name__}.{module.name}"))
        found |= {m.name: m for m in members.values() if isinstance(m, DerivedTable)}
    return list(found.values())
