"""Tables as Spark names, reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table import Table
from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
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
    if not windows:
        return frame
    return frame.filter(within(windows, time, frame.schema[time].dataType))


def rows_at_head(spark: SparkSession, table: Table) -> DataFrame:
    """Return the rows of the snapshot that was loaded, with the newest columns of the table.

    A read of a snapshot has its own columns; those that were added since are null.
    """
    name, head = name_in_spark(table), table.current_snapshot()
    if head is None:
        return spark.read.table(name).limit(0)
    frame = spark.read.option("versionAsOf", str(head.snapshot_id)).table(name)
    if head.schema_id == table.metadata.current_schema_id:
        return frame
    return frame.to(spark.read.table(name).schema)


def time_type(table: Table, column: str) -> DataType:
    """Return the type in Spark of a column of a table, without a request to Spark."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    kind = schema_to_pyarrow(table.schema().find_type(column))
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def serializable(
    writer: DataFrameWriterV2, validated_from: int, properties: Mapping[str, str]
) -> DataFrameWriterV2:
    """Return a writer whose commit is refused if others wrote the same rows since a snapshot.

    :param properties: added to the summary of its snapshot
    """
    options = {"isolation-level": "serializable", "validate-from-snapshot-id": str(validated_from)}
    for key, value in (IN_SUMMARY | dict(properties)).items():
        options[f"snapshot-property.{key}"] = value
    for key, value in options.items():
        writer = writer.option(key, value)
    return writer
