"""A table that the batches of a topic fill."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from topicberg.endpoints import Endpoints
from topicberg.errors import UnreachableError
from topicberg.errors.meaning import explain, explained, means
from topicberg.errors.table import MISSING
from topicberg.formats.metadata import EVENT_TIME, METADATA_TYPES, RAW_KEY
from topicberg.iceberg.commits import require_written
from topicberg.iceberg.data_files import WriteTarget
from topicberg.kafka.offsets import Offsets
from topicberg.kafka.topics import TopicLog, tombstone_ms
from topicberg.settings import Settings
from topicberg.tableflow.batch import batch_plan
from topicberg.tableflow.changelog.changes import ChangePlan, envelope, key_names
from topicberg.tableflow.decode.plan import CONSUMER, ReadPlan
from topicberg.tableflow.decode.reading import WrittenBatch
from topicberg.tableflow.layout import meanings, message_fields, writers
from topicberg.tableflow.layout.framing import Framing
from topicberg.tableflow.layout.layout import event_time, row_columns, table_schema
from topicberg.tableflow.layout.message_fields import Layout
from topicberg.tableflow.layout.upsert_key import UpsertKey
from topicberg.tableflow.layout.waiting import identity_columns
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.service.log_check import LogCheck
from topicberg.tableflow.table.batch_commit import BatchCommitter
from topicberg.tableflow.table.foreign_commits import ForeignWatch
from topicberg.tableflow.table.table import ensure_table
from topicberg.tableflow.table.topic_keys import TopicKeys
from topicberg.tableflow.upsert.tombstones import DeleteWatch
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.compiling import wait_ready
from topicberg.tableflow.values.logs import check_topic
from topicberg.tableflow.values.offsets import Batch
from topicberg.topics import TopicSpec

CurrentOffsets = tuple[Offsets, int | None]
"""The offsets up to which a topic was last seen to have no record, and when."""


class BatchTable:
    """What is known of it between two batches; not thread-safe."""

    def __init__(
        self,
        spec: TopicSpec,
        endpoints: Endpoints,
        config: Settings,
        foreign: Mapping[str, writers.ForeignSchemas],
        framing: Framing | None,
        check: Callable[[], None],
        held_ms: int | None,
    ) -> None:
        """:param foreign: schemas of other subjects that keys and values name
        :param framing: what brings the records into the wire format; None: they are
        :param check: raises if the batch is not to be committed any more
        :param held_ms: when the topic was known to have a table with records; None: never
        """
        self.spec, self._endpoints = spec, endpoints
        self._foreign, self._framing = foreign, framing
        self.loader = TableLoader(spec, config, endpoints.catalog(config), held_ms)
        self.keys = TopicKeys(spec, config, foreign)
        self.committer = BatchCommitter(spec, endpoints, config, self.keys, foreign, framing, check)
        # This limits what a batch of records may have after decompression by zstd, too. librdkafka
        # decompresses at once, into a buffer that it doubles, and ends the process without memory.
        self.max_bytes = min(config.engine_process_memory_mb * 1024**2 // 4, 2_000_000_000)
        self.log_check = LogCheck(spec, endpoints, config)
        self.foreign_commits = ForeignWatch(spec, config)
        self._key: object = None
        self._decoders: Mapping[str, writers.MessageDecoder] = {}
        self._changes: ChangePlan | None = None

    def plan(
        self, number: int, layout: Layout, log: TopicLog, now_ms: int, current: CurrentOffsets
    ) -> batch_plan.TablePlan:
        """Return the table as it is now, created or evolved to a layout.

        :param number: its place among the tables of the topic
        :raises TableflowError: the topic stops: the log or the table is not the one of before
        """
        table = self.loader.load(layout, log.beginning)
        head = table.current_snapshot()
        state = committed(table, head)
        check_topic(self.spec.name, state.topic_id, log.topic_id)
        self.foreign_commits.check(table)
        if state.offsets:
            self.loader.held_ms = now_ms
        first = batch_plan.first_offsets(self.spec, self._endpoints, table, state, log)
        offsets = state.offsets or {**log.beginning, **first}
        self.log_check.check(table, offsets, state.last_records, log)
        seen_ms = current[1] if state.offsets == current[0] else None
        kept_ms = partial(tombstone_ms, self._endpoints, self.spec.name)
        watched = kept_ms if self.spec.is_compacted else None
        missed = DeleteWatch(watched, table, state, now_ms, seen_ms)
        return batch_plan.TablePlan(number, table, head, layout, state, offsets, missed)

    def read_plan(self, into: batch_plan.TablePlan) -> ReadPlan:
        """Return how the records of a batch become files of the table.

        :raises TableflowError: records cannot become rows of the table
        """
        wait_ready()
        layout, table, foreign = into.layout, into.table, self._foreign
        of_rows, framing = self.keys.upsert_key(layout, table), self._framing
        subjects = [field.subject for field in (layout.key, layout.value) if field.subject]
        ids = [(sorted(subject.schemas), sorted(subject.guids.items())) for subject in subjects]
        others = [tuple(schemas.schemas) for schemas in foreign.values()]
        key = layout.fitted, ids, others, *_columns(table), table.metadata.default_spec_id
        if key != self._key:
            self._decoders = message_decoders(self.spec, layout, table, foreign, of_rows)
            if self.spec.changelog is not None:
                self._changes = change_plan(self.spec, layout, table.schema().fields)
            self._key = key
        kafka = {**self._endpoints.kafka_tuning("consumer"), **self._endpoints.kafka_config()}
        fields = table.schema().fields
        raw, text = message_fields.raw_columns(layout, fields)
        names = (*METADATA_TYPES, RAW_KEY, EVENT_TIME)
        return ReadPlan(
            topic=self.spec.name,
            target=WriteTarget.of(table),
            files=dict(table.io.properties),
            kafka=kafka | CONSUMER | {"receive.message.max.bytes": self.max_bytes},
            # What the registry lacks changes as often as a producer names other ids.
            decoded={
                column: decoder.without(foreign[column].missing)
                for column, decoder in self._decoders.items()
            },
            raw=raw,
            text=text,
            columns={name: self.spec.metadata_column(name) for name in names},
            error_mode=self.spec.tableflow.error_handling.mode,
            upserts=table.metadata.table_uuid if self.spec.write_mode == "upsert" else None,
            key=of_rows,
            changes=self._changes,
            inline={} if framing is None else framing.inline_schemas(layout),
            event_time=event_time(self.spec, fields),
        )

    def commit(
        self,
        plan: batch_plan.BatchPlan,
        into: batch_plan.TablePlan,
        written: WrittenBatch,
        waiting: Waiting | None = None,
    ) -> batch_plan.Commit:
        """Commit a batch to the table; see :meth:`.BatchCommitter.commit`."""
        done = self.committer.commit(plan, into, written, waiting)
        self.log_check.note_commit({**into.committed.last_records, **written.last_records})
        self.loader.held_ms = plan.now_ms
        return replace(done, unproven=self.unproven(plan.batch))

    def unproven(self, batch: Batch) -> Offsets:
        """Return :attr:`.LogCheck.unproven` of the partitions that a batch does not read."""
        return {p: o for p, o in self.log_check.unproven.items() if p not in batch.ranges}


def change_plan(spec: TopicSpec, layout: Layout, fields: Sequence[NestedField]) -> ChangePlan:
    """Return what becomes of the changes of a topic; ``fields``: of the table.

    :raises TableflowError: a field of the source has another type than Debezium gives it
    """
    assert spec.changelog is not None  # noqa: S101  see the caller
    columns = {name: spec.metadata_column(name) for name in spec.change_columns}
    rows, is_folded = row_columns(spec, fields), spec.write_mode == "upsert"
    placeholder = spec.changelog.unavailable_value
    return ChangePlan.of(layout, rows, columns, placeholder, is_folded=is_folded)


def message_decoders(
    spec: TopicSpec,
    layout: Layout,
    table: Table,
    foreign: Mapping[str, writers.ForeignSchemas],
    of_rows: UpsertKey | None = None,
) -> dict[str, writers.MessageDecoder]:
    """Return how the key, the value, or both are decoded.

    :param of_rows: the key of an upsert table
    :raises TableflowError: the latest schema does not fit the table
    """
    metadata = {spec.metadata_column(name) for name in (*METADATA_TYPES, RAW_KEY)}
    if spec.payload_time is not None:
        metadata.add(spec.event_time)
    fields = meanings.columns_of(table)
    columns = [column for column in fields if column.name not in metadata]
    decoders = dict[str, writers.MessageDecoder]()
    for field in (layout.key, layout.value):
        if field.subject is None:
            continue
        own: Sequence[NestedField]
        if spec.changelog is None:
            own = message_fields.columns_to_fill(field, layout, columns)
            if of_rows is not None and field.column == message_fields.KEY:
                own = of_rows.to_decode(own)
        elif field.column == message_fields.VALUE:
            own = envelope(layout, row_columns(spec, fields))
        else:
            keys = key_names(layout)
            own = [column for column in columns if column.name in keys]
        decoders[field.column] = writers.message_decoder(
            writers.Writers(field, foreign[field.column], own)
        )
    return decoders


class TableLoader:
    """Loads the table; creates or evolves it when it is new or the schemas have changed."""

    def __init__(
        self, spec: TopicSpec, config: Settings, catalog: Catalog, held_ms: int | None
    ) -> None:
        """:param held_ms: when the topic was known to have a table with records; None: never"""
        self._spec, self._config, self._catalog = spec, config, catalog
        self.held_ms = held_ms
        self.location: str | None = None  # Where the table was when it was loaded last.
        self._fitted: tuple[object, uuid.UUID, int] | None = None
        """:attr:`.Layout.fitted` of a layout, and the columns that it has; None: not known."""

    def forget(self) -> None:
        """Read everything about the table and its schemas again in the next step."""
        self._fitted = None

    @contextmanager
    def explained(self, endpoints: Endpoints) -> Iterator[None]:
        """Raise errors of the catalog and the store as messages; a bucket that does not exist is
        named, for which a catalog that reads a table's metadata tries for minutes.

        :raises TopicbergError: the catalog or the store refuses, or does not answer
        """
        subject = f"topic {self._spec.name}"
        try:
            with explained(subject):
                yield
        except UnreachableError as error:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError

            once = Config(connect_timeout=3, read_timeout=3, retries={"total_max_attempts": 1})
            bucket = urlsplit(self.location or self._config.warehouse).netloc
            with suppress(BotoCoreError):  # the store does not say either
                try:
                    endpoints.boto3("s3", self._config, once).head_bucket(Bucket=bucket)
                except ClientError as refused:
                    if means(refused, MISSING):
                        raise explain(subject, refused) from error
            raise

    def load(self, layout: Layout, beginning: Offsets | None = None) -> Table:
        """Return the table with the columns of a layout.

        :param beginning: the first offsets that Kafka has; None: records are not read into it now
        :raises TableflowError: the table is gone, and a new one would lack what it held
        """
        table = None
        if self._fitted is not None and self._fitted[0] == layout.fitted:
            table = self._catalog.load_table(self._spec.table_identifier(self._config))
        if table is None or self._fitted != (layout.fitted, *_columns(table)):
            if beginning is not None and self.held_ms is not None:
                batch_plan.check_kept(
                    self._catalog, self._spec, self._config, beginning, self.held_ms
                )
            schema = table_schema(self._spec, layout)
            identity, older = identity_columns(self._spec, layout), layout.older_columns()
            table = ensure_table(self._catalog, self._spec, self._config, schema, identity, older)
            self._fitted = layout.fitted, *_columns(table)
        if self._spec.write_mode == "upsert":  # position deletes are written by topicberg
            require_written(table)
        self.location = table.location()
        return table


def _columns(table: Table) -> tuple[uuid.UUID, int]:
    """Return which columns a table has: others may change them between two batches."""
    return table.metadata.table_uuid, table.metadata.current_schema_id
