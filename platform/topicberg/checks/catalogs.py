"""Checks of the catalogs: Iceberg, Glue and Snowflake have the same state, columns and rows.

The table changes while it is checked, so Glue and Snowflake may lag behind it for
``TOPICBERG_CATALOGS_PATIENCE_SECONDS``; but each must be at a state that the table had.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Any

from pyiceberg.table import StaticTable

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.names import TablePath, text
from topicberg.catalogs.snowflake.tables import NoSuchIcebergTableError, find_table_path, read_back
from topicberg.checks.check import CheckedTable, Probe, TableCheck
from topicberg.checks.finding import Finding, age, from_ms, good
from topicberg.iceberg import position_deletes, summaries
from topicberg.settings import Settings
from topicberg.wording import count

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from snowflake.connector import SnowflakeConnection


@dataclass(frozen=True)
class PointerPosition:
    """The position of a pointer among the states of its table."""

    known: bool
    behind_since: datetime | None = None  # When the next one was committed; None: it is the newest.


def place(table: Table, location: str | None) -> PointerPosition:
    """Return the position of a metadata file among those in the table's log (the last 100)."""
    if location == table.metadata_location:
        return PointerPosition(known=True)
    log = table.metadata.metadata_log
    times = [*(entry.timestamp_ms for entry in log), table.metadata.last_updated_ms]
    for entry, superseded in zip(log, times[1:], strict=True):
        if entry.metadata_file == location:
            return PointerPosition(known=True, behind_since=from_ms(superseded))
    return PointerPosition(known=False)


def is_late(since: datetime, probe: Probe) -> bool:
    """Return whether Glue and Snowflake should have what was committed then."""
    return probe.now - since > probe.catalogs_patience


def stale_since(table: Table, state: Table, here: PointerPosition, probe: Probe) -> datetime | None:
    """Return when readers of an old state began to miss something; None: not for too long. Later
    states in which readers see no difference, such as new tags, do not count: the pointer stays at
    the first of them, maybe for long."""
    if here.behind_since is None or not is_late(here.behind_since, probe):
        return None
    seen = glue.visible_state(state)
    if seen == glue.visible_state(table):
        return None
    log = table.metadata.metadata_log
    newer = dropwhile(lambda entry: entry.metadata_file != state.metadata_location, log)
    differ = (
        entry.timestamp_ms
        for entry in islice(newer, 1, None)
        if glue.visible_state(_state_at(entry.metadata_file, table)) != seen
    )
    since = from_ms(next(differ, table.metadata.last_updated_ms))
    return since if is_late(since, probe) else None


def _state_at(location: str, table: Table) -> Table:
    """Return the state of a table in one of its metadata files."""
    return StaticTable.from_metadata(location, table.io.properties)


def pointer_check(dropped: str | None) -> TableCheck:
    """:param dropped: the check that also reports that the table was dropped, if there is one"""
    return TableCheck(
        "pointer",
        "Glue points to a current state of the Iceberg table, and has its columns.",
        lambda probe: check_pointer(probe, dropped),
        blocking=True,
    )


def check_pointer(probe: Probe, dropped: str | None = None) -> Finding:
    """Return whether Glue points to a state of the table, not an old one, and has its columns."""
    table = probe.find(probe.table.identifier)
    catalog_entry = glue.get_table(probe.deployment.glue(), *probe.table.glue_table)
    name = ".".join(probe.table.glue_table)
    if table is None:
        return _dropped(name, dropped) if catalog_entry else good("the table was not created yet")
    table.refresh()
    if catalog_entry is None:
        return _missing(f"Glue has no table {name}", table, probe)
    changed, location = catalog_entry.get("UpdateTime"), glue.metadata_location(catalog_entry)
    facts = {
        "iceberg_metadata_location": table.metadata_location,
        "glue_metadata_location": location or "none",
        "glue_changed": str(changed or ""),
    }

    def bad(problem: str, since: datetime | None = changed) -> Finding:
        return Finding(problem, probe.table.sync, since, facts=facts)

    here, points = place(table, location), f"Glue points to {location or 'no metadata file'}"
    if not here.known and table.current_snapshot() is None:
        return replace(_created_again(points, table, probe), facts=facts)
    if not here.known or location is None:
        return bad(
            f"{points}, which is not one of the last states of this table: another writer moved "
            "the pointer, or it was not refreshed for very long"
        )
    state = _state_at(location, table)
    if since := stale_since(table, state, here, probe):
        lag = age((probe.now - since).total_seconds())
        return bad(
            f"Glue points to an old state of the table, {lag} behind: readers of Glue miss later "
            "changes",
            since,
        )
    expected, in_glue = (
        {column["Name"]: column.get("Type") for column in columns}
        for columns in (glue.columns(state), catalog_entry["StorageDescriptor"]["Columns"])
    )
    if wrong := {name for name, _ in expected.items() ^ in_glue.items()}:
        return bad(f"columns in Glue differ from those of the table: {', '.join(sorted(wrong))}")
    return good("Glue points to the table's current state", **facts)


