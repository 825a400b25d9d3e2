"""What this package adds to the graph: the platform as assets, whose graph is the resource graph of
``topicberg deploy``, and the rotation of its keys, which is checked every night.

One operation creates what is selected, so that resources which do not need each other are created
at the same time, as on the command line, and a lease prevents two operations at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from topicberg.dagster.executor import EXECUTOR
from topicberg.orchestration import Lake
from topicberg.orchestration.assets.metadata import documentation
from topicberg.orchestration.assets.tables import KIND
from topicberg.settings import Settings
from topicberg.topics import TopicSpec
from topicberg_deploy import engine
from topicberg_deploy.context import open_context
from topicberg_deploy.lock import exclusive
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Resource, Step
from topicberg_deploy.rotate import rotate

PLATFORM = "platform"
WAIT_SECONDS = 30 * 60.0
"""How long a run waits for another deploy."""
_KINDS = {"confluent": "confluent", "key": "confluent", "aws": "aws", "snowflake": "snowflake"}


def asset_key(key: str) -> dg.AssetKey:
    return dg.AssetKey([PLATFORM, *key.split("/")])


def platform_assets(config: Settings, specs: Sequence[TopicSpec]) -> list[dg.AssetsDefinition]:
    """Return the platform as assets, which only a cloud deployment has.

    Locally there is nothing to materialize: ``topicberg deploy`` creates them in the emulators.
    """
    return [deployed_assets(config, specs)] if config.deployment == "cloud" else []


def deployed_assets(config: Settings, specs: Sequence[TopicSpec]) -> dg.AssetsDefinition:
    """Return every resource as an asset that can be materialized by itself."""
    described = _specs(config, specs)
    graph = {spec.key: resource for resource, spec in described}

    @dg.multi_asset(
        name=PLATFORM, specs=[spec for _, spec in described], can_subset=True, pool=PLATFORM
    )
    def make(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult]:
        deployment = open_context(Settings())
        chosen = [resource for key, resource in graph.items() if key in context.selected_asset_keys]
        with exclusive(deployment, WAIT_SECONDS):
            looked_at = engine.with_needs(chosen, graph.values())
            steps = {step.resource.key: step for step in engine.plan(looked_at, deployment)}
            engine.create(
                chosen,
                deployment,
                lambda resource, progress: context.log.info("%s: %s", progress, resource.title),
            )
        for resource in engine.in_order(chosen):
            if resource.key in deployment.waiting:
                continue
            live = deployment.need(resource.key)
            yield dg.MaterializeResult(
                asset_key=asset_key(resource.key),
                metadata=_metadata(steps[resource.key], live.id, live.facts.get("table_path")),
            )

    return make


def _specs(config: Settings, specs: Sequence[TopicSpec]) -> list[tuple[Resource, dg.AssetSpec]]:
    """Return the wanted resources with their assets, which depend on wanted resources only."""
    wanted = {
        resource.key: resource for resource in resources(config, list(specs)) if resource.wanted
    }
    owners = sorted({owner for spec in specs for owner in spec.owners})
    nodes = {key: dg.AssetDep(asset_key(key)) for key in wanted}
    return [
        (
            resource,
            dg.AssetSpec(
                nodes[resource.key].asset_key,
                deps=[nodes[key] for key in resource.needs if key in nodes],
                group_name=PLATFORM,
                kinds={_KINDS[resource.key.partition("/")[0]]},
                owners=owners,
                metadata=documentation("cloud.md"),
                skippable=True,  # one that waits, e.g. for a topic's first record
                description=f"{resource.title}. `topicberg deploy` finds it by its name, and "
                "creates or updates it.",
            ),
        )
        for resource in wanted.values()
    ]


def _metadata(step: Step, identity: str, place: str | None) -> dict[str, Any]:
    """Return what the UI shows; the place is where Tableflow has the table of a topic."""
    return {
        **({"table_path": dg.MetadataValue.path(place)} if place else {}),
        "id": identity,
        "action": step.action.value,
        "changes": "\n".join(step.lines()) or "none",
    }


@dg.op(retry_policy=dg.RetryPolicy(max_retries=2, delay=300))
def rotate_due_keys(context: dg.OpExecutionContext) -> int:
    """Rotate what ``TOPICBERG_DAY_COUNT`` says is due. Returns how many keys were."""
    deployment = open_context(Settings())
    graph = resources(deployment.config, deployment.specs)
    with exclusive(deployment, WAIT_SECONDS):
        return rotate(graph, deployment, context.log.info)


@dg.job(
    tags={KIND: "rotation"},
    executor_def=EXECUTOR,
    description="Rotates every key that is due; the keys before stay alive for a period.",
)
def rotate_keys() -> None:
    rotate_due_keys()


def rotation_schedule(config: Settings) -> dg.ScheduleDefinition:
    """Every night, not at the minute of the workflow of CI; in the local deployment it is off."""
    in_cloud = config.deployment == "cloud"
    status = dg.DefaultScheduleStatus.RUNNING if in_cloud else dg.DefaultScheduleStatus.STOPPED
    return dg.ScheduleDefinition(
        job=rotate_keys, cron_schedule="47 4 * * *", execution_timezone="UTC", default_status=status
    )


def definitions(lake: Lake) -> dg.Definitions:
    """Return the assets of the platform, and the schedule that rotates its keys."""
    return dg.Definitions(
        assets=platform_assets(lake.config, lake.topics), schedules=[rotation_schedule(lake.config)]
    )
