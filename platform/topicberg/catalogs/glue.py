"""Registration of an Iceberg table in the AWS Glue Data Catalog.

It writes what Iceberg's ``GlueCatalog`` writes, so that Athena, EMR and Snowflake read it: table
type ``ICEBERG`` and the location of the current metadata file, moved by compare-and-set.
Source: AWS Glue API, ``CreateTable`` and ``UpdateTable`` (``VersionId``, ``SkipArchive``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.types import DecimalType, FixedType, IcebergType, ListType, MapType, StructType

from topicberg.clients.aws import every
from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.errors.retry import retry
from topicberg.security.text import one_line

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient
    from mypy_boto3_glue.type_defs import ColumnTypeDef, TableInputTypeDef, TableTypeDef
    from pyiceberg.table import Table

METADATA_LOCATION = "metadata_location"
PREVIOUS_METADATA_LOCATION = "previous_metadata_location"
ATTEMPTS = 5

_OWN_TAGS = ("topicberg-reading-", "publishing-", "published-")
_METADATA_FILES = 50  # Half of a table's (``write.metadata.previous-versions-max``).
_HIVE_TYPES = {
    **{name: name for name in ("boolean", "int", "float", "double", "date", "timestamp", "binary")},
    "long": "bigint",
    "timestamptz": "timestamp",
}  # Iceberg's name of a primitive type → Hive's; any other one is a string.


def hive_type(kind: IcebergType) -> str:
    """Return Glue's name of an Iceberg type, as in Iceberg's ``IcebergToGlueConverter``."""
    match kind:
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case FixedType():
            return "binary"
        case StructType():
            fields = (f"{field.name}:{hive_type(field.field_type)}" for field in kind.fields)
            return f"struct<{','.join(fields)}>"
        case ListType():
            return f"array<{hive_type(kind.element_type)}>"
        case MapType():
            return f"map<{hive_type(kind.key_type)},{hive_type(kind.value_type)}>"
        case _:
            return _HIVE_TYPES.get(str(kind), "string")


def columns(table: Table) -> list[ColumnTypeDef]:
    """Return the current columns, with the parameters by which Iceberg marks them."""
    return [
        {
            "Name": field.name,
            "Type": hive_type(field.field_type),
            "Comment": one_line(field.doc or "")[:255],
            "Parameters": {
                "iceberg.field.id": str(field.field_id),
                "iceberg.field.optional": str(not field.required).lower(),
                "iceberg.field.current": "true",
            },
        }
        for field in table.schema().fields
    ]


def table_input(table: Table, name: str, before: Mapping[str, str] | None) -> TableInputTypeDef:
    """Return the body of CreateTable and UpdateTable, which keeps others' parameters."""
    before = before or {}
    is_registered = METADATA_LOCATION in before
    return {
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {
            **before,
            **({PREVIOUS_METADATA_LOCATION: before[METADATA_LOCATION]} if is_registered else {}),
            "table_type": "ICEBERG",
            METADATA_LOCATION: table.metadata_location,
        },
        "StorageDescriptor": {"Location": table.location(), "Columns": columns(table)},
    }


def visible_state(table: Table) -> str:
    """Return a digest of what readers of a metadata file see of its table. It excludes the tags
    that topicberg sets while it reads and publishes: with each of them the table has another
    metadata file."""
    metadata = table.metadata
    refs = sorted(
        (name, str(ref.snapshot_id))
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type != SnapshotRefType.TAG or not name.startswith(_OWN_TAGS)
    )
    seen = (
        metadata.current_snapshot_id,
        metadata.current_schema_id,
        metadata.default_spec_id,
        metadata.location,
        refs,
        sorted(metadata.properties.items()),
        sorted(snapshot.snapshot_id for snapshot in metadata.snapshots),
    )
    return hashlib.blake2b(repr(seen).encode(), digest_size=8).hexdigest()


def registered_state(table: Table) -> str:
    """Return :func:`visible_state` with a counter that changes after so many metadata files. The
    catalog deletes old metadata files, and Glue must not point to a deleted one."""
    version = table.metadata_location.rpartition("/")[2].partition("-")[0]
    number = int(version) // _METADATA_FILES if version.isdigit() else version
    return f"{visible_state(table)}-{number}"