def parity_check() -> TableCheck:
    def evaluate(probe: Probe) -> Finding:
        with probe.snowflake() as connection:
            return check_parity(probe, connection)

    return TableCheck(
        "parity",
        "Snowflake reads the state of the Iceberg table that Glue points to: the same metadata "
        "file, columns and number of rows.",
        evaluate,
    )


def check_parity(probe: Probe, connection: SnowflakeConnection) -> Finding:
    """Return whether Snowflake reads the state that Glue points to, its columns and its rows."""
    name, source = probe.table.snowflake_name, probe.table.snowflake_source
    table, path = probe.iceberg, find_table_path(connection, probe.config, name, source)
    catalog_entry = glue.get_table(probe.deployment.glue(), *probe.table.glue_table)
    in_glue = glue.metadata_location(catalog_entry) if catalog_entry else None
    try:
        seen = read_back(connection, path)
    except NoSuchIcebergTableError as error:
        return _missing(error.message, table, probe)
    table.refresh()
    here = place(table, seen.metadata_location)
    facts: dict[str, Any] = {
        "iceberg_metadata_location": table.metadata_location,
        "glue_metadata_location": in_glue or "none",
        "snowflake_metadata_location": seen.metadata_location,
        "snowflake_rows": seen.rows,
    }

    def bad(problem: str, since: datetime | None = None, cause: str | None = None) -> Finding:
        return Finding(problem, probe.table.sync, since, cause=cause, facts=facts)

    glue_is_wrong = None if place(table, in_glue).known else f"glue/{probe.table.name}:pointer"
    if not here.known and table.current_snapshot() is None:
        problem = f"Snowflake reads {seen.metadata_location}"
        return replace(_created_again(problem, table, probe), cause=glue_is_wrong, facts=facts)
    if not here.known:
        problem = "Snowflake reads a state that is not one of the last ones of this table"
        return bad(problem, cause=glue_is_wrong)
    state = _state_at(seen.metadata_location, table)
    if since := stale_since(table, state, here, probe):
        lag = age((probe.now - since).total_seconds())
        problem = f"the Snowflake table is stale: it reads a state that was superseded {lag} ago"
        if seen.metadata_location == in_glue:
            return bad(problem, since, glue_is_wrong)
        problem += ", and not the one that Glue points to"
        if not state.format_version < 3 <= table.format_version:
            return bad(problem, since, glue_is_wrong)
        problem += (
            f"; the table was upgraded from format version {state.format_version} to "
            f"{table.format_version}, after which Snowflake does not refresh it by itself"
        )
        steps = describe_steps(path, probe.table, probe.config)
        return replace(bad(problem, since, glue_is_wrong), remediation=steps)
    rows, snapshot = count_rows(state), state.current_snapshot()
    facts |= {
        "iceberg_rows": rows,
        "snapshot_id": str(snapshot.snapshot_id) if snapshot else "none",
    }
    columns = {field.name.upper() for field in state.schema().fields}
    if wrong := columns ^ {column.name.upper() for column in seen.columns}:
        return bad(
            f"columns in Snowflake differ from those of the table: {', '.join(sorted(wrong))}"
        )
    if rows != seen.rows:
        why = (
            "Snowflake may not apply its deletes (see check equality_deletes)"
            if seen.rows > rows
            else "a data file was changed or truncated, or Snowflake does not read all of it; "
            "compare `topicberg query` with `--engine duckdb` and `--engine snowflake`"
        )
        return bad(f"the table has {count(rows, 'row')}, Snowflake counts {seen.rows:,}: {why}")
    return good("Iceberg, Glue and Snowflake agree", **facts)


