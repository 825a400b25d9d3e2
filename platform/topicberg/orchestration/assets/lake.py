"""The tables that there are and how they come from one another, put together from the specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from graphlib import TopologicalSorter
from typing import Protocol

import dagster as dg

from topicberg.checks.check import TableCheck
from topicberg.errors import SpecError
from topicberg.extensions import extensions
from topicberg.orchestration.assets.derived import DataCheck, DerivedTable, derivation
from topicberg.orchestration.assets.registry import OF_TOPICS, ComputedTable, Table
from topicberg.orchestration.assets.tables import kafka_key
from topicberg.orchestration.catalogs.catalog import ICEBERG, catalogs
from topicberg.orchestration.checks.own import OwnCheck, find_checks, own_check, validate
from topicberg.project import members
from topicberg.settings import Settings, settings
from topicberg.spark import for_connect
from topicberg.topics import TopicSpec
from topicberg.topics.kept import KnownSpecs
from topicberg.transforms.derivation import Derivation
from topicberg.transforms.upsert_view import UpsertView
from topicberg.wording import suggestion


class Addition(Protocol):
    """What an entry point of ``topicberg.definitions`` names: it adds to the graph."""

    def __call__(self, lake: Lake) -> dg.Definitions:
        """Return assets, checks, jobs, schedules and sensors, made when the graph is loaded.

        :param lake: the project's settings, topics and tables
        """


@dataclass(frozen=True)
class Lake:
    """Every topic and every derived table that the deployment can compute, with Spark or without.

    :raises SpecError: (on making) a derived table has a source that does not exist, two sources
        with different partitions, itself as a source, or the name of a topic's table
    """

    config: Settings
    topics: tuple[TopicSpec, ...]
    derived: tuple[DerivedTable, ...]
    left_out: frozenset[str] = frozenset()
    """Topics whose specs are invalid: what follows from them is left out as well."""
    problem: str | None = None  # What is wrong with the specs.
    publishes: bool = True  # Whether derived tables are published to topics.
    also_read: frozenset[str] = frozenset()
    """Names of what derived tables read that were left out (:meth:`within`)."""
    own_checks: tuple[OwnCheck, ...] = ()  # The project's own, but of tables that are left out.

    def __post_init__(self) -> None:
        left, missing = self._without_missing()
        lost = {table.name for table in self.derived} - {table.name for table in left}
        object.__setattr__(self, "derived", left)
        if self.left_out:
            specs = (spec for spec in self.topics if spec.publishes not in lost)
            object.__setattr__(self, "topics", tuple(specs))
        self._check_names()
        for table in self.derived:
            self._check(table, ())
        for error in without_table(self.topics, self.derived_by_name):
            raise error
        checks = (c for c in self.own_checks if missing.isdisjoint(c.tables))
        # A name that is merely wrong, where no topic was left out, is an error of the validation.
        own = tuple(c for c in checks if not self.left_out or self._named.keys() >= {*c.tables})
        object.__setattr__(self, "own_checks", own)
        self._validate_checks()

    def _without_missing(self) -> tuple[tuple[DerivedTable, ...], set[str]]:
        """Return the derived tables whose sources there are, or should be, and what is missing."""
        missing = {table.source for table in self._of_kinds(computed=False) if table.source}
        topics = self.left_out - {spec.name for spec in self.topics}
        missing |= {n for topic in topics for kind in OF_TOPICS for n in kind.source_names(topic)}
        left = self.derived
        while lost := {table.name for table in left if missing & {*table.reads}}:
            missing |= lost
            left = tuple(table for table in left if table.name not in lost)
        return left, missing

    @cached_property
    def additions(self) -> tuple[dg.Definitions, ...]:
        """What other packages add to the graph: see :class:`Addition`."""
        added = extensions("topicberg.definitions", lambda make: make(self))
        return tuple(definitions for _, definitions in added)

    def within(self, assets: Iterable[dg.AssetsDefinition | dg.AssetSpec]) -> Lake:
        """Return the part of which a graph has the assets; nothing else is checked or requested."""
        keys = {
            key
            for asset in assets
            for key in (asset.keys if hasattr(asset, "keys") else (asset.key,))
        }
        tables = {table.name for table in self.tables if table.key("iceberg") in keys}
        derived = tuple(table for table in self.derived if table.name in tables)
        topics = tuple(
            spec
            for spec in self.topics
            if (not spec.has_table(self.config) or spec.table_name in tables)
            and (spec.publishes is None or spec.publishes in {table.name for table in derived})
        )
        publishes = {kafka_key(s) for table in self.derived for s in self.published(table)} <= keys
        if len(topics) == len(self.topics) and len(derived) == len(self.derived) and publishes:
            return self
        removed = {spec.name for spec in self.topics} - {spec.name for spec in topics}
        removed |= {table.name for table in self.derived} - {table.name for table in derived}
        return replace(
            self,
            topics=topics,
            derived=derived,
            left_out=self.left_out | removed,
            publishes=self.publishes and publishes,
            also_read=self.read,  # so that the same tables share operations
        )

    def _of_kinds(self, *, computed: bool) -> Iterator[Table]:
        """Yield topics' tables, of the kinds that the deployment computes, or leaves out."""
        for kind in OF_TOPICS:
            if (self.config.has_spark or not kind.needs_spark) == computed:
                for spec in self.topics:
                    yield from kind.of(spec, self.config)

    @cached_property
    def _of_topics(self) -> tuple[Table, ...]:
        return tuple(self._of_kinds(computed=True))

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Every table: those of topics, their histories and views, then the derived ones."""
        computed = (ComputedTable.of(each, self.root(each), self.config) for each in self.derived)
        return (*self._of_topics, *computed)

    @cached_property
    def read(self) -> frozenset[str]:
        """The names of what derived tables read."""
        return self.also_read | {name for table in self.derived for name in table.reads}

    @cached_property
    def checks(self) -> tuple[tuple[Table, str, tuple[TableCheck, ...]], ...]:
        """Table, system (the first part of the asset's key), and the checks of that asset."""
        checks: list[tuple[Table, str, tuple[TableCheck, ...]]] = []
        for table in self.tables:
            own_checks = (
                own_check(check, {name: self._named[name].identifier for name in check.tables})
                for check in self.checks_of(table)
            )
            checks.append((table, ICEBERG, (*table.checks(self), *own_checks)))
            dropped = f"iceberg/{table.name}:up_to_date" if table.reports_drop else None
            checks += (
                (table, name, tuple(catalog.checks(dropped)))
                for name, catalog in catalogs().items()
            )
        return tuple(checks)

    @property
    def row_checks(self) -> list[tuple[DerivedTable, DataCheck]]:
        """Derived tables and the functions that check their rows, which need Spark Connect."""
        derived = self.derived if self.config.has_spark else ()
        return [(table, check) for table in derived for check in table.checks]

    def checks_of(self, table: Table) -> Iterator[OwnCheck]:
        """Return the project's own checks of a table."""
        return (check for check in self.own_checks if self._named[check.tables[0]] == table)

    @cached_property
    def _named(self) -> dict[str, Table]:
        """The tables by their names, and by those of their topics."""
        return {table.name: table for table in self.tables} | self._by_source

    def _validate_checks(self) -> None:
        seen: dict[str, dict[str, str]] = {}
        for check in self.own_checks:
            for name in check.tables:
                if name not in self._named:
                    raise SpecError(
                        f"{check.file}: check {check.name}: there is no table {name!r}"
                        f"{suggestion(name, list(self._named))}",
                        hint=f"tables: {', '.join(sorted(self._named)) or 'none'}",
                    )
            table = self._named[check.tables[0]]
            usual = {usual.name: "topicberg's own" for usual in table.checks(self)}
            others = seen.setdefault(table.name, usual)
            validate(check, others)
            others[check.name] = check.file

    @cached_property
    def ingested(self) -> dict[str, Table]:
        """The tables of records that others can be derived from, by the name of the source."""
        return {table.source: table for table in self._of_topics if table.source}

    @cached_property
    def upsert_views(self) -> dict[str, UpsertView]:
        views = {table.name: table.upsert_view(self.config) for table in self.tables}
        return {name: view for name, view in views.items() if view is not None}

    @cached_property
    def derived_by_name(self) -> dict[str, DerivedTable]:
        return {table.name: table for table in self.derived}

    @cached_property
    def in_order(self) -> list[DerivedTable]:
        """The derived tables, each after those that it reads."""
        by_name = self.derived_by_name
        reads = {table.name: [*filter(by_name.get, table.reads)] for table in self.derived}
        return [by_name[name] for name in TopologicalSorter(reads).static_order()]

    @cached_property
    def plan_of(self) -> Callable[[str], Derivation]:
        """Returns how a derived table is computed, by its name; that is put together once."""
        return cache(lambda name: derivation(self.derived_by_name[name], self))

    def root(self, table: DerivedTable) -> TopicSpec:
        """Return the topic that its rows come from."""
        return self._root_of(table.sources[0])

    def _root_of(self, source: str) -> TopicSpec:
        ingested = self.ingested.get(source)
        return ingested.root if ingested else self.root(self.derived_by_name[source])

    def table(self, derived: DerivedTable) -> Table:
        return self._by_source[derived.name]

    def origin(self, name: str) -> Table:
        """Return the table of a topic, or a derived one, that others are derived from."""
        return self._by_source[name]

    @cached_property
    def _by_source(self) -> dict[str, Table]:
        return {table.source: table for table in self.tables if table.source}

    def published(self, derived: DerivedTable) -> list[TopicSpec]:
        """The topics that a derived table is published to, where there is a Spark for it."""
        topics = self.topics if self.publishes and self.config.has_spark else ()
        return [spec for spec in topics if spec.publishes == derived.name]

    def downstream(self, name: str) -> list[DerivedTable]:
        """What a change in a window changes in the same window, and nowhere else, in order."""
        names = {name}
        for table in self.in_order:
            if not (table.reads_around or names.isdisjoint(table.sources)):
                names.add(table.name)
        return [table for table in self.in_order if table.name in names - {name}]

    def _check_names(self) -> None:
        """In Snowflake all tables are in one schema, and in Dagster their names are keys."""
        named = [
            *(
                (table.described.format(topic=table.root.name), table.name)
                for table in self._of_topics
                if not table.reported
            ),
            *((ComputedTable.described, table.name) for table in self.derived),
        ]
        seen = {table.name.lower() for table in self._of_topics if table.reported}
        for description, name in named:
            if name.lower() in seen:
                raise SpecError(
                    f"the {description} has the name {name}, which another table has already",
                    hint="rename it, or set tableflow.enabled: false in the spec of the topic",
                )
            seen.add(name.lower())

    def _check(self, table: DerivedTable, below: tuple[str, ...]) -> None:
        if table.name in below:
            raise SpecError(
                f"derived table {table.name} comes from itself: {' → '.join((*below, table.name))}"
            )
        tables = (*self.ingested, *self.derived_by_name)
        for source in table.reads:
            if source not in tables:
                there = ", ".join(sorted(tables))
                raise SpecError(
                    f"derived table {table.name}: there is no table {source!r} to derive it from",
                    hint=f"topics with Tableflow enabled, and derived tables: {there or 'none'}",
                )
            if source in self.derived_by_name:
                self._check(self.derived_by_name[source], (*below, table.name))
        if len({str(self._root_of(source).derived_partitions) for source in table.sources}) > 1:
            raise SpecError(
                f"derived table {table.name}: its sources differ in `derived_partitions`",
                hint="give their topics the same granularity and start",
            )


def without_table(topics: Iterable[TopicSpec], derived: Iterable[str]) -> Iterator[SpecError]:
    """Yield the errors of topics that publish a table that is none of the derived ones."""
    names = sorted(derived)
    for spec in topics:
        if spec.publishes and spec.publishes not in names:
            yield SpecError(
                f"topic {spec.name} publishes {spec.publishes!r}, which is not a derived table"
                f"{suggestion(spec.publishes, names)}",
                hint=f"derived tables: {', '.join(names) or 'none'}",
            )


def find_derived(config: Settings | None = None) -> list[DerivedTable]:
    """Every derived table of the modules that ``pipelines`` of ``[tool.topicberg]`` names.

    :raises TopicbergError: a module cannot be imported, or two modules define one table
    """
    config = config or settings()
    by_name: dict[str, DerivedTable] = {}
    with for_connect():
        tables = [*members(config.project_root, config.project.pipelines, DerivedTable)]
    for _, table in tables:
        first = by_name.setdefault(table.name, table)
        if first is not table:
            raise SpecError(
                f"{table.file}: derived table {table.name} is also in {first.file}",
                hint="rename one of the functions",
            )
    return list(by_name.values())


def lake_of(config: Settings, known_specs: KnownSpecs) -> Lake:
    """Return the lake of these specs and of the derived tables; SpecError: they do not fit."""
    return Lake(
        config,
        tuple(known_specs.specs),
        tuple(find_derived(config)),
        known_specs.left_out,
        known_specs.problem,
        own_checks=tuple(find_checks(config)),
    )
