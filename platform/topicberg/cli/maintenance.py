"""``topicberg tableflow maintain``: runs maintenance once, manually."""

from __future__ import annotations

from typing import Annotated

import typer

from topicberg.cli.lazy import load_endpoints, settings
from topicberg.errors import TopicbergError


def maintain(
    topic: Annotated[str, typer.Argument(help="name of the topic")],
    now: Annotated[
        bool, typer.Option("--now", help="compact and look for orphan files without waiting")
    ] = False,
) -> None:
    """Compact the topic's table, expire its snapshots and rows, remove orphan files, as due.

    Safe beside the engine and its own maintenance.
    """
    from dataclasses import replace
    from datetime import timedelta

    from pyiceberg.exceptions import NoSuchTableError
    from rich.console import Console
    from rich.table import Table

    from topicberg.iceberg.maintenance import maintain as run
    from topicberg.iceberg.maintenance import topic_policy
    from topicberg.topics import load_topic

    config = settings()
    spec = load_topic(topic, config)
    policy = topic_policy(spec)
    if now:
        policy = replace(policy, compact_after=timedelta(0), daily=timedelta(0))
    try:
        report = run(spec, load_endpoints(config), config, policy)
    except NoSuchTableError:
        raise TopicbergError(
            f"topic {topic} has no table yet",
            hint=f"run `topicberg tableflow run {topic} --once` to create it",
        ) from None
    table = Table("", "before", "after", title=f"{report.table}, {report.seconds:.1f} s")
    for name in ("data_files", "delete_files", "bytes", "rows", "snapshots"):
        before, after = getattr(report.before, name), getattr(report.after, name)
        table.add_row(name.replace("_", " "), f"{before:,}", f"{after:,}")
    console = Console()
    console.print(table)
    done = [f"{count:,} {what}" for what, count in report.counts.items() if count]
    console.print(", ".join(done).replace("_", " ") or "nothing was due")
    for what in report.postponed:
        console.print(f"{what}: other commits came first, the next run does it")
