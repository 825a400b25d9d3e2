"""Assets of many topics in a few operations, so that a fleet of topics loads in seconds.

Dagster needs milliseconds for each operation: when the project is loaded, for each job that has it,
and in every run. So the topics of a pipeline share operations: one to observe topics, and one for
each system of their tables. Each asset keeps its key, its checks and its button in the UI.

What one operation for each asset would give is done here instead:

- an asset that fails stops no other of its step. The step fails at its end, and names what failed;
- a failure that a retry may resolve is retried for the assets that have it, see
  :mod:`topicberg.errors.meaning`;
- an asset whose parent failed in the same run is left out. Between these operations are no
  dependencies, which would leave out all of a step: priorities order them. This needs an executor
  that runs the steps of a run in one process, one after the other.

A table shares operations if no step of a run waits for it (:meth:`.assets.registry.Table.
is_independent`): nothing is computed from it, and it has no blocking rules.
"""

# Dagster reads the annotations of an operation's function: no `from __future__ import annotations`.

import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import dagster as dg

from topicberg.checks.check import TableCheck
from topicberg.errors import TopicbergError, safe, split_hint
from topicberg.errors.meaning import classify, to_report
from topicberg.orchestration.assets.lake import Lake
from topicberg.orchestration.assets.registry import Table
from topicberg.orchestration.assets.tables import kafka_key, operation_name, priority
from topicberg.orchestration.assets.topics import kafka_spec, observe
from topicberg.orchestration.catalogs.catalog import ICEBERG, catalogs, pool_of, systems
from topicberg.orchestration.checks.adapter import check_specs, evaluation
from topicberg.orchestration.resources import Lakehouse, Snowflake
from topicberg.topics import TopicSpec
from topicberg.wording import count

AT_ONCE = 8  # Tables that a step registers at once: most of the time is waiting for the vendor.
SHARED_BY = 50
"""Topics of one operation, at most on average. More would cost each run that needs one of them."""
MAX_SHOWN = 5  # Failed assets that the error of a step names.

_OPTIONAL = dg.Out(dg.Nothing, is_required=False)  # What a run may leave out, or fails to do.

Event = TypeVar("Event")
Task = Callable[[], Event]
_failed: dict[str, set[dg.AssetKey]] = {}
"""Run → assets that it has not materialized, because they or their parents failed."""


def shared_assets(lake: "Lake") -> Iterator[dg.AssetsDefinition]:
    """Return the topics in Kafka, and the tables that share operations, with their checks."""
    topics = {spec.name: spec for spec in lake.topics if not spec.publishes}
    for name, share in share_out((spec.pipeline, spec.name) for spec in topics.values()):
        yield _observation(f"kafka_{name}", [topics[topic] for topic in share])
    parts = {
        (system, table.name): Part(table, system, checks)
        for table, system, checks in lake.checks
        if table.is_independent(lake)
    }
    tables = (part.table for (system, _), part in parts.items() if system == ICEBERG)
    for name, share in share_out((table.group, table.name) for table in tables):
        for system in systems():
            chosen = [parts[system, table] for table in share]
            yield _materialization(f"{system}_{name}", system, chosen)


