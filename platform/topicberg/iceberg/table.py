"""Iceberg tables: their creation, partitions, properties, and the types that a column can get.

Managed catalogs decide some things themselves, and refuse a table whose properties say otherwise
(AutoMQ/automq#3197). What only makes a table faster or smaller is skipped then.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence

from pyiceberg import types as T
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import RESTError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform

from topicberg.errors import TableflowError, first_line
from topicberg.iceberg.names import partition_field_name
from topicberg.iceberg.summaries import OWN
from topicberg.logins.catalog import LOCATIONS, PREFIX, SETTINGS
from topicberg.topics.spec import PartitionField

logger = logging.getLogger(__name__)

SKIPPED = f"{OWN}skipped-properties"
"""Table property: the names of the properties that the catalog refused, with spaces between."""
PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}  # Optional properties of every table: the codec of its files, and how many metadata files stay.
_METRICS = "write.metadata.metrics.column."
_OF_PROPERTIES = re.compile(r"propert", re.IGNORECASE)
_OF_LOCATION = re.compile(r"\blocation\b", re.IGNORECASE)


def create_table(
    catalog: Catalog,
    identifier: tuple[str, str],
    schema: Schema,
    partitions: Sequence[PartitionField],
    folder: str,
    *,
    needed: Mapping[str, str],
    optional: Mapping[str, str],
    bounded: Iterable[str] = (),
) -> Table:
    """Create a table, without the optional properties that the catalog refuses.

    Its location is new and unique, as Tableflow's ``table_path`` is: a table that was dropped and
    recreated never shares a location with the files of the old one. It takes one request: AWS Glue
    refuses staged creation and requires a location, see "CreateTable" in
    https://docs.aws.amazon.com/glue/latest/dg/iceberg-rest-apis.html

    :param folder: in which its location is, unless the catalog chooses it
    :param needed: properties without which topicberg cannot continue the table
    :param optional: properties beside :data:`PROPERTIES`
    :param bounded: columns by which files are chosen, see :func:`keep_bounds`
    :returns: the table; also if another process was faster
    :raises TableflowError: the catalog refuses the location or a needed property; or a column does
        not exist, or cannot be partitioned so
    """
    from topicberg.clients.catalog import ensure_namespace

    name, spec = ".".join(identifier), partition_spec(schema, partitions)
    left = optional = {**PROPERTIES, **optional, **_bounds_kept(schema, bounded)}
    location = None if LOCATIONS in catalog.properties else f"{folder}/v1/{uuid.uuid4()}"
    ensure_namespace(catalog, identifier[0])
    logger.info("creating table %s at %s", name, location or "a location of the catalog's choice")
    while True:
        skipped = " ".join(optional.keys() - left.keys())
        properties = {**needed, **left, **({SKIPPED: skipped} if skipped else {})}
        try:
            return catalog.create_table(
                identifier, schema, location=location, partition_spec=spec, properties=properties
            )
        except TableAlreadyExistsError:  # another process was faster
            return catalog.load_table(identifier)
        except RESTError as error:
            if not (refused := refused_properties(error, left)):
                raise _needed(catalog, name, location, needed, error) from error
        message = "table %s: the catalog refuses %s, which the table does not have then"
        logger.warning(message, name, ", ".join(sorted(refused)))
        left = {key: value for key, value in left.items() if key not in refused}


def partition_spec(schema: Schema, fields: Sequence[PartitionField]) -> PartitionSpec:
    """Return Iceberg's partition spec for the topic spec's partition fields.

    :raises TableflowError: a column does not exist, or cannot be partitioned so
    """
    partition_fields, hint = list[IcebergField](), "correct `table.partitioning` in the spec"
    for number, field in enumerate(fields, 1000):
        if field.column not in schema.column_names:
            raise TableflowError(
                f"table.partitioning: {field}: the table has no column {field.column}", hint=hint
            )
        width = "" if field.width is None else f"[{field.width}]"
        source = schema.find_field(field.column)
        transform = parse_transform(f"{field.transform}{width}")
        if not transform.can_transform(source.field_type):
            raise TableflowError(
                f"table.partitioning: {field}: {field.transform} of a {source.field_type} is not "
                "possible",
                hint=hint,
            )
        suffix = "" if field.transform == "identity" else field.transform
        taken = [name for name in schema.column_names if suffix or name != field.column]
        taken += [other.name for other in partition_fields]
        name = partition_field_name(field.column, suffix, taken)
        partition_fields.append(IcebergField(source.field_id, number, transform, name))
    return PartitionSpec(*partition_fields)


def set_optional(table: Table, properties: Mapping[str, str]) -> None:
    """Set the properties that a table does not have, unless the catalog refuses them."""
    known = {*table.properties, *table.properties.get(SKIPPED, "").split()}
    missing = {key: value for key, value in properties.items() if key not in known}
    if not missing:
        return
    try:
        with table.transaction() as transaction:
            transaction.set_properties(missing)
    except RESTError as error:
        if not refused_properties(error, missing):
            raise
        name, reason = ".".join(table.name()), first_line(error)
        logger.warning("table %s: the catalog refuses properties: %s", name, reason)


def keep_bounds(table: Table, columns: Iterable[str]) -> None:
    """Let the writers of a table keep bounds of columns, unless its properties configure that.
    Without them, Iceberg keeps no bounds of columns after the first 100 of a table.
    https://iceberg.apache.org/docs/latest/configuration/#write-properties"""
    set_optional(table, _bounds_kept(table.schema(), columns))


