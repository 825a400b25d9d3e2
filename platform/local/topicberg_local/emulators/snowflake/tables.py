"""Iceberg tables of an external catalog: read-only, and as old as their last refresh.

A refresh asks Glue for the metadata file, keeps a copy of it, and makes it the table's contents:
DuckDB then reads exactly that version, also when the file has long been removed from the bucket.

https://docs.snowflake.com/en/sql-reference/sql/create-iceberg-table-aws-glue,
https://docs.snowflake.com/en/sql-reference/sql/alter-iceberg-table,
https://docs.snowflake.com/en/sql-reference/sql/alter-iceberg-table-refresh,
https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh
"""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from topicberg.files import replacing
from topicberg_local.emulators.snowflake import errors
from topicberg_local.emulators.snowflake.account import (
    DATABASE,
    DONE,
    INTEGRATION,
    OWNER,
    TABLE,
    VOLUME,
    Account,
    Context,
    create,
    drop,
    grant_future,
    remove,
    set_properties,
)
from topicberg_local.emulators.snowflake.iceberg import Metadata, select
from topicberg_local.emulators.snowflake.integrations import role_of, unreachable, vends
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Name,
    Spec,
    Statement,
    Stream,
    alters,
    boolean,
    display,
    reference,
    text,
)
from topicberg_local.emulators.snowflake.volumes import check_inside, role_problem
from topicberg_local.emulators.store import Stored

_TABLE = Spec(
    "ICEBERG TABLE",
    {
        "EXTERNAL_VOLUME": reference,
        "CATALOG": reference,
        "CATALOG_TABLE_NAME": text,
        "CATALOG_NAMESPACE": text,
        "REPLACE_INVALID_CHARACTERS": boolean,
        "AUTO_REFRESH": boolean,
        "COMMENT": text,
    },
)
_OTHER_CATALOGS = {
    "METADATA_FILE_PATH": "CREATE ICEBERG TABLE from files in object storage",
    "BASE_LOCATION": "CREATE ICEBERG TABLE with Snowflake or Delta files as the catalog",
}


def _create(stream: Stream, statement: Statement) -> None:
    if stream.at("("):
        raise errors.unsupported("CREATE ICEBERG TABLE with columns (Snowflake as the catalog)")
    if (ahead := stream.find(*_OTHER_CATALOGS)) is not None:
        raise errors.unsupported(_OTHER_CATALOGS[stream.peek(ahead).value])
    statement.properties = _TABLE.read(stream, until=("WITH", "TAG"))
    if stream.at("WITH", "TAG") or stream.at("TAG"):
        raise errors.unsupported("tags of an Iceberg table")
    if stream.at("WITH", "CONTACT"):
        raise errors.unsupported("contacts of an Iceberg table")
    stream.end()
    if "CATALOG_TABLE_NAME" not in statement.properties:
        raise errors.missing_options(["CATALOG_TABLE_NAME"])


_set = alters(
    Spec(
        "ICEBERG TABLE",
        {"AUTO_REFRESH": boolean, "REPLACE_INVALID_CHARACTERS": boolean, "COMMENT": text},
    ),
    refused=(
        "ADD",
        "ALTER",
        "CLUSTER",
        "CONVERT",
        "DROP",
        "EXECUTE",
        "MODIFY",
        "RENAME",
        "RESUME",
        "SUSPEND",
        "UNSET",
    ),
)


def _alter(stream: Stream, statement: Statement) -> None:
    if not stream.take("REFRESH"):
        _set(stream, statement)
        return
    statement.action = "REFRESH"
    if stream.peek().kind == "string":
        statement.properties = {"PATH": stream.string()}


TABLE_KIND = Kind(
    TABLE,
    parts=3,
    create=_create,
    alter=_alter,
    describe=True,
    plural="ICEBERG TABLES",
    in_account=False,
)

logger = logging.getLogger(__name__)
KEPT_SECONDS = 60
"""For which a copy of a metadata file is kept: a running query may still have to open it."""


@dataclass(frozen=True)
class Version:
    """One metadata file: where it is, and what is in it."""

    location: str
    data: bytes
    metadata: Metadata


