"""Runs of the asset graph in the process of a command, which waits for them."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    import dagster as dg

    from assets import Lake
    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings
    from topicberg.topics import TopicSpec

TOPIC = "stock_trades"
TOTALS = "stock_trades_with_totals"
_QUIET: Mapping[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def load_lake(config: Settings) -> Lake:
    """Return all topics and derived tables."""
    from assets import Lake, find_derived
    from topicberg.topics import load_topics

    return Lake(config, tuple(load_topics(config)), tuple(find_derived()))


class Workers:
    """Processes that run assets, those that do not depend on each other at the same time.

    They load the definitions of the assets at once, while the caller starts the stack. Threads of
    one process cannot run assets: Dagster configures logging for each run, for the whole process.
    """

    def __init__(self, config: Settings, count: int = 2) -> None:
        from topicberg.dagster import LIBRARIES

        context = get_context("forkserver")
        context.set_forkserver_preload([__name__, *LIBRARIES])
        self._config = config
        self._pool = ProcessPoolExecutor(count, context, _end_on_interrupt)
        for _ in range(count):
            self._pool.submit(_load, config)

    def materialize(self, since: datetime) -> list[CheckResult]:
        """Run every pipeline on the records since then; return its checks.

        :raises TopicbergError: a run failed
        """
        try:
            plan = self._pool.submit(_planned_runs, self._config, since).result()
            futures = [self._pool.submit(_run, self._config, each) for each in plan]
            return [check for future in futures for check in future.result()]
        except BrokenProcessPool:
            raise TopicbergError(
                "a process that ran assets was killed",
                hint="free some memory: the whole stack and two such processes need about 6 GB",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


class CheckResult(NamedTuple):
    """What came of a check."""

    name: str
    passed: bool
    description: str


class _Assets(NamedTuple):
    """Assets of a job that one run computes."""

    job: str
    keys: tuple[str, ...]
    tags: dict[str, str]


def _end_on_interrupt() -> None:
    """End without a message at Ctrl-C, which all processes of a terminal get; runs are canceled."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _load(config: Settings) -> None:
    with suppress(TopicbergError), _instance(config):
        import definitions  # noqa: F401


def _planned_runs(config: Settings, since: datetime) -> list[_Assets]:
    """Return what to run, the largest one first."""
    from topicberg.endpoints import load_endpoints

    lake, endpoints, found = load_lake(config), load_endpoints(config), list[_Assets]()
    with _instance(config):
        from definitions import defs
        from jobs import everything

        for name, topic in everything(lake).items():
            tags = _partition_range(topic, lake, config, endpoints, since) if topic else {}
            for keys in _independent(defs.resolve_job_def(name)):
                texts = sorted(key.to_user_string() for key in keys)
                found.append(_Assets(name, tuple(texts), tags))
    return sorted(found, key=lambda each: -len(each.keys))


def _run(config: Settings, assets: _Assets) -> list[CheckResult]:
    """:raises TopicbergError: the run failed"""
    with _instance(config) as instance:
        import dagster as dg

        from definitions import defs

        result = defs.resolve_job_def(assets.job).execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey.from_user_string(key) for key in assets.keys],
            tags=assets.tags,
            run_id=str(uuid.uuid4()),
            raise_on_error=False,
            run_config=_QUIET,
        )
        _raise_failure(result, assets.job)
        return [
            CheckResult(
                f"{e.asset_key.to_user_string()} {e.check_name}", e.passed, e.description or ""
            )
            for e in result.get_asset_check_evaluations()
        ]


def _independent(job: dg.JobDefinition) -> Iterator[set[dg.AssetKey]]:
    """Yield the assets of a job in groups that do not depend on each other."""
    layer = job.asset_layer
    left = set(layer.selected_asset_keys)
    while left:
        group: set[dg.AssetKey] = set()
        new = {left.pop()}
        while new:
            group |= new
            nodes = [layer.asset_graph.get(key) for key in new]
            new = left & {key for each in nodes for key in each.parent_keys | each.child_keys}
            left -= new
        yield group


