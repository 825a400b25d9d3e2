"""How the records of a topic become data files: programs, columns, and how to log in.

A plan is made in the engine and sent to the process, or to the task of Spark, that reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pyiceberg.table import Table
from pyiceberg.types import NestedField

from topicberg.endpoints import Endpoints
from topicberg.formats.columnar.program import NotCoveredError, ProgramCode, Programs, Shape
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.dispatch import format_of
from topicberg.formats.subjects import SchemaType
from topicberg.iceberg.data_files import WriteTarget
from topicberg.kafka.consumer import READER
from topicberg.tableflow.changelog.changes import ChangePlan, envelope, key_names
from topicberg.tableflow.layout.event_time import EventTime
from topicberg.tableflow.layout.foreign import ForeignSchemas
from topicberg.tableflow.layout.framing import Framing, InlineSchemas
from topicberg.tableflow.layout.layout import KEY, VALUE, Layout, columns_to_fill, raw_columns
from topicberg.tableflow.layout.meanings import columns_of
from topicberg.tableflow.layout.upsert_key import UpsertKey
from topicberg.tableflow.layout.writers import (
    UNREADABLE_SCHEMA,
    MessageDecoder,
    Writers,
    candidates,
    check_names,
)
from topicberg.tableflow.rejected.rejections import ErrorMode
from topicberg.tableflow.values.compiling import wait_ready
from topicberg.topics import TopicSpec
from topicberg.topics.spec import EVENT_TIME, METADATA_TYPES, RAW_KEY

logger = logging.getLogger(__name__)

CONSUMER: dict[str, object] = {
    **READER,
    "isolation.level": "read_committed",
    # What is read ahead beyond the last record is in vain.
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 16 * 1024,
}
"""Properties of librdkafka for reading a batch."""
ONE_BATCH: dict[str, object] = {"fetch.message.max.bytes": 1, "queued.min.messages": 1}
"""Properties for reading one record: Kafka returns its batch, and no other one that may fail."""


@dataclass(frozen=True, repr=False)
class ReadPlan:
    """How records become data files; it is sent to tasks. It holds logins, so it has no repr."""

    topic: str
    target: WriteTarget
    files: Mapping[str, Any]
    """Properties of the table's object store."""
    kafka: Mapping[str, Any]
    """Properties of librdkafka."""
    decoded: Mapping[str, MessageDecoder]
    """For ``key`` and ``value``; absent: it is not decoded."""
    raw: frozenset[str]
    """Of ``key`` and ``value``, those that are columns as they are."""
    text: frozenset[str]
    """Those of ``raw`` that are text in UTF-8."""
    columns: Mapping[str, str]
    """The names of metadata columns."""
    error_mode: ErrorMode
    upserts: UUID | None = None
    """The table, if only the newest record of each key, or the row after its last change, is a
    row."""
    key: UpsertKey | None = None
    """Of an upsert table."""
    changes: ChangePlan | None = None
    """Of a topic with a change log."""
    inline: Mapping[str, InlineSchemas] = field(default_factory=dict)
    """For keys and values that are not in the wire format: what brings them into it."""
    event_time: EventTime | None = None
    """How the event time is read from a field."""
    stops_early: bool = False
    """Whether a task stops when it finds new schemas among its first records."""

    @property
    def is_folded(self) -> bool:
        return self.changes is not None and self.changes.is_folded


