"""Jobs to run manually: each pipeline as a whole, and everything.

A run has one partition, so tables whose partitions differ (hourly and daily ones, say) have jobs of
their own: ``everything_hourly_from_2026_01_01`` and ``everything_daily_from_2026_01_01`` instead of
``everything``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

import dagster as dg

from topicberg.dagster.executor import EXECUTOR
from topicberg.orchestration.assets import Lake
from topicberg.orchestration.assets.derived import DerivedTable
from topicberg.orchestration.assets.tables import KIND, kafka_key
from topicberg.orchestration.catalogs.catalog import systems
from topicberg.topics import TopicSpec
from topicberg.topics.spec import DerivedPartitions

EVERYTHING, REGISTER, COMPUTE = "everything", "register_tables", "compute_tables"
_TAGS = {KIND: "pipeline"}


def pipeline_jobs(lake: Lake) -> Iterator[dg.UnresolvedAssetJobDefinition]:
    """A job for each pipeline, named like its group, and :data:`EVERYTHING`."""
    for name in sorted({spec.pipeline for spec in lake.topics}):
        yield from _jobs(
            f"{name}_pipeline",
            _selected(lake, name),
            f"Every asset and check of the pipeline {name}.",
            lake,
            [table for table in lake.derived if lake.root(table).pipeline == name],
        )
    description = "Every asset and check of the data, without the platform."
    yield from _jobs(EVERYTHING, _selected(lake), description, lake, lake.derived)


def _selected(lake: Lake, pipeline: str | None = None) -> dg.AssetSelection:
    """Return the assets of the lake, or of a pipeline, and none of others in the code location."""
    tables = [
        table.key(system)
        for table in lake.tables
        if pipeline in (None, table.group)
        for system in systems()
    ]
    topics = [
        kafka_key(spec)
        for derived in lake.derived
        for spec in lake.published(derived)
        if pipeline in (None, spec.pipeline)
    ]
    return dg.AssetSelection.assets(*tables, *topics)


def everything(lake: Lake) -> dict[str, TopicSpec | None]:
    """The jobs that together run everything → a topic that says their partitions, if they have."""
    kinds = _by_partitions(lake, lake.derived)
    return {
        _name(EVERYTHING, partitions, kinds): lake.root(tables[0])
        for partitions, tables in kinds.items()
    } or {EVERYTHING: None}


def compute_job(lake: Lake, table: DerivedTable) -> str:
    """Return the name of the job whose runs a sensor requests to compute a derived table."""
    partitions = lake.root(table).derived_partitions
    assert partitions is not None  # noqa: S101  a root of derived tables has them
    return _name(COMPUTE, partitions, _by_partitions(lake, lake.derived))


def _jobs(
    name: str,
    selection: dg.AssetSelection,
    description: str,
    lake: Lake,
    tables: Iterable[DerivedTable],
) -> Iterator[dg.UnresolvedAssetJobDefinition]:
    kinds = _by_partitions(lake, tables)
    job = partial(dg.define_asset_job, tags=_TAGS, executor_def=EXECUTOR)
    if len(kinds) < 2:
        yield job(name, selection, description=description)
        return
    for partitions in kinds:
        others = [
            key
            for other, of_others in kinds.items()
            if other != partitions
            for table in of_others
            for key in keys_of(lake, table)
        ]
        yield job(
            _name(name, partitions, kinds),
            selection - dg.AssetSelection.assets(*others),
            description=f"{description} But for tables with other partitions.",
        )


def _by_partitions(
    lake: Lake, tables: Iterable[DerivedTable]
) -> dict[DerivedPartitions, list[DerivedTable]]:
    found: dict[DerivedPartitions, list[DerivedTable]] = {}
    for table in tables:
        if partitions := lake.root(table).derived_partitions:
            found.setdefault(partitions, []).append(table)
    return found


def keys_of(lake: Lake, table: DerivedTable) -> list[dg.AssetKey]:
    """Return what is computed of a derived table: it in every catalog, and its topics."""
    return [*map(lake.table(table).key, systems()), *map(kafka_key, lake.published(table))]


def _name(name: str, partitions: DerivedPartitions, kinds: Collection[DerivedPartitions]) -> str:
    suffix = f"_{partitions.granularity}_from_{partitions.start:%Y_%m_%d}"
    return name if len(kinds) < 2 else name + suffix
