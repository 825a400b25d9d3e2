"""The asset graph: every topic of ``platform/topics`` and every derived table of ``pipelines/``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg

from assets import pipelines
from assets.checks import lag_check, parity_check
from assets.derived import DerivedTable, derived_assets
from assets.tables import LakeTable, topic_table
from assets.topics import topic_assets
from topicberg.errors import SpecError
from topicberg.settings import Settings
from topicberg.topics import TopicSpec


@dataclass(frozen=True)
class TopicGraph:
    """One topic with what is derived from it."""

    spec: TopicSpec
    derived: tuple[DerivedTable, ...]

    def tables(self, config: Settings) -> list[LakeTable]:
        """The topic's table first, then the derived ones."""
        return [topic_table(self.spec, config), *(d.table(self.spec) for d in self.derived)]


def find_derived() -> list[DerivedTable]:
    """Every derived table that a module of ``assets/pipelines`` defines."""
    found: dict[str, DerivedTable] = {}
    for module in pkgutil.iter_modules(pipelines.__path__):
        members = vars(importlib.import_module(f"{pipelines.__name__}.{module.name}"))
        found |= {m.name: m for m in members.values() if isinstance(m, DerivedTable)}
    return list(found.values())


def topic_graphs(specs: list[TopicSpec], derived: list[DerivedTable]) -> list[TopicGraph]:
    """Each topic with its derived tables.

    :raises SpecError: a derived table names a topic that is not there, or not materialized
    """
    sources = {spec.name for spec in specs if spec.tableflow.enabled}
    for table in derived:
        if table.source not in sources:
            raise SpecError(
                f"derived table {table.name}: there is no materialized topic {table.source!r}",
                hint=f"topics with Tableflow enabled: {', '.join(sorted(sources)) or 'none'}",
            )
    return [
        TopicGraph(spec, tuple(table for table in derived if table.source == spec.name))
        for spec in specs
    ]


def graph_assets(
    graph: TopicGraph, config: Settings
) -> Iterator[dg.AssetsDefinition | dg.SourceAsset]:
    yield from topic_assets(graph.spec, config)
    for derived in graph.derived:
        yield from derived_assets(derived, graph.spec, config)


def graph_checks(graph: TopicGraph, config: Settings) -> Iterator[dg.AssetChecksDefinition]:
    if not graph.spec.tableflow.enabled:
        return
    for table in graph.tables(config):
        yield parity_check(table)
    if graph.spec.checks.max_lag_records is not None:
        yield lag_check(graph.spec, config)
