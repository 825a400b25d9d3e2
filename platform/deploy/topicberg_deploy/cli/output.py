"""What ``topicberg deploy`` prints: plans, previews, states, progress."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from topicberg.cli.output import cell, echo, load_lake, print_table, warn

if TYPE_CHECKING:
    from topicberg.settings import Settings
    from topicberg.topics import TopicSpec
    from topicberg.topics.loader import Problem
    from topicberg_deploy.context import DeployContext
    from topicberg_deploy.costs import Cost
    from topicberg_deploy.resource import Live, Resource, Step


def list_kept(context: DeployContext) -> None:
    """List what exists and is not deleted, since nothing shows that it is topicberg's."""
    if echo_section(
        "These resources stay: `create` did not create them, or the record of that is lost:",
        (f"{title} ({key})" for key, title in context.kept.items()),
    ):
        echo("To delete one of them as well, add --also with its key.")


def list_unseen(context: DeployContext) -> None:
    """List what was created and is not found."""
    echo_section(
        "`create` created these, and they do not exist any more, or this login cannot see them. "
        "They are forgotten, so that no later `delete` deletes them:",
        (f"{title} ({key})" for key, title in context.unseen.items()),
    )


def list_waiting(context: DeployContext) -> None:
    for reason, count in Counter(context.waiting.values()).items():
        echo(f"{count} wait {reason}: run `topicberg deploy create` again after that")


def announce_generators(graph: list[Resource]) -> None:
    from topicberg_deploy.confluent.connect import Connector

    topics = ", ".join(
        f"{generator.topic} "
        f"({f'{generator.rate:g} a second' if generator.rate else 'as fast as it can'})"
        for generator in graph
        if isinstance(generator, Connector) and generator.wanted
    )
    if topics:
        echo(
            f"generators write records to {topics} until they are deleted; --no-generators: "
            "without them",
            err=True,
        )


def step_document(context: DeployContext | None, step: Step) -> dict[str, Any]:
    """Return a step of a plan, for programs; without a context, the accounts were not read."""
    live_id, table_path = _ids(context, step.resource)
    return {
        "resource": step.resource.key,
        "name": step.resource.name,
        "id": live_id,
        "table_path": table_path,
        "action": step.action.value,
        "reason": step.reason,
        "changes": step.lines(),
    }


_SIGNS = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "replace": ("±", "red"),
    "delete": ("-", "red"),
    "look again": ("?", "cyan"),
    "wait": ("…", "cyan"),
    "keep": (" ", None),
}
_VENDORS = {
    "confluent": "Confluent Cloud",
    "key": "API keys, in AWS Secrets Manager",
    "aws": "AWS",
    "snowflake": "Snowflake",
}


def show_plan(steps: list[Step], *, everything: bool) -> int:
    """Print a plan, by vendor. Returns how many resources are to change."""
    counts = Counter(step.action.value for step in steps)
    shown = [step for step in steps if everything or step.reason or step.action.value != "keep"]
    shown.sort(key=lambda step: [*_VENDORS].index(_vendor(step)))
    for vendor, steps_of_vendor in groupby(shown, _vendor):
        echo(_VENDORS[vendor], bold=True)
        for step in steps_of_vendor:
            sign, color = _SIGNS[step.action.value]
            because = f" ({step.reason})" if step.reason else ""
            echo(f"{sign} {step.action.value} {step.resource.title}{because}", fg=color)
            echo(f"      {line}" for line in step.lines())
    kept, waiting = counts.pop("keep", 0), counts.pop("wait", 0)
    later = f"; {waiting} wait" if waiting else ""
    summary = ", ".join(f"{count} to {action}" for action, count in counts.items())
    state = f"{summary}; {kept}" if counts else f"nothing to do: {kept} resources"
    echo(f"{state} are up to date{later}")
    return sum(counts.values())


def list_manual_steps(context: DeployContext, graph: list[Resource]) -> None:
    """Print what people have to do in other consoles."""
    from topicberg_deploy.confluent.integrations import CatalogIntegration

    list_grants(context)
    for integration in graph:
        if isinstance(integration, CatalogIntegration) and integration.wanted:
            steps = enumerate(integration.catalog.steps(context), 1)
            title = f"to do manually in {integration.catalog.title}:"
            echo_section(title, (f"{place}. {step}" for place, step in steps))


