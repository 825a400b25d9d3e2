"""The Iceberg table of a topic: its columns, its creation and its evolution."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

import pyiceberg.partitioning as iceberg
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError, ValidationError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    StringType,
    StructType,
)

from topicberg.errors import TableflowError, TableFormatError
from topicberg.formats.limits import MAX_FIELDS
from topicberg.iceberg.creation import create_table, set_optional
from topicberg.iceberg.names import partition_field_name, shared_full_name
from topicberg.iceberg.readers import require_spark
from topicberg.iceberg.shared_keys import delete_all_shared
from topicberg.logins.catalog import LOCATIONS
from topicberg.settings import Settings
from topicberg.tableflow.identity_columns import note_identity
from topicberg.tableflow.layout import METADATA_COLUMNS, sameness, twins
from topicberg.tableflow.meanings import (
    followed,
    noted,
    property_of,
    shown,
    with_noted,
    with_older,
)
from topicberg.tableflow.waiting import (
    EVENT_TIME_RULE,
    KEY_FRAMING,
    WRITE_MODE,
    check_table,
    event_time_rule,
    formats,
    key_framing,
    start_again,
    unapplied,
)
from topicberg.topics.spec import PartitionField, TopicSpec

logger = logging.getLogger(__name__)

_METRICS = "write.metadata.metrics.column."
_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.target-file-size-bytes": str(128 * 1024 * 1024),
    # No shuffle before the write: a Kafka partition's records are nearly in order of time.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
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


def partition_spec(schema: Schema, fields: Sequence[PartitionField]) -> PartitionSpec:
    """Return Iceberg's partition spec for the topic spec's partition fields.

    :raises TableflowError: a column does not exist, or cannot be partitioned so
    """
    partition_fields = list[iceberg.PartitionField]()
    for number, field in enumerate(fields):
        if field.column not in schema.column_names:
            raise TableflowError(
                f"table.partitioning: {field}: the table has no column {field.column}",
                hint="correct `table.partitioning` in the spec",
            )
        width = "" if field.width is None else f"[{field.width}]"
        source = schema.find_field(field.column)
        transform = parse_transform(f"{field.transform}{width}")
        if not transform.can_transform(source.field_type):
            raise TableflowError(
                f"table.partitioning: {field}: {field.transform} of a {source.field_type} is not "
                "possible",
                hint="correct `table.partitioning` in the spec",
            )
        suffix = "" if field.transform == "identity" else field.transform
        taken = [name for name in schema.column_names if suffix or name != field.column]
        taken += [other.name for other in partition_fields]
        partition_fields.append(
            iceberg.PartitionField(
                source_id=source.field_id,
                field_id=1000 + number,
                transform=transform,
                name=partition_field_name(field.column, suffix, taken),
            )
        )
    return PartitionSpec(*partition_fields)


def ensure_table(
    catalog: Catalog,
    spec: TopicSpec,
    config: Settings,
    schema: Schema,
    identity: Sequence[str] = (),
    older: Iterable[StructType] = (),
) -> Table:
    """Return the topic's table, created or evolved so that it has the columns of ``schema``.

    Its location is new and unique, as Tableflow's ``table_path`` is: a table that was dropped and
    recreated never shares a location with the files of the old one.

    :param identity: the columns that identify rows, see :func:`.identity_columns`
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
        note_identity(table, identity)
        return table
    require_spark(table)
    check_table(table, spec, identity)
    _evolve(table, spec, schema, older)
    keep_bounds(table, _bounded_columns(spec))
    note_identity(table, identity)
    for change in unapplied(table, spec):
        _warn_once(f"topic {change.topic}: {change.what}; {change.remediation}")
    return table


@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def bounds_kept(columns: Iterable[str]) -> dict[str, str]:
    """Return the table properties by which Iceberg keeps bounds of columns.

    Without them, Iceberg keeps no bounds of columns after the first 100 of a table.
    https://iceberg.apache.org/docs/latest/configuration/#write-properties
    """
    return {f"{_METRICS}{column}": "truncate(16)" for column in columns}