def get_table(client: GlueClient, database: str, name: str) -> TableTypeDef | None:
    """Return the table as it is in Glue, or None if there is none. Under Lake Formation, Glue
    denies access to a table that does not exist; its lists are of what the caller may see."""
    try:
        return client.get_table(DatabaseName=database, Name=name)["Table"]
    except client.exceptions.EntityNotFoundException:
        return None
    except client.exceptions.AccessDeniedException:
        if any(
            listed["Name"] == name
            for listed in every(client, "get_tables", "TableList", DatabaseName=database)
        ):
            raise
        return None


def delete(client: GlueClient, database: str, name: str) -> bool:
    """Delete a table's entry, but no file; return False if there is none."""
    if get_table(client, database, name) is None:
        return False
    client.delete_table(DatabaseName=database, Name=name)
    return True


def metadata_location(table: TableTypeDef) -> str | None:
    return table.get("Parameters", {}).get(METADATA_LOCATION)


def pointers(client: GlueClient, database: str) -> Iterator[tuple[str, str]]:
    """Yield each Iceberg table of a database, and the metadata file that Glue points to."""
    with suppress(client.exceptions.EntityNotFoundException):
        for table in every(client, "get_tables", "TableList", DatabaseName=database):
            if location := metadata_location(table):
                yield table["Name"], location


def register(client: GlueClient, table: Table, database: str, name: str) -> bool:
    """Let Glue point to the table's current metadata; return False if it already does.

    The pointer never moves backwards: Glue is read before the catalog, so the catalog is at the
    same state or a later one, and Glue refuses the write if another writer wrote since.

    :raises TopicbergError: Glue has a table of that name that is not an Iceberg table, or is
        another Iceberg table
    :raises CommitConflictError: other writers kept moving the pointer
    """
    label = f"Glue table {database}.{name}"

    def move() -> bool:
        existing = get_table(client, database, name)
        table.refresh()
        current = metadata_location(existing) if existing else None
        if current == table.metadata_location:
            return False
        if existing and current is None:
            raise TopicbergError(
                f"{label} exists and is not an Iceberg table",
                hint="drop or rename it in Glue, then materialize again",
            )
        if current is not None and not _may_be_of(table, current):
            raise TopicbergError(
                f"{label} points to {current}, which is not a state of the Iceberg table "
                f"{'.'.join(table.name())} at {table.location()}: it is another table",
                hint=f"rename one of them; or drop {database}.{name} in Glue, which keeps its "
                "files, if it is an earlier copy of this table, then materialize again",
            )
        try:
            _write(client, table, database, name, existing)
        except (
            client.exceptions.ConcurrentModificationException,
            client.exceptions.AlreadyExistsException,
        ) as error:
            raise CommitConflictError(f"{label}: another writer changed it") from error
        return True

    exhausted = CommitConflictError(f"{label}: other writers kept changing it")
    return retry(move, ATTEMPTS, exhausted=exhausted)


def _may_be_of(table: Table, metadata_file: str) -> bool:
    """Return whether a metadata file is one of the table, or of the one that it replaces. A table
    that is dropped and created again has another location beside the first one's, maybe in another
    bucket: ``s3://BUCKET/NAMESPACE/v1/ID``."""
    if metadata_file in {entry.metadata_file for entry in table.metadata.metadata_log}:
        return True
    (bucket, folder), (pointed_bucket, pointed) = map(_parts, (table.location(), metadata_file))
    siblings = folder.parent.parent if folder.parent.name == "v1" else folder.parent
    if siblings != PurePosixPath("/"):
        return pointed.is_relative_to(siblings)
    # Any table may be at the top of a bucket.
    return bucket == pointed_bucket and pointed.is_relative_to(folder)


def _parts(location: str) -> tuple[str, PurePosixPath]:
    """Return the bucket of a location, and the path in it."""
    parts = urlsplit(location)
    return parts.netloc, PurePosixPath(f"/{parts.path.strip('/')}")


def _write(
    client: GlueClient, table: Table, database: str, name: str, existing: TableTypeDef | None
) -> None:
    body = table_input(table, name, existing.get("Parameters") if existing else None)
    if existing is None:
        with suppress(client.exceptions.AlreadyExistsException):
            client.create_database(DatabaseInput={"Name": database})
        client.create_table(DatabaseName=database, TableInput=body)
        return
    version: Any = {"VersionId": existing["VersionId"]} if "VersionId" in existing else {}
    client.update_table(DatabaseName=database, TableInput=body, SkipArchive=True, **version)
