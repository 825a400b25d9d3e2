"""A run brings one table to Snowflake before it computes the next one."""

from __future__ import annotations

import dagster as dg
from memory_instance import memory_instance

from topicberg.dagster.executor import EXECUTOR
from topicberg.orchestration.assets.tables import own_operation, priority
from topicberg.orchestration.resources import RESOURCES, Lakehouse, Snowflake

TABLES = ("flagged", "totals")


def work(
    context: dg.AssetExecutionContext, _lakehouse: Lakehouse, _snowflake: Snowflake
) -> dg.MaterializeResult:
    return dg.MaterializeResult()


def assets_of(name: str) -> list[dg.AssetsDefinition]:
    """Return the four assets of a derived table that is also a topic."""

    @dg.asset(key=["iceberg", name])
    def compute() -> None: ...

    @dg.asset(key=["kafka", name], deps=[["iceberg", name]], op_tags=priority(-1))
    def publish() -> None: ...

    glue = dg.AssetSpec(["glue", name], deps=[["iceberg", name]])
    snowflake = dg.AssetSpec(["snowflake", name], deps=[["glue", name]])
    return [publish, compute, *(own_operation(spec, work) for spec in (snowflake, glue))]


def test_run_of_two_tables_registers_the_first_before_it_computes_the_second() -> None:
    assets = [asset for name in TABLES for asset in assets_of(name)]
    defs = dg.Definitions(assets=assets, resources=RESOURCES, executor=EXECUTOR)
    with memory_instance() as instance:
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    order = ["/".join(e.asset_key.path) for e in result.get_asset_materialization_events()]
    first, second = (order[number].partition("/")[2] for number in (0, 3))
    assert {first, second} == {*TABLES}
    assert order[:6] == [
        f"{system}/{name}"
        for name in (first, second)
        for system in ("iceberg", "glue", "snowflake")
    ]
    assert sorted(order[6:]) == ["kafka/flagged", "kafka/totals"]
