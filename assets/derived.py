"""Tables of one's own: a function from DataFrame to DataFrame becomes a set of assets.

Put a module into ``assets/pipelines/`` and decorate the function::

    @derived_table(source="stock_trades", time_column="trade_timestamp")
    def large_trades(trades: DataFrame) -> DataFrame:
        "Trades of more than 4,000 shares."
        return trades.filter("quantity > 4000").withColumnRenamed("$$timestamp", "trade_timestamp")

It gets the rows of its source in a window of event time and returns the rows of the derived table
in the same window; ``iceberg/large_trades``, ``glue/large_trades`` and ``snowflake/large_trades``
are in the graph, with partitions, backfills and checks.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import dagster as dg

from assets.metadata import column_lineage, table_metadata
from assets.partitions import TimePartitions, partition_keys, time_partitions, window
from assets.tables import RETRY, LakeTable, glue_asset, snowflake_asset, topic_table
from resources import Lakehouse, Spark
from topicberg.derived import Derivation, Transform, Written, write_window
from topicberg.settings import Settings
from topicberg.snapshots import Hours
from topicberg.topics import TopicSpec

DAY = 24


@dataclass(frozen=True)
class DerivedTable:
    """A derived table as its author describes it; :func:`derived_table` makes one."""

    name: str
    source: str
    time_column: str
    transform: Transform
    description: str
    owners: tuple[str, ...] = ()
    lineage: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def table(self, spec: TopicSpec) -> LakeTable:
        """Its names: the namespace is the pipeline of its source."""
        return LakeTable(
            name=self.name,
            group=spec.pipeline,
            identifier=(spec.pipeline, self.name),
            glue_name=self.name,
            snowflake_name=self.name.upper(),
            owners=self.owners or spec.owners,
        )


def derived_table(
    *,
    source: str,
    time_column: str,
    owners: tuple[str, ...] = (),
    lineage: Mapping[str, tuple[str, ...]] | None = None,
) -> Callable[[Transform], DerivedTable]:
    """Make a function from the source's rows to the table's rows a derived table of its name.

    :param source: the topic whose table it reads
    :param time_column: column of the result that carries the source's event time, unchanged: by it
        the table is partitioned and its windows are replaced
    :param lineage: column of the result → columns of the source, for the UI
    """

    def decorate(function: Transform) -> DerivedTable:
        return DerivedTable(
            name=function.__name__,
            source=source,
            time_column=time_column,
            transform=function,
            description=inspect.getdoc(function) or "",
            owners=owners,
            lineage=lineage or {},
        )

    return decorate


def derived_assets(
    derived: DerivedTable, spec: TopicSpec, config: Settings
) -> Iterator[dg.AssetsDefinition]:
    """The assets of a derived table."""
    table = derived.table(spec)
    yield _iceberg_asset(derived, table, spec, config)
    yield glue_asset(table)
    yield snowflake_asset(table)


def _iceberg_asset(
    derived: DerivedTable, table: LakeTable, spec: TopicSpec, config: Settings
) -> dg.AssetsDefinition:
    partitions = time_partitions(spec)
    source = topic_table(spec, config)
    source_key = source.key("iceberg")
    derivation = Derivation(
        source=source.identifier,
        target=table.identifier,
        transform=derived.transform,
        source_time=spec.event_time,
        target_time=derived.time_column,
        partitioned_by="day" if isinstance(partitions, dg.DailyPartitionsDefinition) else "hour",
    )

    @dg.asset(
        key=table.key("iceberg"),
        deps=[source_key],
        group_name=table.group,
        kinds={"iceberg", "pyspark"},
        owners=list(table.owners),
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        retry_policy=RETRY,
        pool="spark",
        description=f"{derived.description}\n\nIceberg table `{'.'.join(table.identifier)}`, "
        f"computed by PySpark from `{spec.name}`; a run replaces exactly its partitions.",
        metadata={
            "dagster/table_name": ".".join(table.identifier),
            "dagster/column_lineage": column_lineage(list(source_key.path), derived.lineage),
        },
        code_version=_code_version(derived.transform),
    )
    def compute(
        context: dg.AssetExecutionContext, lakehouse: Lakehouse, spark: Spark
    ) -> dg.MaterializeResult:
        asked = context.partition_time_window
        catalog = lakehouse.catalog()
        written = write_window(
            spark.spark_session,
            catalog,
            derivation,
            window(partitions, asked.start, asked.end),
        )
        context.log.info(f"wrote {written.rows:,} rows")
        rows = _rows_by_partition(partitions, written)
        keys = context.partition_keys
        for key in keys:
            context.add_asset_metadata(
                {"dagster/partition_row_count": rows[key]}, partition_key=key
            )
        # Every partition gets a copy of the metadata: no sample for a long backfill.
        metadata = table_metadata(catalog.load_table(table.identifier), sample=len(keys) <= DAY)
        return dg.MaterializeResult(
            metadata={**metadata, "source_snapshot_id": str(written.source_snapshot_id)}
        )

    return compute


def _rows_by_partition(partitions: TimePartitions, written: Written) -> Counter[str]:
    rows = Counter[str]()
    for hour, count in (written.rows_by_hour or {}).items():
        for key in partition_keys(partitions, [Hours(hour, hour + 1)], datetime.now(UTC)):
            rows[key] += count
    return rows


def _code_version(function: Transform) -> str:
    """Changes with the function's text, so that the UI marks what an older one computed."""
    import hashlib

    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]