def create_table(account: Account, context: Context, statement: Statement) -> Rows:
    name = account.new_name(statement, context)
    properties = _defaults(account, name, statement.properties)
    old = account.store.get(TABLE, name)
    if old is None and account.engine.has_relation(name):
        raise errors.already_exists(display(name))
    if old is not None and not statement.or_replace:  # an error, or IF NOT EXISTS
        return create(account, context, statement, name, properties)
    version = _fetch(account, name, properties, _locate(account, properties))
    with account.refreshing(name):
        properties |= _position(account, version)
        publish = partial(_publish, account, name, properties, version.metadata)
        return create(account, context, statement, name, properties, created=publish)


def _defaults(account: Account, name: Name, given: dict[str, Any]) -> dict[str, Any]:
    """The table's properties, with what it inherits from its database and its integration."""
    database = account.store.get(DATABASE, name[:1])
    inherited = database.properties if database else {}
    properties = {"AUTO_REFRESH": False, "REPLACE_INVALID_CHARACTERS": False, "COMMENT": ""}
    properties |= {k: inherited[k] for k in ("EXTERNAL_VOLUME", "CATALOG") if inherited.get(k)}
    properties |= given
    if "CATALOG" not in properties:
        options = ("EXTERNAL_VOLUME", "CATALOG")
        raise errors.missing_options([name for name in options if name not in properties])
    integration = account.require(INTEGRATION, (str(properties["CATALOG"]),))
    if "EXTERNAL_VOLUME" in properties:
        account.require(VOLUME, (str(properties["EXTERNAL_VOLUME"]),))
    elif vends(integration):
        properties["EXTERNAL_VOLUME"] = None
    else:
        raise errors.missing_options(["EXTERNAL_VOLUME"])
    namespace = properties.get("CATALOG_NAMESPACE") or integration.properties["CATALOG_NAMESPACE"]
    if not namespace:
        raise errors.missing_options(["CATALOG_NAMESPACE"])
    return {**properties, "CATALOG_NAMESPACE": namespace}


def _locate(account: Account, properties: dict[str, Any]) -> str:
    """Where the catalog has the table's metadata now."""
    integration = account.require(INTEGRATION, (properties["CATALOG"],))
    if not integration.properties["ENABLED"]:
        raise errors.invalid_request(
            f"Catalog integration '{display(integration.name)}' is not enabled."
        )
    if problem := unreachable(account, integration) or role_of(account, integration, properties):
        raise errors.catalog_failure(problem)
    return account.sources.metadata_location(
        properties["CATALOG_NAMESPACE"], properties["CATALOG_TABLE_NAME"]
    )


def _fetch(account: Account, name: Name, properties: dict[str, Any], location: str) -> Version:
    """A metadata file that Snowflake can read, by the volume or with vended credentials."""
    used = properties["EXTERNAL_VOLUME"]
    volume = None if used is None else account.require(VOLUME, (used,))
    if volume is None:
        problem = account.sources.vending_problem(location)
    else:
        check_inside(volume, location)
        problem = role_problem(account, volume, "s3:GetObject")
    if problem:
        raise errors.catalog_failure(f"Failed to read '{location}': {problem}")
    data = account.sources.read(location)
    metadata = Metadata.parse(location, data, keeps_case=account.linked(name[0]) is not None)
    if volume is not None:
        check_inside(volume, metadata.location.rstrip("/") + "/")
    metadata.check_names()
    version = Version(location, data, metadata)
    _refuse_equality_deletes(account, version)
    return version


