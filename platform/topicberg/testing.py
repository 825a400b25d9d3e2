"""Helpers for the tests of derived tables: rows in, rows out.

::

    def test_large_trades(spark):
        trades = topic_frame(spark, "stock_trades", [{"quantity": 4001}, {"quantity": 4000}])
        assert [row["quantity"] for row in rows(large_trades.transform(trades))] == [4001]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from topicberg.endpoints import load_endpoints
from topicberg.errors import TopicbergError
from topicberg.project_code import send
from topicberg.settings import settings
from topicberg.spark import CONNECT_MODE, new_session, quote
from topicberg.topics import TopicSpec, load_topic
from topicberg.transforms.derivation import TableName
from topicberg.transforms.spark_tables import spark_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

os.environ[CONNECT_MODE] = "1"  # modules of pipelines may be imported before there is a session
_SPARK_TYPES = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
_HEADERS = "map<string,binary>"


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield a new session on the running stack, whose workers have the code of the project.

    :raises StackNotRunningError: the stack does not run
    """
    endpoints = load_endpoints()
    session = new_session(endpoints.spark_connect, endpoints.spark_session(settings())[0])
    try:
        send(session, settings().project_root)
        yield session
    finally:
        session.stop()


def topic_frame(
    spark: SparkSession, topic: str | TopicSpec, records: Iterable[Mapping[str, Any]]
) -> DataFrame:
    """Return rows with all columns of a topic's table; missing fields are null.

    :raises TopicbergError: a record has a field that is not a column of the table
    """
    spec = load_topic(topic) if isinstance(topic, str) else topic
    columns = spec.columns()
    kinds = columns | {spec.metadata_column("headers"): _HEADERS}
    given = [dict(record) for record in records]
    unknown = {field for record in given for field in record} - set(columns)
    if unknown:
        raise TopicbergError(
            f"topic {spec.name}: no column {', '.join(sorted(unknown))}",
            hint=f"use one of {', '.join(columns)}",
        )
    schema = ", ".join(
        f"{quote(name)} {_SPARK_TYPES.get(kind, kind)}" for name, kind in kinds.items()
    )
    values = [tuple(record.get(column) for column in columns) for record in given]
    return spark.createDataFrame(values, schema)


def create_table(spark: SparkSession, frame: DataFrame, table: TableName, time: str) -> None:
    """Create a table of these rows, partitioned by the hour of its event time."""
    # Spark Connect's DataFrameWriterV2 loses the quotes of a column in a transform.
    columns = ", ".join(f"{quote(c.name)} {c.dataType.simpleString()}" for c in frame.schema)
    spark.sql(
        f"CREATE TABLE {spark_name(table)} ({columns}) USING iceberg "
        f"PARTITIONED BY (hours({quote(time)}))"
    )
    frame.writeTo(spark_name(table)).append()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame; times are in UTC."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found
