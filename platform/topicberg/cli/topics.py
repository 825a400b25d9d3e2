"""``topicberg topics``: the topic specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.output import echo, echo_json
from topicberg.wording import count

if TYPE_CHECKING:
    from topicberg.settings import Settings
    from topicberg.topics import TopicSpec

app = typer.Typer(help="Show and check the topic specs.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="topics")


@app.command()
def validate() -> None:
    """Check every topic spec and its schema files; prints one line per mistake.

    If the registry answers, the schema files are compared with the registered versions.
    """
    from topicberg.settings import settings
    from topicberg.topics import check_topics

    specs, problems = check_topics(settings())
    for problem in problems:
        echo(str(problem), err=True)
    if problems:
        files = len({problem.file for problem in problems})
        summary = f"error: topic specs: {count(len(problems), 'mistake')} in {count(files, 'file')}"
        echo(summary, fg="red", err=True)
        raise typer.Exit(2)
    echo(f"{len(specs)} topic specs are valid: {', '.join(spec.name for spec in specs)}")
    if not _compare_with_registry(specs, settings()):
        raise typer.Exit(2)


def _compare_with_registry(specs: list[TopicSpec], config: Settings) -> bool:
    """Report differences between schema files and registry; return False if one is refused."""
    from topicberg.endpoints import load_endpoints
    from topicberg.errors import TopicbergError
    from topicberg.kafka.registration import compare_all

    try:
        states = compare_all(specs, load_endpoints(config), config)
    except TopicbergError as error:
        echo(f"the schema files are not compared with the registry: {error.message}", err=True)
        return True
    equal = sum(state.state == "equal" for state in states)
    echo(f"{count(equal, 'schema file')} of {len(states)} are the newest registered version")
    new = sorted({state.topic for state in states if state.latest is None})
    if new:
        echo(
            f"not registered yet: the schemas of {', '.join(new)}; the first producer or the "
            "engine registers them, or run `topicberg topics register TOPIC`"
        )
    for state in states:
        if state.state != "equal" and state.latest is not None:
            refused = state.acceptable is False
            color = "red" if refused else "yellow"
            echo(f"{state.topic}: {state.what}\n  → {state.remediation}", fg=color, err=True)
    return not any(state.acceptable is False for state in states)


@app.command("list")
def list_topics(
    as_json: Annotated[bool, typer.Option("--json", help="Whole specs, as JSON.")] = False,
) -> None:
    """List the topics."""
    from topicberg.topics import load_topics

    specs = load_topics()
    if as_json:
        documents = [spec.model_dump(mode="json", by_alias=True) for spec in specs]
        echo_json(documents)
        return

    from rich.console import Console
    from rich.table import Table

    # The table fits 80 columns; the rest is in --json.
    table = Table(
        *("topic", "pipeline", "format", "table", "partitions", "generator"),
        caption="table: append or upsert; - if Tableflow is disabled",
        box=None,
        pad_edge=False,
    )
    for column in table.columns:
        column.overflow = "fold"
    for spec in specs:
        table.add_row(
            spec.name,
            spec.pipeline,
            spec.value_schema.format,
            spec.write_mode if spec.tableflow.enabled else "-",
            str(spec.partitions),
            f"{spec.generator.rate:g}/s" if spec.generator else "-",
        )
    Console().print(table)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a topic spec, for editors that complete and check YAML."""
    from topicberg.topics import TopicSpec

    echo_json(TopicSpec.model_json_schema(by_alias=True))


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The Kafka topic.")],
    subject: Annotated[
        str | None,
        typer.Option(
            "--from-subject", help="Subject whose newest schema becomes the values' schema."
        ),
    ] = None,
    from_kafka: Annotated[
        bool, typer.Option("--from-kafka", help="Read the schema from the topic's newest records.")
    ] = False,
    pipeline: Annotated[
        str | None, typer.Option(help="Group of its assets; default: the topic's name.")
    ] = None,
) -> None:
    """Write the spec of a topic whose schema is in the registry, or in its records.

    If the schema is Debezium's envelope, the table keeps the current rows of the source's table.
    """
    import re

    from topicberg.endpoints import load_endpoints
    from topicberg.peek import newest_messages
    from topicberg.settings import settings
    from topicberg.topics.new import chosen_for_changes, new_topic, new_topic_from_kafka

    if from_kafka == (subject is not None):
        raise typer.BadParameter("use one of --from-subject and --from-kafka")
    config = settings()
    group = pipeline or re.sub(r"[^a-z0-9_]", "_", name.lower())
    notes: list[str] = []
    if subject is not None:
        paths = new_topic(name, subject, group, load_endpoints(config), config)
    else:
        endpoints = load_endpoints(config)
        found = newest_messages(name, 500, endpoints)
        read = [(message.key(), message.value()) for message in found]
        paths, notes = new_topic_from_kafka(name, read, group, endpoints, config)
    for path in paths:
        echo(f"wrote {path}")
    for note in notes:
        echo(note)
    if chosen := chosen_for_changes(config, name):
        echo(chosen)
    echo("run `topicberg topics validate` to check it, then reload the code location in the UI")


@app.command("register")
def register_schemas(
    name: Annotated[str, typer.Argument(help="The Kafka topic.")],
) -> None:
    """Register the schema files of a topic, if their subjects' compatibility levels allow it."""
    from topicberg.endpoints import load_endpoints
    from topicberg.kafka import registration
    from topicberg.settings import settings
    from topicberg.topics import load_topic

    config = settings()
    states = registration.register(load_topic(name), load_endpoints(config), config)
    if not states:
        echo(f"{name}: the spec names no schema file")
    for state in states:
        echo(f"{name}: {state.what}")


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="The Kafka topic.")],
) -> None:
    """Write the newest registered versions of a topic's schemas to its schema files."""
    from topicberg.endpoints import load_endpoints
    from topicberg.kafka import registration
    from topicberg.settings import settings
    from topicberg.topics import load_topic

    config = settings()
    written = registration.pull(load_topic(name), load_endpoints(config), config)
    for path in written:
        echo(f"{name}: wrote {path}")
    if not written:
        echo(f"{name}: the schema files are the newest registered versions")


@app.command("restore-schema")
def restore_schema(
    name: Annotated[str, typer.Argument(help="The Kafka topic.")],
) -> None:
    """Delete the versions of the topic's subjects that came after the schema of its spec.

    Use it if a version was registered that no table can follow, and the topic is suspended.
    Records that were written with such a version stay in the topic: Tableflow reports them.
    """
    from topicberg import kafka
    from topicberg.endpoints import load_endpoints
    from topicberg.settings import settings
    from topicberg.topics import load_topic

    config = settings()
    deleted = kafka.restore_schemas(load_topic(name), load_endpoints(config), config)
    for subject, version in deleted:
        echo(f"{subject}: version {version} is deleted")
    if deleted:
        echo(
            f"{name}: a suspended topic resumes by itself within 30 seconds; "
            f"run `topicberg tableflow status {name}` to see its state"
        )
    else:
        echo(f"{name}: the registry has no version after the schema files'")
