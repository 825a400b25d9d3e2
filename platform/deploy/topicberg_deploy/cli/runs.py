"""Runs of the asset graph in the process of a command, which waits for them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from topicberg.cli.output import load_lake
from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    import dagster as dg
    from pyiceberg.catalog import Catalog

    from topicberg.endpoints import Endpoints
    from topicberg.orchestration.assets import Lake
    from topicberg.settings import Settings
    from topicberg.topics import TopicSpec

_QUIET: Mapping[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def materialize(
    config: Settings, endpoints: Endpoints, since: datetime | None
) -> list[tuple[str, bool, str]]:
    """Run every pipeline on the records since then; return its checks: name, passed, description.

    :param since: None: on all records, as it does anyway while a derived table has no rows
    :raises TopicbergError: a run failed
    """
    lake, checks = load_lake(config), []
    with _dagster_instance(config) as instance:
        from topicberg.orchestration import definitions
        from topicberg.orchestration.jobs.pipelines import everything

        defs = definitions()
        for name, topic in everything(lake).items():
            result = defs.resolve_job_def(name).execute_in_process(
                instance=instance,
                tags=_partition_range(topic, lake, config, endpoints, since) if topic else {},
                run_id=str(uuid.uuid4()),
                raise_on_error=False,
                run_config=_QUIET,
            )
            _raise_failure(result, name)
            checks += [
                (f"{e.asset_key.to_user_string()} {e.check_name}", e.passed, e.description or "")
                for e in result.get_asset_check_evaluations()
            ]
    return checks


def materialize_derived(config: Settings, endpoints: Endpoints, waiting: set[str]) -> list[str]:
    """Compute derived tables up to now, but those of topics that wait for a table, and register
    them in Glue and Snowflake; return their names.

    Not upsert views, published topics and checks of data, which need Spark Connect.
    """
    lake, computed = load_lake(config), []
    hours = _all_hours(lake, config, endpoints)
    with _dagster_instance(config) as instance:
        import dagster as dg

        from topicberg.orchestration import definitions
        from topicberg.orchestration.catalogs.catalog import systems

        defs, derived = definitions(), lake.derived_by_name
        order = TopologicalSorter({name: derived[name].sources for name in sorted(derived)})
        for table in [derived[name] for name in order.static_order() if name in derived]:
            root = lake.root(table)
            if root.name in waiting or not hours.get(root.name):
                continue
            keys = [lake.table(table).key(system) for system in systems()]
            result = dg.materialize(
                [defs.resolve_assets_def(key) for key in keys],
                instance=instance,
                tags=_range_from(root, min(hours[root.name])),
                run_config=_QUIET,
                raise_on_error=False,
            )
            _raise_failure(result, f"table {table.name}")
            computed.append(table.name)
    return computed


@contextmanager
def _dagster_instance(config: Settings) -> Iterator[dg.DagsterInstance]:
    """Yield the deployment's Dagster, for definitions that are loaded afterwards."""
    from topicberg.dagster.home import dagster_home

    os.environ["DAGSTER_HOME"] = str(dagster_home(config))
    os.chdir(config.project_root)

    import dagster as dg

    with dg.DagsterInstance.get() as instance:
        yield instance


def _raise_failure(result: dg.ExecuteInProcessResult, target: str) -> None:
    if result.success:
        return
    reason = "see its log"
    if event := next((event for event in result.all_events if event.is_step_failure), None):
        failure: Any = event.step_failure_data
        error = failure.error.cause or failure.error
        reason = f"{event.step_key}: {error.message.strip().splitlines()[0]}"
    raise TopicbergError(
        f"{target}: run {result.run_id} failed: {reason}",
        hint="run `topicberg ui` to see the run, and materialize it again there",
    )


def _partition_range(
    topic: TopicSpec, lake: Lake, config: Settings, endpoints: Endpoints, since: datetime | None
) -> dict[str, str]:
    """Return the partition tags of the records since then, or of all if a table lacks them;
    ``topic``: defines the partitions."""
    first = int(since.timestamp() if since else time.time()) // 3600
    if since is None or _lacks_rows(lake, endpoints.catalog(config)):
        hours = _all_hours(lake, config, endpoints).values()
        first = min((min(each) for each in hours if each), default=first)
    return _range_from(topic, first)


def _lacks_rows(lake: Lake, catalog: Catalog) -> bool:
    """Return whether a derived table is missing or empty."""
    from topicberg.iceberg.snapshots import report
    from topicberg.iceberg.tables import find_table

    for derived in lake.derived:
        table = find_table(catalog, lake.table(derived).identifier)
        head = table.current_snapshot() if table else None
        if head is None or not report(head).total_records:
            return True
    return False


def _range_from(topic: TopicSpec, hour: int) -> dict[str, str]:
    """Return the tags of the partitions from an hour (since 1970) until now."""
    from topicberg.orchestration.assets.partitions import (
        RANGE_END,
        RANGE_START,
        partition_key,
        partition_keys,
        time_partitions,
    )

    partitions, now = time_partitions(topic), datetime.now(UTC)
    start = partition_keys(partitions, [range(hour, hour + 1)], now)
    return {RANGE_START: min(start), RANGE_END: partition_key(partitions, now)}


def _all_hours(lake: Lake, config: Settings, endpoints: Endpoints) -> dict[str, set[int]]:
    """Return the hours (since 1970) with records of each append-only topic that has a table."""
    from topicberg.iceberg.snapshots import affected_hours
    from topicberg.iceberg.summaries import ancestry
    from topicberg.iceberg.tables import find_table

    catalog = endpoints.catalog(config)
    return {
        spec.name: {
            hours.start
            for snapshot in ancestry(table)
            for hours in affected_hours(table, snapshot, spec.event_time)
        }
        for spec in (table.root for table in lake.tables if table.reported)
        if spec.write_mode == "append"
        and (table := find_table(catalog, spec.table_identifier(config)))
    }
