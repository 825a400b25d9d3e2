"""The Iceberg table of a topic: its columns, its creation and its evolution."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import StructType

from topicberg.errors import TableflowError, TableFormatError
from topicberg.formats.limits import MAX_FIELDS
from topicberg.formats.metadata import HEADERS
from topicberg.iceberg.maintenance import retention
from topicberg.iceberg.names import shared_full_name
from topicberg.iceberg.readers import require_spark
from topicberg.iceberg.shared_keys import delete_all_shared
from topicberg.iceberg.table import check_types, create_table, keep_bounds
from topicberg.settings import Settings
from topicberg.tableflow.layout import meanings, waiting
from topicberg.tableflow.layout.layout import METADATA_COLUMNS
from topicberg.tableflow.layout.message_fields import sameness, twins
from topicberg.topics.spec import TopicSpec

logger = logging.getLogger(__name__)
_warn_once = cache(logger.warning)

_PROPERTIES = {
    "write.target-file-size-bytes": str(128 * 1024 * 1024),
    # No shuffle before the write: a Kafka partition's records are nearly in order of time.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    # Copy-on-write: Snowflake does not read equality deletes.
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
}
_UPSERT_PROPERTIES = {
    # Position deletes, also for data TTL: a delete writes what it changes, not its rows' files.
    "write.delete.mode": "merge-on-read",
    "write.delete.granularity": "partition",
    # One delete file, however many tasks found its rows: every later scan opens it.
    "write.delete.distribution-mode": "hash",
    # Files count by their size, not as 4 MB and as much again for each of their delete files.
    "read.split.open-file-cost": str(256 * 1024),
}


def ensure_table(
    catalog: Catalog,
    spec: TopicSpec,
    config: Settings,
    schema: Schema,
    identity: Sequence[str] = (),
    older: Iterable[StructType] = (),
) -> Table:
    """Return the topic's table, created or evolved so that it has the columns of ``schema``.

    :param identity: see :func:`.identity_columns`
    :param older: the columns of the older versions of the topic's schemas
    :raises TableflowError: the spec or the schema changed in a way that a table cannot follow
    """
    identifier = spec.table_identifier(config)
    if any(name.startswith("nessie.") for name in catalog.properties):
        # As tried with 0.99: it accepts a tag and drops it, publishes a staged snapshot at once,
        # keeps one snapshot and no metadata log, and accepts a commit that asserts "no snapshot"
        # on a table that has one, whose rows are then lost.
        raise TableflowError(
            f"table {'.'.join(identifier)}: the catalog is Nessie, which keeps only the newest "
            "snapshot of a table: exactly once needs its history and tags",
            hint="use another Iceberg REST catalog; docs/catalogs.md lists them",
        )
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError:
        table = _create(catalog, identifier, schema, spec, config)
        _evolve(table, spec, schema, older)
        waiting.note_identity(table, identity)
        return table
    require_spark(table)
    waiting.check_table(table, spec, identity)
    if (headers := spec.metadata_column(HEADERS)) in table.schema().column_names:
        # They stay the map or the list of the table.
        schema = Schema(*(field for field in schema.fields if field.name != headers))
    _evolve(table, spec, schema, older)
    keep_bounds(table, _bounded_columns(spec))
    waiting.note_identity(table, identity)
    for change in waiting.unapplied(table, spec):
        _warn_once("%s", f"topic {change.topic}: {change.what}; {change.remediation}")
    return table


def _bounded_columns(spec: TopicSpec) -> list[str]:
    """Return the columns by which files are chosen: metadata, event time and partitions."""
    partitions = [field.column for field in spec.table.partition_fields]
    metadata = map(spec.metadata_column, METADATA_COLUMNS)
    return [*dict.fromkeys([*metadata, spec.event_time, *partitions])]


def drop(catalog: Catalog, identifier: tuple[str, str]) -> bool:
    """Delete a topic's table with its files; return False if there is none."""
    try:
        with suppress(TableFormatError):  # a version that is not read has no shared key files
            delete_all_shared(catalog.load_table(identifier))
        catalog.purge_table(identifier)
    except NoSuchTableError:
        return False
    return True


def _create(
    catalog: Catalog, identifier: tuple[str, str], schema: Schema, spec: TopicSpec, config: Settings
) -> Table:
    return create_table(
        catalog,
        identifier,
        Schema(*meanings.shown(schema.as_struct(), StructType()).fields),
        spec.table.partition_fields,
        f"{config.warehouse}{config.cluster_id}",
        needed={
            "format-version": str(spec.table.format_version),
            waiting.WRITE_MODE: spec.write_mode,
            waiting.KEY_FRAMING: waiting.key_framing(spec),
            **({waiting.EVENT_TIME_RULE: rule} if (rule := waiting.event_time_rule(spec)) else {}),
            **waiting.formats(spec),
            **retention.agreed(spec),
        },
        optional={**_PROPERTIES, **(_UPSERT_PROPERTIES if spec.write_mode == "upsert" else {})},
        bounded=_bounded_columns(spec),
    )


def _evolve(table: Table, spec: TopicSpec, schema: Schema, older: Iterable[StructType]) -> None:
    """Add new columns, widen types, keep dropped ones; or raise TableflowError, all unchanged."""
    existing = table.schema()
    columns = len({*existing.column_names, *schema.column_names})
    try:
        if columns > len(existing.column_names) and columns > 2 * MAX_FIELDS:
            raise ValueError(f"it would have {columns} columns, including nested and dropped ones")
        for column, twin in twins(existing.fields, schema.fields):
            raise ValueError(
                f"the new column {column} and the column {twin} {sameness(column, twin)}"
            )
        if (full_name := shared_full_name(existing.as_struct(), schema.as_struct())) is not None:
            raise ValueError(
                f"a column of the table and a field of the schema are both {full_name}, one by the "
                "dot in its name, the other inside of another column"
            )
        check_types(existing.as_struct(), schema.as_struct())
        before = meanings.noted(table)
        is_new = table.current_snapshot() is None and not before.last_id
        described = StructType() if is_new else meanings.with_noted(existing.as_struct(), before)
        now = meanings.followed(described, meanings.with_older(schema.as_struct(), [*older]))
        with table.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(Schema(*meanings.shown(now, existing.as_struct()).fields))
            metadata = transaction.table_metadata
            property_now = meanings.property_of(
                metadata.schema(), metadata.last_column_id, now, before
            )
            if not property_now.items() <= table.properties.items():
                transaction.set_properties(property_now)
    except (ValidationError, ValueError, TypeError) as error:
        raise TableflowError(
            f"table {'.'.join(table.name())} cannot follow the new schema: {error}",
            hint=f"{_way_back(spec)}; or {waiting.start_again(table.name()[1])}",
        ) from error


def _way_back(spec: TopicSpec) -> str:
    """Return how to continue with the earlier versions of the schemas."""
    sections = [section for section in (spec.value_schema, spec.key) if section.file is not None]
    if any(section.framing != "none" for section in sections):
        command = f"topicberg topics restore-schema {spec.name}"
        return f"run `{command}` to revert the versions that no table can follow"
    if sections:
        return f"change {' and '.join(str(section.file) for section in sections)} back"
    return "let the owner of the topic's schemas delete the versions that no table can follow"