def _refuse_equality_deletes(account: Account, version: Version) -> None:
    """Snowflake reads position deletes and deletion vectors of such a table, no equality deletes.

    The real Snowflake is known to serve stale or wrong rows then; the emulator refuses aloud.
    """
    if (snapshot := version.metadata.snapshot) is None:
        return
    count = snapshot.get("summary", {}).get("total-equality-deletes")
    if count is None:
        query = (
            "SELECT count(*) FROM iceberg_metadata(?) "
            "WHERE content = 'EQUALITY_DELETES' AND status <> 'DELETED'"
        )
        cursor = account.engine.cursor().execute(query, [str(_write_copy(account, version))])
        ((count,),) = cursor.fetchall()
    if int(count):
        raise errors.catalog_failure(
            f"Iceberg equality delete files are not supported on externally managed tables: "
            f"snapshot {snapshot['snapshot-id']} of '{version.metadata.location}' has {count} "
            "equality deletes. Compact the table, or write it with copy-on-write, position "
            "deletes or deletion vectors."
        )


def _position(account: Account, version: Version) -> dict[str, Any]:
    """What is stored of a version: enough to answer. Its file is kept, and its query was tried."""
    metadata, snapshot = version.metadata, version.metadata.snapshot
    file = _write_copy(account, version)
    account.engine.cursor().execute(f"DESCRIBE {select(metadata, str(file))}")
    return {
        "METADATA_LOCATION": version.location,
        "METADATA_FILE": file.name,
        "SNAPSHOT_ID": str(snapshot["snapshot-id"]) if snapshot else None,
        "SNAPSHOT_MS": snapshot["timestamp-ms"] if snapshot else None,
        "SNAPSHOT_SUMMARY": snapshot.get("summary", {}) if snapshot else {},
        "SCHEMA_ID": str(metadata.schema_id),
        "TABLE_UUID": metadata.content.get("table-uuid"),
        "PARTITION_SPECS": metadata.content.get("partition-specs") or [],
        "PARTITION_SPEC_ID": metadata.content.get("default-spec-id", 0),
        "FORMAT_VERSION": metadata.recognized_version,
        "REFRESHED": time.time(),
        "REFRESH_ERROR": None,
    }


def _write_copy(account: Account, version: Version) -> Path:
    """Return a copy of the metadata file, which is written unless it is there."""
    digest = hashlib.sha256(version.location.encode() + b"\0" + version.data).hexdigest()
    suffix = ".gz.metadata.json" if version.data[:2] == b"\x1f\x8b" else ".metadata.json"
    path = account.metadata_folder / f"{digest[:32]}{suffix}"
    if not path.exists():
        with replacing(path) as file:
            file.write(version.data)
    return path


def _publish(account: Account, name: Name, properties: dict[str, Any], metadata: Metadata) -> None:
    file = account.metadata_folder / properties["METADATA_FILE"]
    account.engine.show_iceberg_table(name, select(metadata, str(file)))


def load_metadata(account: Account, table: Stored) -> Metadata:
    """The metadata that the table was last refreshed to."""
    file = account.metadata_folder / table.properties["METADATA_FILE"]
    keeps_case = account.linked(table.name[0]) is not None
    location = table.properties["METADATA_LOCATION"]
    return Metadata.parse(location, file.read_bytes(), keeps_case=keeps_case)


def link(account: Account, database: Stored, name: Name) -> None:
    """Show a table that discovery found; raises ProgrammingError: it cannot be read."""
    given = {"CATALOG_NAMESPACE": name[1], "CATALOG_TABLE_NAME": name[2], "AUTO_REFRESH": True}
    properties = _defaults(account, name, given) | {OWNER: database.properties[OWNER]}
    version = _fetch(account, name, properties, _locate(account, properties))
    properties |= _position(account, version)
    with account.refreshing(name), account.store.lock:
        if account.linked(name[0]) is not None:
            account.store.put(Stored(TABLE, name, properties))
            grant_future(account, TABLE, name)
            _publish(account, name, properties, version.metadata)


def unlink(account: Account, name: Name) -> None:
    """Forget a table of a catalog-linked database, which the catalog no longer has."""
    account.engine.hide_iceberg_table(name)
    drop(account, TABLE, name)