def materialize_derived(
    config: Settings, endpoints: Endpoints, waiting: set[str], only: set[str] | None = None
) -> list[str]:
    """Compute derived tables up to now and register them in Glue and Snowflake.

    Not upsert views, published topics and checks of data, which need Spark Connect.

    :param waiting: topics that have no table yet; what is derived from them is left out
    :param only: names of the tables; None: all
    :returns: the names of the tables
    :raises TopicbergError: a run failed
    """
    lake, computed = load_lake(config), []
    hours = _all_hours(lake, config, endpoints)
    with _instance(config) as instance:
        import dagster as dg

        from assets.tables import CATALOGS
        from definitions import defs

        derived = lake.derived_by_name
        order = TopologicalSorter({name: derived[name].sources for name in sorted(derived)})
        for table in [derived[name] for name in order.static_order() if name in derived]:
            root = lake.root(table)
            if root.name in waiting or not hours.get(root.name):
                continue
            if only is not None and table.name not in only:
                continue
            keys = [lake.table(table).key(system) for system in CATALOGS]
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
def _instance(config: Settings) -> Iterator[dg.DagsterInstance]:
    """Yield the deployment's Dagster, for definitions that are loaded afterwards."""
    from topicberg.dagster.home import dagster_home

    os.environ["DAGSTER_HOME"] = str(dagster_home(config))
    os.chdir(config.project_root)

    import dagster as dg

    with dg.DagsterInstance.get() as instance:
        yield instance


def _raise_failure(result: dg.ExecuteInProcessResult, what: str) -> None:
    if result.success:
        return
    reason = "see its log"
    for event in result.all_events:
        if event.is_step_failure:
            failure: Any = event.step_failure_data
            error = failure.error.cause or failure.error
            reason = f"{event.step_key}: {error.message.strip().splitlines()[0]}"
            break
    raise TopicbergError(
        f"{what}: run {result.run_id} failed: {reason}",
        hint="run `topicberg ui` to see the run, and materialize it again there",
    )


def _partition_range(
    topic: TopicSpec, lake: Lake, config: Settings, endpoints: Endpoints, since: datetime
) -> dict[str, str]:
    """Return the partition tags of all records since then, and of hours never computed.

    :param topic: defines the partitions
    """
    first = min([int(since.timestamp()) // 3600, *_uncomputed_hours(lake, config, endpoints)])
    return _range_from(topic, first)


def _range_from(topic: TopicSpec, hour: int) -> dict[str, str]:
    """Return the tags of the partitions from an hour (since 1970) until now."""
    from assets.partitions import (
        RANGE_END,
        RANGE_START,
        partition_key,
        partition_keys,
        time_partitions,
    )

    partitions, now = time_partitions(topic), datetime.now(UTC)
    start = partition_keys(partitions, [range(hour, hour + 1)], now)
    return {RANGE_START: min(start), RANGE_END: partition_key(partitions, now)}


def _uncomputed_hours(lake: Lake, config: Settings, endpoints: Endpoints) -> set[int]:
    """Return all hours (since 1970) with records if a derived table is missing, or lacks some.

    That is the case after a killed run, and for a new derived table.
    """
    from pyiceberg.exceptions import NoSuchTableError

    from topicberg.iceberg.snapshots import report

    catalog = endpoints.catalog(config)

    def rows(identifier: tuple[str, str]) -> int:
        try:
            head = catalog.load_table(identifier).current_snapshot()
        except NoSuchTableError:
            return 0
        return report(head).total_records if head else 0

    trades, totals = (rows(lake.origin(name).identifier) for name in (TOPIC, TOTALS))
    if trades == totals and all(rows(lake.table(each).identifier) for each in lake.derived):
        return set()
    return {hour for hours in _all_hours(lake, config, endpoints).values() for hour in hours}


def _all_hours(lake: Lake, config: Settings, endpoints: Endpoints) -> dict[str, set[int]]:
    """Return the hours (since 1970) with records of each append-only topic that has a table."""
    from topicberg.iceberg.snapshots import affected_hours
    from topicberg.iceberg.summaries import ancestry

    catalog = endpoints.catalog(config)
    return {
        spec.name: {
            hours.start
            for snapshot in ancestry(table)
            for hours in affected_hours(table, snapshot, spec.event_time)
        }
        for spec in (table.root for table in lake.tables if table.reported)
        if spec.write_mode == "append" and catalog.table_exists(spec.table_identifier(config))
        for table in [catalog.load_table(spec.table_identifier(config))]
    }