def keep_bounds(table: Table, columns: Iterable[str]) -> None:
    """Let the writers of a table keep bounds of columns, unless its properties configure that.

    Iceberg refuses properties of columns that a table does not have.
    """
    known = table.schema().column_names
    set_optional(table, bounds_kept(column for column in columns if column in known))


def _bounded_columns(spec: TopicSpec) -> list[str]:
    """Return the columns by which files are chosen: metadata, event time and partitions."""
    metadata = [spec.metadata_column(name) for name in METADATA_COLUMNS]
    partitions = [field.column for field in spec.table.partition_fields]
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
    from topicberg.clients.catalog import ensure_namespace

    ensure_namespace(catalog, identifier[0])
    location = None
    if LOCATIONS not in catalog.properties:
        location = f"{config.warehouse}{config.cluster_id}/v1/{uuid.uuid4()}"
    where = location or "a location of the catalog's choice"
    logger.info("creating table %s at %s", ".".join(identifier), where)
    try:
        return create_table(
            catalog,
            identifier,
            Schema(*shown(schema.as_struct(), StructType()).fields),
            partition_spec(schema, spec.table.partition_fields),
            location,
            needed={
                "format-version": str(spec.table.format_version),
                WRITE_MODE: spec.write_mode,
                KEY_FRAMING: key_framing(spec),
                **({EVENT_TIME_RULE: event_time_rule(spec)} if spec.payload_time else {}),
                **formats(spec),
            },
            optional={
                **_PROPERTIES,
                **(_UPSERT_PROPERTIES if spec.write_mode == "upsert" else {}),
                **bounds_kept(c for c in _bounded_columns(spec) if c in schema.column_names),
            },
        )
    except TableAlreadyExistsError:  # another engine was faster
        return catalog.load_table(identifier)


def _evolve(
    table: Table, spec: TopicSpec, schema: Schema, older: Iterable[StructType] = ()
) -> None:
    """Add new columns, widen types; a dropped field keeps its column.

    :raises TableflowError: the table cannot follow the schema; it stays as it is
    """
    name = table.name()[1]
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
        before = noted(table)
        is_new = table.current_snapshot() is None and not before.last_id
        described = StructType() if is_new else with_noted(existing.as_struct(), before)
        columns_now = followed(described, with_older(schema.as_struct(), [*older]))
        with table.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(Schema(*shown(columns_now, existing.as_struct()).fields))
            metadata = transaction.table_metadata
            meanings = property_of(metadata.schema(), metadata.last_column_id, columns_now, before)
            if not meanings.items() <= table.properties.items():
                transaction.set_properties(meanings)
    except (ValidationError, ValueError, TypeError) as error:
        raise TableflowError(
            f"table {'.'.join(table.name())} cannot follow the new schema: {error}",
            hint=f"{_way_back(spec)}; or {start_again(name)}",
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


def check_types(existing: IcebergType, new: IcebergType, path: str = "") -> None:
    """Refuse conversions that PyIceberg would do and Iceberg's specification forbids.

    Text and bytes are not converted into each other. A decimal keeps its scale, of which the values
    in older files are.

    :raises ValueError: the conversion is refused
    """
    if isinstance(existing, StructType) and isinstance(new, StructType):
        by_name = {field.name: field for field in existing.fields}
        for field in new.fields:
            if column := by_name.get(field.name):
                where = f"{path}.{field.name}" if path else field.name
                check_types(column.field_type, field.field_type, where)
    elif isinstance(existing, ListType) and isinstance(new, ListType):
        check_types(existing.element_type, new.element_type, f"{path}.element")
    elif isinstance(existing, MapType) and isinstance(new, MapType):
        check_types(existing.key_type, new.key_type, f"{path}.key")
        check_types(existing.value_type, new.value_type, f"{path}.value")
    elif {type(existing), type(new)} == {StringType, BinaryType}:
        raise ValueError(f"the column {path} is of type {existing}, the schema has {new}")
    elif (
        isinstance(existing, DecimalType)
        and isinstance(new, DecimalType)
        and existing.scale != new.scale
    ):
        raise ValueError(
            f"the column {path} is a {existing}, the schema has a {new}, and the scale of a column "
            "cannot change"
        )
