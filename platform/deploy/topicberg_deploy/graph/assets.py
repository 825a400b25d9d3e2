"""The cloud platform as assets: their graph is the resource graph of ``topicberg deploy``.

One operation creates what is selected, so that resources which do not need each other are created
at the same time, as on the command line, and a lease prevents two operations at once.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from topicberg.orchestration.assets.metadata import documentation
from topicberg.settings import Settings
from topicberg.topics import TopicSpec
from topicberg_deploy import engine
from topicberg_deploy.context import open_context
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Resource, Step

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
        from topicberg_deploy.lock import exclusive

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
                kinds={_KINDS[Path(resource.key).parts[0]]},
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
    """Return what the UI shows.

    :param place: where Tableflow has the table of a topic
    """
    return {
        **({"table_path": dg.MetadataValue.path(place)} if place else {}),
        "id": identity,
        "action": step.action.value,
        "changes": "\n".join(step.lines()) or "none",
    }
