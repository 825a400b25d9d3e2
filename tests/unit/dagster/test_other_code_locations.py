"""A code location, and an instance of Dagster, that also have what is not topicberg's."""

from __future__ import annotations

import dagster as dg

import topicberg
from topicberg.orchestration import Lakehouse, Spark
from topicberg.orchestration.resources import RESOURCES


class Warehouse(dg.ConfigurableResource):
    """A resource of the company."""


@dg.asset
def report(spark: Warehouse, topicberg_spark: Spark, topicberg_lakehouse: Lakehouse) -> str:
    """Use the company's resource beside those of topicberg."""
    kinds = (type(one).__name__ for one in (spark, topicberg_spark, topicberg_lakehouse))
    return " ".join(kinds)


def test_definitions_merge_beside_resources_of_the_same_names() -> None:
    own = dg.Definitions(
        assets=[report],
        resources={"spark": Warehouse(), "lakehouse": Warehouse(), "snowflake": Warehouse()},
    )
    merged = dg.Definitions.merge(topicberg.definitions(), own)
    resources = merged.get_repository_def().get_top_level_resources()
    assert {"spark", "lakehouse", "snowflake", *RESOURCES} <= set(resources)
    with dg.DagsterInstance.ephemeral() as instance:
        ran = merged.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, asset_selection=[report.key]
        )
    assert ran.output_for_node("report") == "Warehouse Spark Lakehouse"