def _dropped(name: str, cause: str | None) -> Finding:
    return Finding(
        what=f"Glue has table {name}, which is missing in Iceberg's catalog: it was dropped there, "
        "and readers of Glue and Snowflake still see its last rows",
        remediation="recreate it by materializing all partitions of its asset `iceberg/…`; the "
        "engine recreates the table of a topic from the topic's records. To drop it for good, drop "
        "it in Glue and Snowflake as well",
        cause=cause,
    )


def _created_again(problem: str, table: Table, probe: Probe) -> Finding:
    """:param problem: what a catalog has in place of a state of a table without rows"""
    log = table.metadata.metadata_log
    created = from_ms(log[0].timestamp_ms if log else table.metadata.last_updated_ms)
    if not is_late(created, probe):
        return good(f"{problem}, and the Iceberg table is new")
    return Finding(
        f"{problem}, which is no state of this table: it was dropped and created again, has no "
        "rows yet, and readers of Glue and Snowflake still see the last rows of the dropped one",
        probe.table.sync,
        created,
    )


def _missing(what: str, table: Table, probe: Probe) -> Finding:
    if table.current_snapshot() is None:
        return good("the table has no rows yet")
    first = from_ms(min(snapshot.timestamp_ms for snapshot in table.metadata.snapshots))
    if not is_late(first, probe):
        return good(f"{what}, and the Iceberg table is new")
    return Finding(what, probe.table.sync, first)


def count_rows(table: Table) -> int:
    """Return the number of rows, from metadata and from position delete files if there are any."""
    head = table.current_snapshot()
    properties = summaries.summary(head) if head else {}
    if int(properties.get("total-equality-deletes", 0)):
        return table.scan().count()
    if int(properties.get("total-delete-files", 0)):
        return position_deletes.live_rows(table)
    return int(properties.get("total-records", 0))


def describe_needs(path: TablePath, config: Settings) -> str:
    """Return what stops in Snowflake when a table is upgraded from format version 2 to 3.
    https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh,
    https://docs.snowflake.com/en/user-guide/tables-iceberg-upgrade-version"""
    needs = f"Snowflake cannot refresh {path} until the table has a snapshot of version 3"
    if path.is_linked:
        return f"{needs}; the upgrade commits one"
    needs += (
        ", which the upgrade commits, and is replaced in Snowflake, where grants, tags and "
        "policies on it end"
    )
    if config.snowflake_catalog != "glue":
        return needs
    return (
        f"{needs}. Snowflake excludes tables of its native Glue source "
        "(TOPICBERG_SNOWFLAKE_CATALOG=glue) from upgrades: before you continue, set "
        "TOPICBERG_SNOWFLAKE_CATALOG=glue_rest and run `topicberg deploy create`"
    )


def describe_steps(path: TablePath, table: CheckedTable, config: Settings) -> str:
    """Return what to do after the upgrade so that Snowflake refreshes the table again."""
    if path.is_linked:
        return (
            f"run SELECT SYSTEM$AUTO_REFRESH_STATUS({text(path.sql)}) in Snowflake, and ALTER "
            f"ICEBERG TABLE {path.sql} REFRESH if it is not RUNNING"
        )
    return (
        f"run DROP ICEBERG TABLE {path.sql} in Snowflake, which deletes no data, then "
        "`topicberg deploy create`, which creates it again with topicberg's grants"
        if config.deployment == "cloud" and table.identifier[0] == config.topics_namespace
        else f"{table.sync}, which replaces the table in Snowflake"
    )