def list_impossible(config: Settings) -> None:
    """Print what the cloud deployment refuses of the specs that the local one has."""

    if config.tableflow == "confluent":
        echo_section(
            "refused in the cloud, unless TOPICBERG_TABLEFLOW=topicberg: Confluent's Tableflow "
            "cannot do this",
            map(str, impossible_in_confluent(config)),
        )


def preview(
    config: Settings, specs: list[TopicSpec], graph: list[Resource], live: dict[str, Live]
) -> None:
    """Print what is not computed, what the whole deployment costs, and which quotas it meets.

    :param live: what exists, by key
    """
    from topicberg_deploy.costs import AS_OF
    from topicberg_deploy.platform import costs, uncomputed, usage

    missing = uncomputed(config, specs, _left_out(config))
    echo_section("not computed without TOPICBERG_SPARK_REMOTE:", missing)
    kinds: dict[str, list[Cost]] = {}
    for resource, cost in costs(graph, config, live):
        kinds.setdefault(resource.kind, []).append(cost)
    sums = {kind: sum(cost.usd for cost in some) for kind, some in kinds.items()}
    total = f"about ${sum(sums.values()):,.0f} a month"
    echo(f"{total} (order of magnitude, list prices of {AS_OF})", bold=True)
    for kind, usd in sorted(sums.items(), key=lambda item: -item[1]):
        number = f" x {len(kinds[kind])}" if len(kinds[kind]) > 1 else ""
        echo(f"  ${usd:>6,.0f}  {kind}{number}: {kinds[kind][0].basis}")
    used = {quota: units for quota, units in usage(graph, config).items() if units}
    listed = ", ".join(f"{quota.name} {units} of {quota.limit:,}" for quota, units in used.items())
    echo(f"default quotas: {listed}")
    for quota, units in used.items():
        if units > quota.limit:
            warn(
                f"warning: {units} {quota.name} pass the default quota of {quota.limit:,} of "
                f"each {quota.scope}; ask the vendor for more: https://{quota.source}"
            )


def list_grants(context: DeployContext) -> None:
    """Print the grants of AWS Lake Formation that are needed for what exists and not shown."""
    from topicberg_deploy.aws.lake_formation import manual_steps

    title = (
        "AWS Lake Formation does not show this login these grants; a data lake administrator makes "
        "those that do not exist:"
    )
    echo_section(title, manual_steps(context))


def _left_out(config: Settings) -> list[str]:
    """Return the derived tables that the graph of this deployment does not have."""
    if config.has_spark:
        return []
    from topicberg.orchestration.assets.lake import find_derived

    tables = load_lake(config).derived_by_name
    return sorted({table.name for table in find_derived()} - tables.keys())


def _vendor(step: Step) -> str:
    vendor = step.resource.key.partition("/")[0]
    return vendor if vendor in _VENDORS else "confluent"


def show_status(context: DeployContext, steps: list[Step]) -> None:
    rows = []
    for step in steps:
        remark = f"; {step.reason}" if step.reason else ""
        states = {"keep": cell(f"up to date{remark}"), "wait": cell(f"waits {step.reason}")}
        state = states.get(step.action.value, cell(step.action.value, "red"))
        ids = " ".join(filter(None, _ids(context, step.resource)))
        rows.append((step.resource.key, cell(step.resource.name), cell(ids), state))
    print_table(("resource", "name", "id", "state"), rows)


def _ids(context: DeployContext | None, resource: Resource) -> tuple[str | None, str | None]:
    """Return the id, and of a topic in Tableflow where the table is; None: there is none."""
    live = context.live.get(resource.key) if context else None
    return (live.id, live.facts.get("table_path")) if live else (None, None)


_one_at_a_time = threading.Lock()


def report(resource: Resource, event: str) -> None:
    """One line for each thing that happens; several resources are worked on at once."""
    with _one_at_a_time:
        echo(f"{event}: {resource.title}", err=True)


def echo_section(title: str, lines: Iterable[str]) -> bool:
    """Print lines under a title; without lines, nothing. Return whether there are any."""
    if shown := [*lines]:
        echo(title, bold=True)
        echo(f"  {line}" for line in shown)
    return bool(shown)


def impossible_in_confluent(config: Settings) -> list[Problem]:
    """Return what topicberg's engine does with the specs and Confluent's Tableflow cannot do: the
    problems that the cloud deployment has with the files."""
    from topicberg.topics import check_topics

    of_confluent = config.model_copy(update={"deployment": "cloud", "tableflow": "confluent"})
    own = check_topics(config)[1]
    return [problem for problem in check_topics(of_confluent)[1] if problem not in own]
