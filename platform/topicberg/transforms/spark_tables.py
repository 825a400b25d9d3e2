"""Tables as Spark names, reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from topicberg.endpoints import CATALOG
from topicberg.iceberg.tables import attached_catalog
from topicberg.spark import quote
from topicberg.transforms.derivation import TableName
from topicberg.transforms.windows import Window, within
from topicberg.version import IN_SUMMARY


def spark_name(table: TableName) -> str:
    """Return the name in Spark SQL of a table that topicberg writes."""
    return f"{CATALOG}.{quote(*table)}"


def name_in_spark(table: Table) -> str:
    """Return the name in Spark SQL of any table, also of one in the topics' own catalog."""
    return f"{attached_catalog(table)}.{quote(*table.name())}"


def read_window(
    spark: SparkSession, table: TableName, time: str, windows: Sequence[Window]
) -> DataFrame:
    """Return the rows of a table in windows of its event time, as of now; no window: all rows."""
    frame = spark.read.table(spark_name(table))
    kind = frame.schema[time].dataType if windows else None
    return frame.filter(within(windows, time, kind)) if kind else frame


def rows_at_head(spark: SparkSession, table: Table) -> DataFrame:
    """Return the rows of the snapshot that was loaded, with the newest columns of the table. A read
    of a snapshot has its own columns; those that were added since are null."""
    name, head = name_in_spark(table), table.current_snapshot()
    if head is None:
        return spark.read.table(name).limit(0)
    frame = spark.read.option("versionAsOf", str(head.snapshot_id)).table(name)
    is_newest = head.schema_id == table.metadata.current_schema_id
    return frame if is_newest else frame.to(spark.read.table(name).schema)


def time_type(table: Table, column: str) -> DataType:
    """Return the type in Spark of a column of a table, without a request to Spark."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    kind = schema_to_pyarrow(table.schema().find_type(column))
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def overwrite(
    rows: DataFrame, table: Table, replaced: Column, properties: Mapping[str, str]
) -> None:
    """Replace rows; Iceberg refuses it if others wrote some of them since the table was loaded.

    :param table: it has a snapshot
    :param replaced: the condition of the rows that are replaced
    :param properties: added to the summary of the snapshot
    """
    head = table.current_snapshot()
    assert head is not None  # noqa: S101  see ensure_table
    writer = rows.writeTo(name_in_spark(table)).option("isolation-level", "serializable")
    writer = writer.option("validate-from-snapshot-id", str(head.snapshot_id))
    for key, value in (IN_SUMMARY | dict(properties)).items():
        writer = writer.option(f"snapshot-property.{key}", value)
    writer.overwrite(replaced)
