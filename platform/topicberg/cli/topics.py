"""``topicberg topics``: the topic specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.lazy import load_endpoints, settings
from topicberg.cli.output import echo, echo_json
from topicberg.errors import TopicbergError
from topicberg.wording import count

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
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
    name: Annotated[str, typer.Argument(help="The Kafka topic, or a pattern.")],
    subject: Annotated[
        str | None,
        typer.Option(
            "--from-subject", help="Subject whose newest schema becomes the values' schema."
        ),
    ] = None,
    from_kafka: Annotated[
        bool,
        typer.Option(
            "--from-kafka",
            help="Read the schema from the topic's newest records; with a pattern as the name, "
            "e.g. 'orders.*', find the topics in Kafka and their schemas in the registry.",
        ),
    ] = False,
    file: Annotated[
        str | None,
        typer.Option(
            "--as-pattern", help="With a pattern: write one file of this name for all its topics."
        ),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="Group of its assets; default: the topic's name.")
    ] = None,
) -> None:
    """Write the spec of a topic whose schema is in the registry, or in its records.

    If the schema is Debezium's envelope, the table keeps the current rows of the source's table.
    With a pattern, each topic that matches gets a spec; with --as-pattern, one file describes all
    of them, also those that are created later.
    """
    from topicberg.kafka.discovery import find_topic
    from topicberg.peek import newest_messages
    from topicberg.topics.new import chosen_for_changes, new_topic, new_topic_from_kafka
    from topicberg.topics.patterns import is_pattern

    if from_kafka == (subject is not None):
        raise typer.BadParameter("use one of --from-subject and --from-kafka")
    config = settings()
    if is_pattern(name) or file is not None:
        if not from_kafka:
            raise typer.BadParameter("use --from-kafka with a pattern")
        _new_from_kafka(file, name, pipeline, config)
        return
    group = pipeline or _group(name)
    notes: list[str] = []
    endpoints = load_endpoints(config)
    has = find_topic(name, endpoints)
    if subject is not None:
        paths = new_topic(name, subject, group, endpoints, config, has)
    else:
        found = newest_messages(name, 500, endpoints)
        read = [(message.key(), message.value()) for message in found]
        paths, notes = new_topic_from_kafka(name, read, group, endpoints, config, has)
    if has is not None:
        policy = "compacted: write_mode upsert" if has.is_compacted else "not compacted: append"
        notes.append(f"the topic has {count(has.partitions, 'partition')} and is {policy}")
    for path in paths:
        echo(f"wrote {path}")
    for note in notes:
        echo(note)
    if chosen := chosen_for_changes(config, name):
        echo(chosen)
    echo("run `topicberg topics validate` to check it, then reload the code location in the UI")


def _group(name: str) -> str:
    import re

    return re.sub(r"[^a-z0-9_]", "_", name.lower())


def _new_from_kafka(name: str | None, pattern: str, pipeline: str | None, config: Settings) -> None:
    """Write a spec for each topic that matches, or one file for all of them."""
    from topicberg.kafka.discovery import find_topics
    from topicberg.topics.new import new_pattern, new_topics

    endpoints = load_endpoints(config)
    if name is not None:
        echo(f"wrote {new_pattern(name, pattern, pipeline or _group(name), config)}")
        discover()
        return
    found, known = find_topics(pattern, endpoints, config)
    for one in known:
        echo(f"{one}: has a spec")
    made, refused = new_topics(found, lambda one: pipeline or _group(one), endpoints, config)
    for one in made:
        echo(f"{one}: wrote {config.topics_dir / one}.yaml")
    for one, reason in refused.items():
        echo(f"{one}: no spec was written: {reason}", fg="yellow", err=True)
    what = f"{count(len(made), 'spec')} written, {count(len(refused), 'topic')} left out"
    if not (found or known):
        what = f"no topic of Kafka matches {pattern}; internal topics never match"
    echo(f"{what}; run `topicberg topics validate`, then reload the code location in the UI")


@app.command()
def discover() -> None:
    """Look in Kafka and the registry for the topics of patterns; the engine does so every minute.

    Definitions are loaded from what was found last.
    """
    from topicberg.kafka.discovery import discover as look
    from topicberg.topics import check_topics
    from topicberg.topics.discovery import read_discovery

    config = settings()
    new, gone = look(load_endpoints(config), config)
    for name in new:
        echo(f"{name}: found")
    for name in gone:
        echo(f"{name}: no longer there")
    problems = [str(one) for one in check_topics(config)[1] if one.is_of_topic]
    for problem in problems:
        echo(problem, fg="yellow", err=True)
    known = len(read_discovery(config).topics)
    echo(f"{count(known, 'topic')} of patterns; reload the code location in the UI if it changed")


Name = Annotated[str, typer.Argument(help="The Kafka topic.")]


def _topic(name: str) -> tuple[TopicSpec, Endpoints, Settings]:
    from topicberg.topics import load_topic

    config = settings()
    return load_topic(name), load_endpoints(config), config


@app.command("register")
def register_schemas(name: Name) -> None:
    """Register the schema files of a topic, if their subjects' compatibility levels allow it."""
    from topicberg.kafka import registration

    states = registration.register(*_topic(name))
    if not states:
        echo(f"{name}: the spec names no schema file")
    for state in states:
        echo(f"{name}: {state.what}")


@app.command()
def pull(name: Name) -> None:
    """Write the newest registered versions of a topic's schemas to its schema files."""
    from topicberg.kafka import registration

    written = registration.pull(*_topic(name))
    for path in written:
        echo(f"{name}: wrote {path}")
    if not written:
        echo(f"{name}: the schema files are the newest registered versions")


@app.command("restore-schema")
def restore_schema(name: Name) -> None:
    """Delete the versions of the topic's subjects that came after the schema of its spec.

    Use it if a version was registered that no table can follow, and the topic is suspended.
    Records that were written with such a version stay in the topic: Tableflow reports them.
    """
    from topicberg import kafka

    deleted = kafka.restore_schemas(*_topic(name))
    for subject, version in deleted:
        echo(f"{subject}: version {version} is deleted")
    if deleted:
        echo(
            f"{name}: a suspended topic resumes by itself within 30 seconds; "
            f"run `topicberg tableflow status {name}` to see its state"
        )
    else:
        echo(f"{name}: the registry has no version after the schema files'")
