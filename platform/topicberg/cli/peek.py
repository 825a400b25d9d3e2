"""``topicberg peek``: the newest records of a topic."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from topicberg.cli.lazy import load_endpoints, settings
from topicberg.cli.output import AsJson, echo, echo_json

_MAX_CHARACTERS = 2_000


def peek(
    topic: Annotated[str, typer.Argument(help="The Kafka topic; it needs no spec.")],
    number: Annotated[int, typer.Option("-n", help="How many records.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the newest records of a topic, decoded by the schemas of the registry.

    For a malformed record, it shows the engine's reason and the record's bytes.
    """
    from topicberg.peek import newest

    config = settings()
    records = newest(topic, number, load_endpoints(config), config)
    if as_json:
        echo_json([vars(record) for record in records])
        return
    for record in records:
        place = f"partition {record.partition}, offset {record.offset}"
        schema = f", schema {record.schema_id}" if record.schema_id is not None else ""
        echo(f"{place}, {record.timestamp or 'no timestamp'}{schema}", bold=True)
        if record.problem:
            echo(f"  malformed: {record.problem}", fg="red")
        echo((f"  {note}" for note in record.notes), fg="yellow")
        echo(f"  key    {_shown(record.key)}")
        echo(f"  value  {_shown(record.value)}")
    if not records:
        echo(f"topic {topic} has no records")


def _shown(value: Any) -> str:
    """Return a value on one line, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.splitlines())
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}… ({len(text):,} characters; --json shows all)"