def share_out(grouped: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Return the end of each operation's name, such as ``of_shop``, and its members. A member stays
    in its operation when others are added, until the number of operations doubles."""
    groups = defaultdict[str, list[str]](list)
    for group, name in grouped:
        groups[group].append(name)
    for group, members in sorted(groups.items()):
        parts = 1 << ((len(members) - 1) // SHARED_BY).bit_length()
        shares = defaultdict[int, list[str]](list)
        for name in members:
            shares[zlib.crc32(name.encode()) % parts].append(name)
        for number, share in sorted(shares.items()):
            yield (f"of_{group}" if parts == 1 else f"{number}_of_{group}"), share


def _observation(name: str, specs: Sequence[TopicSpec]) -> dg.AssetsDefinition:
    def observation(
        context: dg.AssetExecutionContext, topicberg_lakehouse: Lakehouse
    ) -> Iterator[dg.ObserveResult]:
        work = {
            key: iter([partial(observe, spec, topicberg_lakehouse)])
            for spec in specs
            if (key := kafka_key(spec)) in context.selected_asset_keys
        }
        raise_failures((yield from isolated(work, context.log)))

    observed: dg.AssetsDefinition = dg.multi_observable_source_asset(
        name=name, specs=[*map(kafka_spec, specs)], can_subset=True
    )(observation)
    return observed


@dataclass(frozen=True)
class Part:
    """One asset of an operation, and its checks."""

    table: Table
    system: str
    checks: Sequence[TableCheck]

    @property
    def key(self) -> dg.AssetKey:
        return self.table.key(self.system)

    def spec(self) -> dg.AssetSpec:
        is_iceberg = self.system == ICEBERG
        return self.table.iceberg_spec() if is_iceberg else catalogs()[self.system].spec(self.table)

    def materialize(
        self, context: dg.AssetExecutionContext, lakehouse: Lakehouse, snowflake: Snowflake
    ) -> dg.MaterializeResult:
        if self.system == ICEBERG:
            return self.table.materialize(context, lakehouse)
        return catalogs()[self.system].register(self.table, lakehouse, snowflake)


def _materialization(name: str, system: str, parts: Sequence[Part]) -> dg.AssetsDefinition:
    """Return assets of one system, and their checks, as one operation."""
    specs = {operation_name(part.key): part.spec() for part in parts}
    checks = {
        f"{operation_name(spec.asset_key)}_{spec.name}": spec
        for part in parts
        for spec in check_specs(part.table, system, part.checks)
    }

    @dg.op(
        name=name,
        out=dict.fromkeys((*specs, *checks), _OPTIONAL),
        pool=pool_of(system),
        tags=priority(len(systems()) - systems().index(system)),  # parents first
    )
    def materialization(
        context: dg.AssetExecutionContext,
        topicberg_lakehouse: Lakehouse,
        topicberg_snowflake: Snowflake,
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        clients = topicberg_lakehouse, topicberg_snowflake
        requested = {part.key for part in parts} & context.selected_asset_keys
        # Waiting for the engine can take long, and only the main thread can be interrupted.
        at_once = 1 if system == ICEBERG and requested else AT_ONCE
        evaluated = context.selected_asset_check_keys
        failed_before = _failed.setdefault(context.run_id, set())

        def tasks(part: Part) -> Iterator[Task[dg.MaterializeResult | dg.AssetCheckResult]]:
            if part.key in requested:
                yield lambda: part.materialize(context, *clients)
                requested.remove(part.key)
            evaluate = evaluation(context, part.table, system, *clients)
            for check in part.checks:
                if dg.AssetCheckKey(part.key, check.name) in evaluated:
                    yield partial(evaluate, check)

        work = {}
        for part, spec in zip(parts, specs.values(), strict=True):
            parents = failed_before.intersection(dep.asset_key for dep in spec.deps)
            if parents and part.key in requested:
                names = ", ".join(parent.to_user_string() for parent in parents)
                context.log.warning(f"{part.key.to_user_string()}: left out, as {names} failed")
            else:
                work[part.key] = tasks(part)
        failed = yield from isolated(work, context.log, at_once)
        failed_before |= requested  # what is left of them
        raise_failures(failed)

    return dg.AssetsDefinition(
        node_def=materialization,
        keys_by_output_name={output: spec.key for output, spec in specs.items()},
        specs=list(specs.values()),
        check_specs_by_output_name=checks,
        can_subset=True,
    )


class _Progress(Generic[Event]):
    """The tasks of one asset, in order; after a failure, they continue with the one that failed."""

    def __init__(self, tasks: Iterator[Task[Event]]) -> None:
        self.retries = 0
        self._tasks = tasks
        self._task: Task[Event] | None = None

    def outcome(self) -> tuple[list[Event], Exception | None]:
        """Return what the tasks return that are left, and why one of them failed."""
        events: list[Event] = []
        try:
            while task := self._task or next(self._tasks, None):
                self._task = task
                events.append(task())
                self._task = None
        except Exception as error:
            return events, error
        return events, None


def _outcomes(
    left: Mapping[dg.AssetKey, _Progress[Event]], at_once: int
) -> Iterator[tuple[dg.AssetKey, list[Event], Exception | None]]:
    """Yield each asset with what its tasks return, and why one of them failed."""
    if at_once == 1:
        for key, progress in left.items():
            yield key, *progress.outcome()
        return
    pool = ThreadPoolExecutor(at_once, "assets")
    try:
        running = {pool.submit(progress.outcome): key for key, progress in left.items()}
        for future in as_completed(running):
            yield running[future], *future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def isolated(
    work: Mapping[dg.AssetKey, Iterator[Task[Event]]], log: dg.DagsterLogManager, at_once: int = 1
) -> Generator[Event, None, dict[dg.AssetKey, BaseException]]:
    """Yield what the tasks of all assets return, and return why those of others failed. The tasks
    of an asset are retried after those of the others, as :func:`.tables.retried` does."""
    failed: dict[dg.AssetKey, BaseException] = {}
    left = {key: _Progress(tasks) for key, tasks in work.items()}
    while left:
        again: dict[dg.AssetKey, _Progress[Event]] = {}
        wait = 0.0
        for key, events, error in _outcomes(left, at_once):
            yield from events
            if error is None:
                continue
            name, progress, kind = key.to_user_string(), left[key], classify(error)
            if kind is not None and progress.retries < kind.retries:
                wait = max(wait, kind.wait(progress.retries))
                progress.retries += 1
                again[key] = progress
                log.warning(f"{name}: {kind.name}, retrying: {safe(error)}")
            else:
                failed[key] = safe(to_report(error))
                log.error(f"{name} failed", exc_info=failed[key])
        left = again
        if left:
            log.info(f"retrying {count(len(left), 'asset')} in {wait:.0f} s")
            time.sleep(wait)
    return failed


def raise_failures(failed: Mapping[dg.AssetKey, BaseException]) -> None:
    """:raises TopicbergError: anything failed; with the hint of the first one that has a hint"""
    if not failed:
        return
    texts, hints = [], []
    for key, error in failed.items():
        message, hint = split_hint(str(error))
        kind = "" if isinstance(error, TopicbergError) else f"{type(error).__name__}: "
        texts.append(f"{key.to_user_string()}: {kind}{message}")
        hints.append(hint)
    more = len(texts) - MAX_SHOWN
    shown = [*texts[:MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    raise TopicbergError("; ".join(shown), hint=next(filter(None, hints), None))