def refresh(account: Account, name: Name) -> None:
    """Bring the table to what the catalog has; raises ProgrammingError: it stays as it was."""
    with account.refreshing(name):
        table = account.require(TABLE, name)
        location = _locate(account, table.properties)
        if location == table.properties["METADATA_LOCATION"]:  # a metadata file never changes
            note_refresh(account, name, error=None)
            return
        version = _fetch(account, name, table.properties, location)
        _refuse_upgraded(account, table, version.metadata)
        table_uuid = version.metadata.content.get("table-uuid")
        if account.linked(name[0]) and table_uuid != table.properties["TABLE_UUID"]:
            unlink(account, name)
            raise errors.catalog_failure(
                f"The table-uuid of '{display(name)}' is not that of the table in the catalog: it "
                "is dropped from the catalog-linked database."
            )
        properties = {**table.properties, **_position(account, version)}
        # A rollback to a snapshot of version 2 is no downgrade of the table.
        properties["FORMAT_VERSION"] = version.metadata.format_version
        with account.store.lock:
            if account.store.get(TABLE, name) is None:
                raise errors.does_not_exist("Iceberg table", display(name))
            account.store.put(Stored(TABLE, name, properties, table.created))
            _publish(account, name, properties, version.metadata)
    forget_old_copies(account)


def _refuse_upgraded(account: Account, table: Stored, metadata: Metadata) -> None:
    """Refuse to refresh a table that another engine upgraded to version 3 of Iceberg.

    In a standard database, one that has a snapshot since then has to be replaced as well. For
    catalog-linked databases Snowflake documents no more than that a snapshot is needed.
    https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh

    :raises ProgrammingError: the refresh cannot succeed
    """
    version, is_recognized = table.properties["FORMAT_VERSION"], metadata.recognized_version > 2
    is_upgraded = version <= 2 and metadata.format_version >= 3
    if not is_upgraded or (is_recognized and account.linked(table.name[0])):
        return
    needed = "replace the table" if is_recognized else "commit a new snapshot with that engine"
    raise errors.catalog_failure(
        f"Failed to refresh '{display(table.name)}': another engine upgraded it from Iceberg "
        f"format version {version} to {metadata.format_version}; {needed}."
    )


def note_refresh(account: Account, name: Name, error: str | None) -> None:
    """Keep why the last refresh of a table failed; None: it did not."""
    with account.store.lock:
        table = account.store.get(TABLE, name)
        if table is not None and table.properties["REFRESH_ERROR"] != error:
            table.properties["REFRESH_ERROR"] = error
            account.store.put(table)


def forget_old_copies(account: Account) -> None:
    """Delete the copies of metadata files that no table has any more; at most once a minute."""
    with account.store.lock:
        now = time.time()
        if now - account.copies_forgotten_at < KEPT_SECONDS:
            return
        account.copies_forgotten_at = now
        used = {table.properties["METADATA_FILE"] for table in account.store.all(TABLE)}
        for file in account.metadata_folder.iterdir():
            with suppress(FileNotFoundError):  # another refresh writes it
                if file.name not in used and file.stat().st_mtime < now - KEPT_SECONDS:
                    file.unlink()


def restore(account: Account) -> None:
    """After a start: make every stored table visible again, exactly as it was."""
    for table in account.store.all(TABLE):
        try:
            _publish(account, table.name, table.properties, load_metadata(account, table))
        except Exception:
            logger.exception("Iceberg table %s cannot be shown", display(table.name))


def alter_table(account: Account, context: Context, statement: Statement) -> Rows:
    if statement.action != "REFRESH":
        with account.refreshing(statement.name):
            return set_properties(account, context, statement)
    if account.store.get(TABLE, statement.name) is None and statement.if_exists:
        return Rows.status(DONE)
    account.require(TABLE, statement.name)
    if "PATH" in statement.properties:
        raise errors.invalid_request(
            "A metadata file path cannot be given to refresh an Iceberg table that uses "
            "AWS Glue as the catalog."
        )
    refresh(account, statement.name)
    return Rows.status(DONE)


def drop_table(account: Account, _context: Context, statement: Statement) -> Rows:
    account.refuse_write(statement.name, "DROP ICEBERG TABLE")
    with account.refreshing(statement.name):
        hide = account.engine.hide_iceberg_table
        return remove(account, statement, lambda table: hide(table.name))
