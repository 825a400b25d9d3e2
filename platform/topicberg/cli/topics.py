"""``topicberg topics``: the topic specs."""

from __future__ import annotations

from typing import Annotated

import typer

from topicberg.cli.output import echo, echo_json
from topicberg.wording import count

app = typer.Typer(help="Look at and check the topic specs.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="topics")


@app.command()
def validate() -> None:
    """Check every topic spec and its schema files; every mistake is one line."""
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
    echo(f"{len(specs)} topic specs are right: {', '.join(spec.name for spec in specs)}")


@app.command("list")
def list_topics(
    as_json: Annotated[bool, typer.Option("--json", help="Whole specs, for programs.")] = False,
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

    # 80 columns; what is left out is in --json.
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
        str, typer.Option("--from-subject", help="Subject whose newest schema its values have.")
    ],
    pipeline: Annotated[
        str | None, typer.Option(help="Group of its assets; by default the topic's name.")
    ] = None,
) -> None:
    """Write the spec of a topic whose schema is in the registry."""
    import re

    from topicberg.endpoints import load_endpoints
    from topicberg.settings import settings
    from topicberg.topics.new import new_topic

    config = settings()
    group = pipeline or re.sub(r"[^a-z0-9_]", "_", name.lower())
    for path in new_topic(name, subject, group, load_endpoints(config), config):
        echo(f"wrote {path}")
    echo("`topicberg topics validate` checks it; reload the code location in the UI")


@app.command("restore-schema")
def restore_schema(
    name: Annotated[str, typer.Argument(help="The Kafka topic.")],
) -> None:
    """Delete the versions of the topic's subjects that came after the schema of its spec.

    For when somebody registered a version that no table can follow, and the topic is suspended.
    Records that were written with such a version are still there: Tableflow says what they are.
    """
    from topicberg import kafka
    from topicberg.endpoints import load_endpoints
    from topicberg.settings import settings
    from topicberg.topics import load_topic

    config = settings()
    for subject, version in kafka.restore_schemas(load_topic(name), load_endpoints(config), config):
        echo(f"{subject}: version {version} is deleted")
