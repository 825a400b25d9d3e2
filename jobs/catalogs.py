"""The sensor that keeps Glue and Snowflake at the newest metadata of tables that nobody ingests.

The run that computes a derived table registers it; maintenance, and the tag that publishing sets,
change its metadata afterwards. A table is registered again once its metadata has been another one
than Glue's for two ticks. Who moves the pointer in Glue by hand is left alone: that the check
``pointer`` tells.
"""

from __future__ import annotations

import hashlib

import dagster as dg
from pydantic import BaseModel
from pyiceberg.exceptions import NoSuchTableError

from assets import Lake
from assets.tables import LakeTable, history_lake_table
from jobs.schedules import UNFINISHED, under_way, unless_silent
from resources import Lakehouse
from topicberg import glue
from topicberg.errors import TopicbergError

INTERVAL_SECONDS = 60
_TAGS = {"topicberg/kind": "catalogs"}


class Cursor(BaseModel):
    """Table → metadata file."""

    settled: dict[str, str] = {}
    """That Glue has, or was asked to have."""
    seen: dict[str, str] = {}
    """Of the last tick, where it was not settled."""


def catalog_sensor(lake: Lake) -> dg.SensorDefinition:
    tables = [
        *(history_lake_table(spec) for spec in lake.histories.values()),
        *(view for _, view in lake.upsert_views),
        *(lake.table(derived) for derived in lake.derived),
    ]
    keys = [table.key(system) for table in tables for system in ("glue", "snowflake")]

    @dg.sensor(
        name="catalogs",
        target=dg.AssetSelection.assets(*keys),
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Registers derived tables in Glue and Snowflake again after maintenance or "
        "publishing has changed their metadata.",
    )
    @unless_silent
    def catalogs(
        context: dg.SensorEvaluationContext, lakehouse: Lakehouse
    ) -> dg.SensorResult | dg.SkipReason:
        unfinished = dg.RunsFilter(tags=_TAGS, statuses=UNFINISHED)
        if busy := under_way(context.instance, unfinished):
            return busy  # what changes meanwhile is one request afterwards
        before = Cursor.model_validate_json(context.cursor) if context.cursor else Cursor()
        after = Cursor(settled=dict(before.settled))
        behind: dict[str, LakeTable] = {}
        try:
            catalog = lakehouse.peek().catalog(lakehouse.config)
            for table in tables:
                try:
                    now = catalog.load_table(table.identifier).metadata_location
                except NoSuchTableError:
                    continue
                if now == before.settled.get(table.name):
                    continue
                if _in_glue(lakehouse, table) == now:
                    after.settled[table.name] = now
                elif now == before.seen.get(table.name):
                    after.settled[table.name] = now
                    behind[now] = table
                else:
                    after.seen[table.name] = now
        except (TopicbergError, OSError) as error:
            return dg.SkipReason(str(error))
        if after == before:
            return dg.SkipReason("Glue has the newest metadata of every table")
        requests = [_request(behind)] if behind else []
        return dg.SensorResult(run_requests=requests, cursor=after.model_dump_json())

    return catalogs


def _in_glue(lakehouse: Lakehouse, table: LakeTable) -> str | None:
    found = glue.get_table(lakehouse.glue(), *table.glue_table)
    return glue.metadata_location(found) if found else None


def _request(behind: dict[str, LakeTable]) -> dg.RunRequest:
    """One run for all of them: a run takes longer to start than a table to be registered.

    :param behind: metadata file → table
    """
    tables = behind.values()
    digest = hashlib.sha256("\n".join(sorted(behind)).encode()).hexdigest()
    return dg.RunRequest(
        run_key=f"catalogs:{digest}",
        asset_selection=[table.key(system) for table in tables for system in ("glue", "snowflake")],
        tags=_TAGS,
    )
