"""Plans of batches without a stack: schemas are given, and records are made by a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
from header_framing import RecordHeaders, fetched
from pyiceberg.table import Table

from topicberg.formats.metadata import METADATA_TYPES
from topicberg.formats.registry import SchemaReaders
from topicberg.iceberg.data_files import WriteTarget
from topicberg.tableflow.decode.columns import buffers_of, chunks
from topicberg.tableflow.decode.plan import ReadPlan
from topicberg.tableflow.layout.layout import event_time
from topicberg.tableflow.layout.message_fields import KEY, VALUE, Layout, raw_columns
from topicberg.tableflow.layout.upsert_key import UpsertKey, upsert_key
from topicberg.tableflow.layout.writers import ForeignSchemas
from topicberg.tableflow.rejected.rejections import Rejections
from topicberg.tableflow.service.topic_table import message_decoders
from topicberg.topics import TopicSpec


def readers_of(confluent: Any = None, glue: Any = None) -> SchemaReaders:
    """Return the readers of registries; None: a test does not use it."""
    return SchemaReaders(confluent, lambda: glue)


def plan_of(
    spec: TopicSpec,
    layout: Layout,
    table: Table,
    foreign: Mapping[str, ForeignSchemas] | None = None,
) -> tuple[ReadPlan, UpsertKey | None]:
    """Return how records become rows of a table, and the key if it is an upsert table.

    :param foreign: of keys and values; None: no record names a schema of another subject
    """
    fields, none = table.schema().fields, ForeignSchemas(cast("Any", None))
    foreign = foreign or {KEY: none, VALUE: none}
    key = upsert_key(spec.metadata_column, layout, fields) if spec.write_mode == "upsert" else None
    decoded = message_decoders(spec, layout, table, foreign, key)
    decoded = {side: one.without(foreign[side].missing) for side, one in decoded.items()}
    names = {
        name: spec.metadata_column(name) for name in (*METADATA_TYPES, "raw-key", "event-time")
    }
    raw, text = raw_columns(layout, fields)
    upserts = None if key is None else table.metadata.table_uuid
    target = WriteTarget.of(table)
    made = ReadPlan(
        spec.name,
        target,
        {},
        {},
        decoded,
        raw,
        text,
        names,
        "SKIP",
        upserts,
        key,
        event_time=event_time(spec, fields),
    )
    return made, key


def rows_of(
    plan: ReadPlan,
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    headers: Sequence[RecordHeaders] | None = None,
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return the rows of records, and the reasons of those that are rejected, by offset.

    :param pairs: keys and values
    """
    buffers = buffers_of(plan.decoded, len(pairs))
    found: list[dict[str, Any]] = []
    rejections = Rejections("LOG")
    for chunk in chunks(plan, fetched(pairs, headers), buffers, rejections):
        plain = {
            name: one.cast(pa.string()) if pa.types.is_dictionary(one.type) else one
            for name, one in chunk.columns.items()
        }
        found += pa.table(plain).to_pylist()
    return found, {one["offset"]: one["reason"] for one in rejections.records}
