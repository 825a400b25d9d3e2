"""Iceberg = Glue = Snowflake: the same state of the table, the same columns, the same rows.

The table goes on changing while it is looked at, so Glue and Snowflake may be behind it for a while
(``TOPICBERG_CATALOGS_PATIENCE_SECONDS``); but each must be at a state that the table had.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.table import StaticTable

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake import NoSuchIcebergTableError, read_back
from topicberg.checks.finding import Finding, age, from_ms, good
from topicberg.iceberg.position_deletes import live_rows
from topicberg.iceberg.summaries import summary
from topicberg.wording import count

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient
    from pyiceberg.table import Table
    from snowflake.connector import SnowflakeConnection

    from topicberg.settings import Settings


@dataclass(frozen=True)
class Place:
    """Where a pointer stands among the states of its table."""

    known: bool
    behind_since: datetime | None = None
    """When the state after it came; None: it is the newest."""

    def late(self, now: datetime, patience: timedelta) -> str | None:
        """How far behind it is, if that is too much."""
        if self.behind_since is None or now - self.behind_since <= patience:
            return None
        return age((now - self.behind_since).total_seconds())


def place(table: Table, location: str | None) -> Place:
    """Where a metadata file stands among those that the table remembers (the last 100)."""
    if location == table.metadata_location:
        return Place(known=True)
    log = table.metadata.metadata_log
    times = [*(entry.timestamp_ms for entry in log[1:]), table.metadata.last_updated_ms]
    for entry, superseded in zip(log, times, strict=True):
        if entry.metadata_file == location:
            return Place(known=True, behind_since=from_ms(superseded))
    return Place(known=False)


def check_pointer(
    table: Table | None,
    client: GlueClient,
    glue_table: tuple[str, str],
    mend: str,
    now: datetime,
    patience: timedelta,
    gone: str | None = None,
) -> Finding:
    """Glue points to a state of the table, not an old one, and has its columns.

    :param table: None: there is none in Iceberg's catalog
    :param gone: the check that tells as well that it was dropped, if there is one
    """
    if table is not None and table.current_snapshot() is None:
        return good("the table has no rows yet")
    found = glue.get_table(client, *glue_table)
    if table is None and found:
        return _dropped(".".join(glue_table), gone)
    if table is None:
        return good("there is no such table yet")
    table.refresh()
    if found is None:
        return _missing(f"Glue has no table {'.'.join(glue_table)}", table, mend, now, patience)
    location = glue.metadata_location(found)
    here = place(table, location)
    facts = {
        "iceberg_metadata_location": table.metadata_location,
        "glue_metadata_location": location or "none",
        "glue_changed": str(found.get("UpdateTime", "")),
    }
    if not here.known or location is None:
        return Finding(
            passed=False,
            what=f"Glue points to {location or 'no metadata file'}, which is no state that this "
            "table had lately: somebody moved the pointer, or it was not refreshed for very long",
            mend=mend,
            since=found.get("UpdateTime"),
            facts=facts,
        )
    state = StaticTable.from_metadata(location, table.io.properties)
    late = here.late(now, patience)
    if late and glue.visible_state(state) != glue.visible_state(table):
        return Finding(
            passed=False,
            what=f"Glue points to an old state of the table, {late} behind: readers of Glue miss "
            "what changed since",
            mend=mend,
            since=here.behind_since,
            facts=facts,
        )
    wanted, there = (
        {column["Name"]: column.get("Type") for column in columns}
        for columns in (glue.columns(state), found["StorageDescriptor"]["Columns"])
    )
    if wanted != there:
        wrong = {name for name, _ in wanted.items() ^ there.items()}
        return Finding(
            passed=False,
            what=f"Glue has other columns than the table: {', '.join(sorted(wrong))}",
            mend=mend,
            since=found.get("UpdateTime"),
            facts=facts,
        )
    return good("Glue points to the table's current state", **facts)


def check_parity(
    table: Table,
    client: GlueClient,
    glue_table: tuple[str, str],
    connection: SnowflakeConnection,
    config: Settings,
    name: str,
    mend: str,
    now: datetime,
    patience: timedelta,
    pointer: str,
) -> Finding:
    """Snowflake reads the state that Glue points to, with its columns and its number of rows.

    :param pointer: the check of the Glue pointer, whose faults are this one's as well
    """
    if table.current_snapshot() is None:
        return good("the table has no rows yet")
    found = glue.get_table(client, *glue_table)
    in_glue = glue.metadata_location(found) if found else None
    try:
        seen = read_back(connection, config, name)
    except NoSuchIcebergTableError as error:
        return _missing(error.message, table, mend, now, patience)
    table.refresh()
    here = place(table, seen.metadata_location)
    facts: dict[str, Any] = {
        "iceberg_metadata_location": table.metadata_location,
        "glue_metadata_location": in_glue or "none",
        "snowflake_metadata_location": seen.metadata_location,
        "snowflake_rows": seen.rows,
    }

    def bad(what: str, since: datetime | None, cause: str | None = None) -> Finding:
        return Finding(passed=False, what=what, mend=mend, since=since, cause=cause, facts=facts)

    glue_is_wrong = pointer if not place(table, in_glue).known else None
    if not here.known:
        return bad("Snowflake reads a state that this table had not lately", None, glue_is_wrong)
    state = StaticTable.from_metadata(seen.metadata_location, table.io.properties)
    late = here.late(now, patience)
    if late and glue.visible_state(state) != glue.visible_state(table):
        other = "" if seen.metadata_location == in_glue else ", and not the one that Glue points to"
        return bad(
            f"the Snowflake table is stale: it reads a state that was superseded {late} ago{other}",
            here.behind_since,
            glue_is_wrong,
        )
    rows = count_rows(state)
    snapshot = state.current_snapshot()
    facts |= {
        "iceberg_rows": rows,
        "snapshot_id": str(snapshot.snapshot_id) if snapshot else "none",
    }
    columns = {field.name.upper() for field in state.schema().fields}
    if wrong := columns ^ {column.upper() for column in seen.columns}:
        return bad(f"Snowflake has other columns than the table: {', '.join(sorted(wrong))}", None)
    if rows != seen.rows:
        why = "look for deletes that Snowflake cannot read (check equality_deletes)"
        if seen.rows < rows:
            why = "a data file is not what was written, or Snowflake does not read it whole; "
            why += "compare `topicberg query` with `--engine duckdb` and `--engine snowflake`"
        return bad(
            f"the table has {count(rows, 'row')}, Snowflake counts {seen.rows:,}: {why}", None
        )
    return good("Iceberg, Glue and Snowflake agree", **facts)


def _dropped(name: str, cause: str | None) -> Finding:
    return Finding(
        passed=False,
        what=f"Glue has table {name}, which is gone from Iceberg's catalog: somebody dropped it, "
        "and readers of Glue and Snowflake still see what it held",
        mend="make it again: materialize all partitions of its asset `iceberg/…` (a backfill); of "
        "a topic, the engine does so from what the topic holds. If it is to stay away, drop it in "
        "Glue and Snowflake as well",
        cause=cause,
    )


def _missing(what: str, table: Table, mend: str, now: datetime, patience: timedelta) -> Finding:
    first = from_ms(min(snapshot.timestamp_ms for snapshot in table.metadata.snapshots))
    if now - first <= patience:
        return good(f"{what}: the Iceberg table is new, too")
    return Finding(passed=False, what=what, mend=mend, since=first)


def count_rows(table: Table) -> int:
    """From metadata; where files have deletes by position, from the delete files too."""
    head = table.current_snapshot()
    properties = summary(head) if head else {}
    if int(properties.get("total-equality-deletes", 0)):
        return table.scan().count()
    if int(properties.get("total-delete-files", 0)):
        return live_rows(table)
    return int(properties.get("total-records", 0))
