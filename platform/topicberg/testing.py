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
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from topicberg.endpoints import load_endpoints
from topicberg.errors import TopicbergError
from topicberg.settings import settings
from topicberg.shipping.project import send
from topicberg.spark import CONNECT_MODE, new_session, quote
from topicberg.topics import TopicSpec, load_topic
from topicberg.transforms.derivation import TableName
from topicberg.transforms.spark_tables import spark_name
from topicberg.transforms.topic_columns import topic_columns

os.environ[CONNECT_MODE] = "1"  # modules of pipelines may be imported before there is a session


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield a new session on the running stack, whose workers have the code of the project; raise
    StackNotRunningError if the stack does not run."""
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
    """Return rows with all columns of a topic's table.

    A record has columns by their names: an object is a dict, an array a list. Missing columns and
    fields are null, nothing is filled in. That includes the metadata columns, so give those that
    the function reads: ``{"$$timestamp": …}`` or, of a topic with an event time in its payload,
    ``{"$$event-time": …}``.

    :raises TopicbergError: a record has a field that is not in the table, or of another type
    """
    spec = load_topic(topic) if isinstance(topic, str) else topic
    schema = topic_columns(spec, settings())
    for column in schema:
        column.nullable = True
    given = [dict(record) for record in records]
    for path, names in (unknown for record in given for unknown in _unknown_fields(record, schema)):
        raise TopicbergError(
            f"topic {spec.name}: no column {path}", hint=f"use one of {', '.join(names)}"
        )
    values = [tuple(record.get(name) for name in schema.names) for record in given]
    try:
        return spark.createDataFrame(values, schema)
    except (AssertionError, TypeError, ValueError, PySparkException) as error:
        for position, column in enumerate(schema):
            cells = [value[position] for value in values]
            try:
                spark.createDataFrame([(cell,) for cell in cells], StructType([column]))
            except (AssertionError, TypeError, ValueError, PySparkException):
                kind = column.dataType.simpleString()
                raise TopicbergError(
                    f"topic {spec.name}: column {column.name} is a {kind}, given are {cells!r}",
                    hint="give values of that type; a time is a datetime with a time zone",
                ) from error
        raise


def _unknown_fields(
    value: Any, kind: DataType, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield the paths of fields that a type lacks, and the fields that it has there."""
    match value, kind:
        case Mapping(), StructType():
            for name, field in value.items():
                if name not in kind.names:
                    yield ".".join((*path, name)), kind.names
                else:
                    yield from _unknown_fields(field, kind[name].dataType, (*path, name))
        case Mapping(), MapType(valueType=values):
            for field in value.values():
                yield from _unknown_fields(field, values, path)
        case list() | tuple(), ArrayType(elementType=elements):
            for field in value:
                yield from _unknown_fields(field, elements, path)


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
    return [*frame.toArrow().to_pylist()]
