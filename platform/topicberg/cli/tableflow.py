"""``topicberg tableflow``: the engine's state, and one run of it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from topicberg.cli.maintenance import maintain

Topic = Annotated[str, typer.Argument(help="name of the topic")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Topics into Iceberg tables.", no_args_is_help=True)
    group.command("run")(run)
    group.command("status")(status)
    group.command("maintain")(maintain)
    app.add_typer(group, name="tableflow")


def run(
    topic: Topic,
    once: Annotated[
        bool, typer.Option("--once", help="stop when everything the topic holds now is committed")
    ] = False,
) -> None:
    """Materialize a topic in the foreground.

    Safe beside the stack's own engine: whoever commits second plans its batch again.
    """
    import logging
    import threading

    from topicberg.endpoints import load_endpoints
    from topicberg.settings import settings
    from topicberg.tableflow.engine import run_once
    from topicberg.tableflow.service import Worker
    from topicberg.topics import load_topic

    config = settings()
    spec, endpoints = load_topic(topic, config), load_endpoints(config)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("topicberg").setLevel(logging.INFO)
    if once:
        done = run_once(spec, endpoints, config)
        typer.echo(f"{topic}: {done.records} records committed, snapshot {done.snapshot_id}")
        return
    worker = Worker(spec, endpoints, config)
    worker.start()
    try:
        threading.Event().wait()
    finally:
        worker.stop()


def status(
    topic: Annotated[str | None, typer.Argument(help="one topic; all by default")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Phase, last commit and error of each topic, in the words of Confluent's API."""
    from rich.console import Console
    from rich.table import Table

    from topicberg.settings import settings
    from topicberg.tableflow.status import read_status
    from topicberg.topics import load_topic, load_topics

    config = settings()
    specs = [load_topic(topic, config)] if topic else load_topics(config)
    states = [read_status(config, spec.name) for spec in specs]
    if as_json:
        typer.echo(json.dumps([state.model_dump() for state in states], indent=2))
        return
    table = Table("topic", "phase", "suspended", "records", "commits", "snapshot", "error")
    for state in states:
        table.add_row(
            state.topic,
            state.phase,
            "yes" if state.suspended else "no",
            f"{state.rows_committed:,}",
            str(state.commits),
            str(state.snapshot_id or ""),
            state.error_message or "",
        )
    Console().print(table)
