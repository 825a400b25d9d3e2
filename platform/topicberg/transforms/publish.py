"""A table's rows as records of a topic, exactly once, whatever is killed and however often.

What is published is the difference of two snapshots: the one that the topic already holds, and the
newest. Spark computes and encodes it; a transactional producer sends it in the order of event time,
some 20,000 records a transaction, and records *in the same transaction*, in the topic
:data:`STATE_TOPIC`, up to which event time it is. All records of one time are in one transaction.
The next publisher first fences off the previous one, then finishes what that has begun: the same
two snapshots, encoded with the same schemas, from that event time on. So later changes of the
table, the spec and the registry do not matter. (Spark's own Kafka sink has no transactions: a run
that is repeated would send everything twice.)

* A topic in write mode upsert gets the new value of every key that changed, and a tombstone for
  every key that no row has any more. A key that several rows have is an error, wherever they are.
* A topic in write mode append gets the new rows. A deleted row stays in the topic, because an
  append log cannot remove it. The number of such rows is reported.

Records carry the row's event time as their timestamp. Tags on the two snapshots protect both from
expiry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from typing import Any

from confluent_kafka import Producer
from pydantic import BaseModel
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.formats.framing import wire_prefix
from topicberg.formats.json.columns import read_node
from topicberg.formats.subjects import RegisteredSchema
from topicberg.iceberg import snapshots, tables
from topicberg.iceberg.hours import Hours, coarse, union
from topicberg.kafka import topics as kafka
from topicberg.kafka import transactions
from topicberg.settings import Settings
from topicberg.spark import quote
from topicberg.topics import TopicSpec
from topicberg.topics.columns import file_columns
from topicberg.topics.schema import read_schema
from topicberg.transforms.derivation import TableName
from topicberg.transforms.spark_tables import name_in_spark

STATE_TOPIC = "topicberg.published"  # Compacted: topic → :class:`PublishProgress`.
BATCH = 20_000  # Records of a transaction; more, if more have the same event time.
TRANSACTION_SECONDS = 900  # The most that a broker allows by default.
_MAX_PREDICATES = 50
_NO_TIME = -(2**62)  # Event time, in ms, of a row that has none: it comes first.


class PublishError(TopicbergError):
    """A table cannot be published to its topic."""


class PublishedField(BaseModel, frozen=True):
    """How a key or a value is created from a row."""

    format: str
    field: str | None = None  # The column of a key that is text.
    schema_id: int | None = None
    text: str = ""  # Of the schema.


class RecordEncoding(BaseModel, frozen=True):
    """How records are created from rows."""

    key: PublishedField
    value: PublishedField


class PublishProgress(BaseModel):
    """What a topic holds of its table."""

    topic_id: str
    table_uuid: str
    snapshot: int | None = None  # All of this snapshot, …
    encoding: RecordEncoding | None = None  # … with these keys …
    target: int | None = None  # … and of what changed from there to this one …
    attempt: RecordEncoding | None = None  # … in this encoding …
    until: int | None = None  # … all records up to this event time, in ms. None: no record.


@dataclass(frozen=True)
class Published:
    """What a call of :func:`publish` sent; ``snapshot``: what the topic holds now."""

    snapshot: int | None
    records: int = 0
    tombstones: int = 0
    not_taken_back: int = 0  # Rows that were deleted from the table, but stay in an append topic.


def publish(
    spark: SparkSession,
    catalog: Catalog,
    endpoints: Endpoints,
    config: Settings,
    spec: TopicSpec,
    table_name: TableName,
    time: str,
    *,
    batch: int = BATCH,
) -> Published:
    """Publish the newest snapshot of a table to its topic.

    :param time: the table's event time, which becomes the records' timestamp
    :raises PublishError: the topic holds records of another table, or a key has several rows
    :raises CommitConflictError: another publisher of this topic took over
    """
    if (table := tables.find_table(catalog, table_name)) is None:
        return Published(None)
    ensured = kafka.ensure_topic(spec, endpoints, config)
    kafka.ensure_internal_topic(STATE_TOPIC, endpoints)
    current = _encoding(spec, config, ensured)
    with _transactions(spec.name, endpoints) as producer:  # no other publisher can commit now
        table.refresh()  # another one may have published a newer snapshot until now
        progress = _progress(table, spec.name, endpoints)
        done = 0, 0, 0
        while (target := _target(table, progress)) is not None:
            # In this order: the tag that moves may be the only one that protects the topic's state.
            if progress.snapshot is not None:
                _tag(table, progress.snapshot, f"published-{spec.name}")
            _tag(table, target, f"publishing-{spec.name}")
            attempt = progress.attempt or current
            progress = progress.model_copy(update={"target": target, "attempt": attempt})
            changes = _changes(spark, table, spec, progress, time)
            counts = _send(producer, spec, changes, progress, batch)
            deleted = 0
            if progress.snapshot is not None and spec.write_mode != "upsert":
                copies = changes.filter("copies < 0").agg(F.sum("copies"))
                deleted = -int(copies.collect()[0][0] or 0)
            done = done[0] + counts[0], done[1] + counts[1], done[2] + deleted
            progress = _finished(progress)
            _tag(table, target, f"published-{spec.name}")
    return Published(progress.snapshot, *done)


def published_snapshot(table: Table, topic: str, endpoints: Endpoints) -> int | None:
    """Return the snapshot of a table that its topic continues from; None: it has nothing of it.
    What a publisher sends at the moment does not count yet."""
    try:
        topic_id = kafka.topic_id(endpoints, topic)
        state = transactions.committed_states(endpoints, STATE_TOPIC).get(topic)
    except kafka.NoSuchTopicError:
        return None
    progress = PublishProgress.model_validate_json(state) if state else None
    there = topic_id, str(table.metadata.table_uuid)
    is_current = progress and (progress.topic_id, progress.table_uuid) == there
    return progress.snapshot if progress and is_current else None


def _target(table: Table, progress: PublishProgress) -> int | None:
    """Return the snapshot to publish now; an unfinished one is finished first."""
    if progress.target is not None:
        return progress.target
    head = table.current_snapshot()
    return head.snapshot_id if head and head.snapshot_id != progress.snapshot else None


def _encoding(spec: TopicSpec, config: Settings, ensured: kafka.EnsuredTopic) -> RecordEncoding:
    """Return the encoding of the spec, with the registered schemas."""

    def encoding(
        kind: str, path: Any, schema_id: int | None, field: str | None = None
    ) -> PublishedField:
        text = read_schema(path, kind).text if path else ""
        return PublishedField(format=kind, field=field, schema_id=schema_id, text=text)

    key, value = spec.key, spec.value_schema
    return RecordEncoding(
        key=encoding(key.format, spec.schema_path("key", config), ensured.key_schema_id, key.field),
        value=encoding(value.format, spec.schema_path("value", config), ensured.value_schema_id),
    )


def _encoded(topic: str, field: PublishedField, columns: set[str]) -> Column:
    """Return a key or a value; with a schema, in the Confluent wire format."""
    if field.format == "none":
        return F.lit(None).cast("binary")
    if field.format not in ("string", "avro", "json"):
        raise PublishError(f"topic {topic}: rows cannot be published as {field.format}")
    names = [*_columns(topic, field)]
    if missing := sorted(set(names) - columns):
        raise PublishError(
            f"topic {topic}: its table has no column {', '.join(missing)}",
            hint="add the column to the table: it needs all fields of the topic's schemas",
        )
    if field.format == "string":
        return F.encode(F.col(quote(*names)).cast("string"), "utf-8")
    is_json, fields = field.format == "json", F.struct(*(F.col(quote(name)) for name in names))
    payload = _json(field.text) if is_json else to_avro(fields, field.text)
    return F.concat(F.lit(bytearray(wire_prefix(field.schema_id or 0))), payload)


def _json(schema: str) -> Column:
    """Return a row as a JSON object, with Connect's logical types: times and dates are numbers. A
    null is omitted, unless the schema has required properties: then all nulls are included."""
    record = read_node("the topic's schema", RegisteredSchema(0, "JSON", schema))
    numbers = {"timestamptz": "unix_millis", "timestamp": "unix_millis", "date": "unix_date"}

    def value(name: str, kind: str) -> Column:
        column = F.col(quote(name))
        if kind in ("timestamp", "timestamptz"):
            column = column.cast("timestamp")  # sessions are in UTC
        return F.call_function(numbers[kind], column) if kind in numbers else column

    values = (value(name, node.kind).alias(name) for name, node in record.children.items())
    text = F.to_json(F.struct(*values), {"ignoreNullFields": str(not record.required).lower()})
    return F.encode(text, "utf-8")


def _changes(
    spark: SparkSession, table: Table, spec: TopicSpec, progress: PublishProgress, time: str
) -> DataFrame:
    """Return what changed, as records: ``key``, ``value`` and ``time`` (ms). Of an append topic,
    ``copies``: negative, that many rows were deleted. Of an upsert topic, each key with a change,
    its value (null: no row has it any more), and ``rows``: how many have it. Only files of the
    partitions that snapshots in between affected are read, and, of an upsert topic whose keys do
    not have the event time, all of them for the keys with a change."""
    base, target, attempt = progress.snapshot, progress.target, progress.attempt
    assert target is not None  # noqa: S101  see publish()
    assert attempt is not None  # noqa: S101  see publish()
    # The topic's records have the keys that were sent: if they changed, all of them are replaced.
    keys_of_base = (progress.encoding or attempt).key
    if any(table.snapshot_by_id(s) is None for s in (base, target) if s is not None):
        reason = "the snapshot of its table that it holds is expired"
        raise _unclear(spec.name, f"topic {spec.name}: {reason}")

    def rows(
        snapshot: int, key: PublishedField, copies: int, condition: Column | None
    ) -> DataFrame:
        frame = _read(spark, table, snapshot, target)
        columns = set(frame.columns)
        if condition is not None:
            frame = frame.filter(condition)
        time_ms = F.unix_millis(F.col(quote(time)).cast("timestamp"))
        return frame.select(
            _encoded(spec.name, key, columns).alias("key"),
            _encoded(spec.name, attempt.value, columns).alias("value"),
            F.coalesce(time_ms, F.lit(_NO_TIME)).alias("time"),
            F.lit(copies).alias("copies"),
        )

    affected = _affected(table, base, target, time) if keys_of_base == attempt.key else None
    changes = rows(target, attempt.key, 1, affected)
    if base is not None:
        changes = changes.unionByName(rows(base, keys_of_base, -1, affected))
    changes = changes.groupBy("key", "value", "time").agg(
        F.sum("copies").alias("copies"), F.sum(F.greatest("copies", F.lit(0))).alias("rows")
    )
    if spec.write_mode == "append":
        return changes.filter("copies != 0").drop("rows")
    changed = _newest(changes.withColumn("changed", F.col("copies") != 0)).filter("changed")
    if affected is not None and time not in _columns(spec.name, attempt.key):
        others = rows(target, attempt.key, 1, ~F.coalesce(affected, F.lit(False)))
        others = others.join(changed.select("key"), "key", "left_semi")
        others = others.withColumns({"rows": F.lit(1), "changed": F.lit(True)})
        changed = _newest(changed.unionByName(others.drop("copies")))
    return changed.withColumn("value", F.when(F.col("rows") > 0, F.col("value"))).drop("changed")


def _newest(changes: DataFrame) -> DataFrame:
    """Return a row a key: the value and time of a row that is there, and how many are."""
    return changes.groupBy("key").agg(
        F.max_by("value", "rows").alias("value"),
        F.max_by("time", "rows").alias("time"),
        F.sum("rows").alias("rows"),
        F.bool_or("changed").alias("changed"),
    )


def _columns(topic: str, field: PublishedField) -> Iterable[str]:
    """Return the columns of a key or a value."""
    if field.format in ("avro", "json"):
        return file_columns(topic, field.text, field.format)
    return [field.field or ""]


def _read(spark: SparkSession, table: Table, snapshot: int, target: int) -> DataFrame:
    """Return the rows of a snapshot with the columns that the target has. A column that was renamed
    or widened since has its new name and type, one that was added since is null."""

    def frame(number: int) -> DataFrame:
        return spark.read.option("versionAsOf", str(number)).table(name_in_spark(table))

    rows = frame(snapshot)
    before, after = (table.scan(snapshot_id=each).projection() for each in (snapshot, target))
    if before.as_struct() == after.as_struct():
        return rows
    then = {field.field_id: F.col(quote(field.name)) for field in before.fields}
    types = {field.name: field.dataType for field in frame(target).schema}
    columns = ((then.get(field.field_id, F.lit(None)), field.name) for field in after.fields)
    return rows.select(*(column.cast(types[name]).alias(name) for column, name in columns))


def _affected(table: Table, base: int | None, target: int | None, time: str) -> Column | None:
    """Return the hours in which the two snapshots may differ; None: any."""
    if base is None or target is None:
        return None
    changes = snapshots.changes_since(table, base, table.snapshot_by_id(target))
    affected = union(
        hours
        for changed in (*changes.new, *changes.rolled_back)
        for hours in snapshots.affected_hours(table, changed, time)
    )
    if changes.gap or any(hours.start < 0 for hours in affected):
        return None
    if len(affected) > _MAX_PREDICATES:
        affected = coarse(affected, 1)

    def between(hours: Hours) -> Column:
        column = F.col(quote(time))
        first, end = (F.timestamp_seconds(F.lit(n * 3600)) for n in (hours.start, hours.stop))
        return (column >= first) & (column < end)

    return reduce(lambda a, b: a | b, map(between, affected), F.lit(False))


@contextmanager
def _transactions(topic: str, endpoints: Endpoints) -> Iterator[Producer]:
    """Yield the only producer of this topic: no other one, running or not, can commit any more."""
    hint = "publish again: nothing is lost, and nothing is sent twice"
    with transactions.transaction_errors(f"topic {topic}", hint, PublishError):
        name = f"topicberg-publish-{topic}"
        producer = transactions.transactional_producer(name, endpoints, TRANSACTION_SECONDS)
        try:
            yield producer
        finally:
            transactions.abort(producer)


def _progress(table: Table, topic: str, endpoints: Endpoints) -> PublishProgress:
    """Return what the topic holds of the table; nothing if it was recreated since."""
    topic_id, uuid = kafka.topic_id(endpoints, topic), str(table.metadata.table_uuid)
    # The transactions of other topics' publishers are in the same topic.
    state = transactions.newest_states(endpoints, STATE_TOPIC, TRANSACTION_SECONDS * 1.5).get(topic)
    progress = PublishProgress.model_validate_json(state) if state else None
    if progress is not None and progress.topic_id == topic_id:
        if progress.table_uuid == uuid:
            return progress
        reason = "holds the rows of another table of this name, which was dropped"
        raise _unclear(topic, f"topic {topic} {reason}")
    fresh = PublishProgress(topic_id=topic_id, table_uuid=uuid)
    if not any(kafka.end_offsets(endpoints, topic).values()):
        return fresh
    if progress is not None:  # the state is of a deleted topic of this name
        raise _unclear(topic, f"topic {topic} was created again, and others have produced to it")
    # The state is lost. The tags show what the topic holds, unless publishing was interrupted.
    refs = table.refresh().refs()
    published, begun = (refs.get(f"{kind}-{topic}") for kind in ("published", "publishing"))
    if published is None or begun is None or begun.snapshot_id != published.snapshot_id:
        raise _unclear(
            topic, f"topic {topic} holds records, but {STATE_TOPIC} no longer says which"
        )
    return fresh.model_copy(update={"snapshot": published.snapshot_id})


def _unclear(topic: str, message: str) -> PublishError:
    """Return the error of a topic of which it is not known what it holds."""
    return PublishError(
        message, hint=f"delete the topic {topic}; it is then published again as a whole"
    )


def _finished(progress: PublishProgress) -> PublishProgress:
    return PublishProgress(
        topic_id=progress.topic_id,
        table_uuid=progress.table_uuid,
        snapshot=progress.target,
        encoding=progress.attempt,
    )


def _tag(table: Table, snapshot: int, name: str) -> None:
    """Protect a snapshot from expiry."""
    if getattr(table.refresh().refs().get(name), "snapshot_id", None) != snapshot:
        table.manage_snapshots().create_tag(snapshot, name).commit()


def _send(
    producer: Producer, spec: TopicSpec, changes: DataFrame, progress: PublishProgress, batch: int
) -> tuple[int, int]:
    """Send what is not sent yet, in the order of event times; return records and tombstones."""
    if spec.write_mode == "append":
        changes = changes.filter("copies > 0")
    if progress.until is not None:
        changes = changes.filter(F.col("time") > progress.until)
    records = _records(spec, changes.orderBy("time", "key", "value"))
    sent, tombstones, following = 0, 0, next(records, None)
    while True:
        producer.begin_transaction()
        some, time_ms = 0, progress.until
        while following and (some < batch or following[2] == time_ms):
            key, value, time_ms = following
            kafka.produce(producer, spec.name, value, key, timestamp_ms=max(time_ms, 0))
            some += 1
            tombstones += value is None
            following = next(records, None)
        sent += some
        is_last = following is None
        reached = _finished(progress) if is_last else progress.model_copy(update={"until": time_ms})
        kafka.produce(producer, STATE_TOPIC, reached.model_dump_json().encode(), spec.name.encode())
        producer.commit_transaction(transactions.WAIT_SECONDS)
        if is_last:
            return sent, tombstones


def _records(
    spec: TopicSpec, changes: DataFrame
) -> Iterator[tuple[bytes | None, bytes | None, int]]:
    for row in changes.toLocalIterator():
        copies = 1 if spec.write_mode == "upsert" else row["copies"]
        if spec.write_mode == "upsert" and row["rows"] > 1:
            raise PublishError(
                f"topic {spec.name}: several rows of the table have the key {bytes(row['key'])!r}",
                hint="make the key unique in the table: the key of an upsert topic must be",
            )
        key, value = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
        yield from repeat((key, value, row["time"]), copies)
