"""A table of the lake, an asset of it as an operation of its own, and what runs are for."""

# Dagster reads the annotations of an operation's function: no `from __future__ import annotations`.
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from topicberg.checks.check import CheckedTable
from topicberg.errors import safe
from topicberg.errors.meaning import classify, to_report
from topicberg.orchestration.catalogs.catalog import pool_of, systems
from topicberg.orchestration.resources import Lakehouse, Snowflake
from topicberg.topics import TopicSpec

KIND = "topicberg/kind"  # Tag of runs: what they are for.
REGISTRATION, COMPUTATION = "registration", "computation"  # Kinds of runs that sensors request.
NOT_RETRIED = {"dagster/max_retries": "0"}
"""Tag of runs that a sensor requests again if they fail: else Dagster would also start a killed one
again, and both would compute the same."""


@dataclass(frozen=True)
class LakeTable(CheckedTable):
    """A table as Dagster shows it: in which group, and who looks after it."""

    group: str
    owners: tuple[str, ...] = ()

    def key(self, system: str) -> dg.AssetKey:
        return dg.AssetKey([system, self.name])


def kafka_key(spec: TopicSpec) -> dg.AssetKey:
    """The topic itself."""
    return dg.AssetKey(["kafka", spec.asset_name])


def operation_name(key: dg.AssetKey) -> str:
    """Return the name of the operation, and so of the step, that is for this asset only."""
    return "__".join(key.path)


def priority(number: int) -> dict[str, str]:
    """Return the tags of a step: a run executes the one with the greatest number first.
    https://docs.dagster.io/guides/operate/managing-concurrency/run-priority"""
    return {"dagster/priority": str(number)}


@contextmanager
def retried() -> Iterator[None]:
    """Retry what a retry may resolve: ``@retried()`` for functions of assets, checks and ops. A
    retry policy of Dagster would also repeat what can only fail again, such as a wrong spec."""
    try:
        yield
    except Exception as error:
        kind = classify(error)
        if kind is None:
            raise safe(to_report(error))  # noqa: B904  a cause would show what was taken out
        context = dg.OpExecutionContext.get()
        wait = kind.wait(context.retry_number)
        if context.retry_number < kind.retries:
            context.log.warning(f"{kind.name}, retrying in {wait:.0f} s: {safe(error)}")
        raise dg.RetryRequested(kind.retries, wait) from safe(to_report(error))


def own_operation(
    spec: dg.AssetSpec,
    work: Callable[[dg.AssetExecutionContext, Lakehouse, Snowflake], dg.MaterializeResult],
) -> dg.AssetsDefinition:
    """Return an asset as an operation of its own."""
    system = spec.key.path[0]

    @dg.multi_asset(
        name=operation_name(spec.key),
        specs=[spec],
        pool=pool_of(system),
        # A table reaches the last catalog before the next one is computed, not after all of them; 0
        # and 1 are computations.
        op_tags=priority(2 + systems().index(system)),
    )
    @retried()
    def materialize(
        context: dg.AssetExecutionContext,
        topicberg_lakehouse: Lakehouse,
        topicberg_snowflake: Snowflake,
    ) -> dg.MaterializeResult:
        return work(context, topicberg_lakehouse, topicberg_snowflake)

    return materialize


def is_computation_of_sensor(tags: Mapping[str, str]) -> bool:
    """Return whether a sensor requested a run to compute partitions, and no user did."""
    return tags.get(KIND) == COMPUTATION