class Planner:
    """How the batches of one topic become files: its programs are kept until a schema changes."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints, memory: int) -> None:
        """:param memory: bytes that reading a part of a batch may take"""
        self._spec, self._endpoints = spec, endpoints
        # This limits what a batch of records may have after decompression by zstd, too. librdkafka
        # decompresses at once, into a buffer that it doubles, and ends the process without memory.
        self.max_bytes = min(memory // 4, 2_000_000_000)
        self._key: object = None
        self._found: Mapping[str, MessageDecoder] = {}
        self._changes: ChangePlan | None = None

    def plan(
        self,
        layout: Layout,
        table: Table,
        foreign: Mapping[str, ForeignSchemas],
        of_rows: UpsertKey | None,
        framing: Framing | None = None,
    ) -> ReadPlan:
        """Return how the next batch becomes files.

        :param foreign: schemas of other subjects that keys and values are known to name
        :param of_rows: the key of an upsert table
        :param framing: what brings changes into the wire format; None: they are
        :raises TableflowError: records cannot become rows of the table
        """
        wait_ready()
        subjects = [half.subject for half in (layout.key, layout.value) if half.subject]
        ids = [(sorted(subject.schemas), sorted(subject.guids.items())) for subject in subjects]
        metadata = table.metadata
        others = [tuple(schemas.schemas) for schemas in foreign.values()]
        of_table = metadata.table_uuid, metadata.current_schema_id, metadata.default_spec_id
        key = layout.fitted, ids, others, of_table
        if key != self._key:
            self._found = message_decoders(self._spec, layout, table, foreign, of_rows)
            if self._spec.changelog is not None:
                self._changes = ChangePlan.of(self._spec, layout, table.schema().fields)
            self._key = key
        kafka = {**self._endpoints.kafka_tuning("consumer"), **self._endpoints.kafka_config()}
        fields = table.schema().fields
        raw, text = raw_columns(layout, fields)
        names = (*METADATA_TYPES, RAW_KEY, EVENT_TIME)
        return ReadPlan(
            topic=self._spec.name,
            target=WriteTarget.of(table),
            files=dict(table.io.properties),
            kafka=kafka | CONSUMER | {"receive.message.max.bytes": self.max_bytes},
            # What the registry lacks changes as often as a producer names other ids.
            decoded={
                column: decoder.without(foreign[column].missing)
                for column, decoder in self._found.items()
            },
            raw=raw,
            text=text,
            columns={name: self._spec.metadata_column(name) for name in names},
            error_mode=self._spec.tableflow.error_handling.mode,
            upserts=metadata.table_uuid if self._spec.write_mode == "upsert" else None,
            key=of_rows,
            changes=self._changes,
            inline={} if framing is None else framing.inline_schemas(layout),
            event_time=EventTime.of(self._spec, fields),
        )


def message_decoders(
    spec: TopicSpec,
    layout: Layout,
    table: Table,
    foreign: Mapping[str, ForeignSchemas],
    of_rows: UpsertKey | None = None,
) -> dict[str, MessageDecoder]:
    """Return how the key, the value, or both are decoded.

    :param of_rows: the key of an upsert table
    :raises TableflowError: the latest schema does not fit the table
    """
    metadata = {spec.metadata_column(name) for name in (*METADATA_TYPES, RAW_KEY)}
    if spec.payload_time is not None:
        metadata.add(spec.event_time)
    fields = columns_of(table)
    columns = [column for column in fields if column.name not in metadata]
    decoders = dict[str, MessageDecoder]()
    for half in (layout.key, layout.value):
        if half.subject is None:
            continue
        own: Sequence[NestedField]
        if spec.changelog is None:
            own = columns_to_fill(half, layout, columns)
            if of_rows is not None and half.column == KEY:
                own = of_rows.to_decode(own)
        elif half.column == VALUE:
            own = envelope(spec, layout, fields)
        else:
            keys = key_names(layout)
            own = [column for column in columns if column.name in keys]
        decoders[half.column] = message_decoder(Writers(half, foreign[half.column], own))
    return decoders


def message_decoder(writers: Writers) -> MessageDecoder:
    """Return how keys or values are decoded; of schemas that the registry lacks, it knows nothing.

    :raises TableflowError: the latest schema does not fit the table
    """
    half, latest = writers.half, writers.subject.latest
    for number, writer in candidates(writers):
        try:
            pairing = writers.pairing(writer)
            filled = format_of(writer).filled(pairing)
            check_names(writer, filled, writers.fields)
            format_of(writer).record_decoder(pairing)
        except UNREADABLE_SCHEMA as error:
            writers.refuse(number, error)
        else:
            writers.accepted[number], writers.columns[number] = writer, filled
    names = frozenset[str]().union(*writers.columns.values())
    fields = tuple(column for column in writers.fields if column.name in names)
    pairings = {
        number: ResolvedSchema(writer, latest, fields, half.message)
        for number, writer in writers.accepted.items()
    }
    return MessageDecoder(
        column=half.column,
        fields=fields,
        programs=_programs(pairings, fields, latest.schema_type),
        writers=pairings,
        filled=writers.columns,
        refused=writers.refused,
        # What a table holds of a key names a version of AWS Glue, which may be of another schema.
        framing=half.record_framing(writers.foreign.guids if half.framing == "glue" else {}),
    )


def _programs(
    pairings: Mapping[int, ResolvedSchema], fields: Sequence[NestedField], language: SchemaType
) -> Programs | None:
    """Return the programs of the schemas that have one."""
    code, places = ProgramCode(), {place.name: place for place in Shape(fields).places}
    starts = list[tuple[int, int]]()
    for number, pairing in pairings.items():
        begin = code.mark()
        try:
            format_of(pairing.writer).program(code, places, pairing)
        except (NotCoveredError, *UNREADABLE_SCHEMA) as error:
            code.reset(begin)
            logger.info("schema %d has no program: %s", number, error)
        else:
            starts.append((number, begin[0]))
    return Programs.of(code, starts, language) if starts else None