def _bounds_kept(schema: Schema, columns: Iterable[str]) -> dict[str, str]:
    """Return the properties for it; Iceberg refuses those of columns that a table does not have."""
    names = schema.column_names
    return {f"{_METRICS}{column}": "truncate(16)" for column in columns if column in names}


def check_types(existing: T.IcebergType, new: T.IcebergType, path: str = "") -> None:
    """Refuse conversions that PyIceberg would do and Iceberg's specification forbids.

    Text and bytes are not converted into each other. A decimal keeps its scale, of which the values
    in older files are.

    :raises ValueError: the conversion is refused
    """
    match existing, new:
        case T.StructType(), T.StructType():
            by_name = {field.name: field.field_type for field in new.fields}
            for field in existing.fields:
                if field.name in by_name:
                    where = f"{path}.{field.name}" if path else field.name
                    check_types(field.field_type, by_name[field.name], where)
        case T.ListType(), T.ListType():
            check_types(existing.element_type, new.element_type, f"{path}.element")
        case T.MapType(), T.MapType():
            check_types(existing.key_type, new.key_type, f"{path}.key")
            check_types(existing.value_type, new.value_type, f"{path}.value")
        case (T.StringType(), T.BinaryType()) | (T.BinaryType(), T.StringType()):
            raise ValueError(f"the column {path} is of type {existing}, the schema has {new}")
        case T.DecimalType(), T.DecimalType() if existing.scale != new.scale:
            raise ValueError(
                f"the column {path} is a {existing}, the schema has a {new}, and the scale of a "
                "column cannot change"
            )


def refused_properties(error: RESTError, properties: Mapping[str, str]) -> set[str]:
    """Return those of the properties that an error names, or all if it is about properties."""
    text = str(error)
    named = {key for key in properties if key in text}
    is_of_others = _OF_PROPERTIES.search(text) is None or OWN in text or "format-version" in text
    return named or (set() if is_of_others else set(properties))


def _needed(
    catalog: Catalog, name: str, location: str | None, needed: Mapping[str, str], error: RESTError
) -> Exception:
    """Return the error of a table that cannot be created, with what to set; or the catalog's."""
    reason, prefix = first_line(error), catalog.properties.get(SETTINGS, PREFIX)
    refused = refused_properties(error, needed)
    if "format-version" in refused and len(refused) == 1:
        return TableflowError(
            f"table {name}: the catalog refuses format version {needed['format-version']}: "
            f"{reason}",
            hint="set `table.format_version` to a version that the catalog supports",
        )
    if refused:
        return TableflowError(
            f"table {name}: the catalog refuses properties that the table cannot do without, "
            f"{', '.join(sorted(refused))}: {reason}",
            hint=f"let the catalog accept properties that begin with {OWN}, or set {prefix}_URI to "
            "another catalog",
        )
    if not _OF_LOCATION.search(str(error)):
        return error
    if location is None:
        return TableflowError(
            f"table {name}: the catalog has no location for it: {reason}",
            hint="set the location of the catalog's warehouse or of the namespace, or "
            f"{prefix}_LOCATIONS=topicberg",
        )
    return TableflowError(
        f"table {name}: the catalog refuses the location {location}: {reason}",
        hint=f"set {prefix}_LOCATIONS=catalog to let the catalog choose locations, or "
        "allow this location in the catalog",
    )
