"""``topicberg datagen``: generated records for a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli.lazy import settings
from topicberg.cli.output import AsJson, echo, echo_json
from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    from topicberg_local.datagen.status import DatagenStatus

app = typer.Typer(help="Produce generated records to a topic.", no_args_is_help=True)
Topic = Annotated[str, typer.Argument(help="Name of a topic whose spec has a generator.")]


@app.command()
def start(
    topic: Topic,
    rate: Annotated[
        float | None, typer.Option(min=0, help="Records a second; 0: as fast as possible.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many records.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed generates the same records.")
    ] = None,
    foreground: Annotated[
        bool, typer.Option(help="Run in the foreground; Ctrl-C stops it.")
    ] = False,
) -> None:
    """Start a generator; rate and seed default to the spec's.

    A generator that is started again does not repeat itself: the records of a run depend on its
    seed and on the number of runs before it.
    """
    from topicberg_local.datagen import runner

    given = (settings(), topic, rate, count, seed)
    if foreground:
        echo(_line(runner.run_here(*given, on_report=lambda status: echo(_line(status)))))
    else:
        echo(f"{_line(runner.start(*given))}; log: {runner.log_file(settings(), topic)}")


@app.command()
def stop(topic: Topic) -> None:
    """Stop a topic's generator."""
    from topicberg_local.datagen import runner

    echo(_line(runner.stop(settings(), topic)))


@app.command()
def status(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show all generators, running or not: state, records, rate, error."""
    from topicberg_local.datagen.status import all_statuses, read_status

    if topic is None:
        statuses = all_statuses(settings())
    elif status := read_status(settings(), topic):
        statuses = [status]
    else:
        raise TopicbergError(f"no generator of {topic!r} was ever started")
    if as_json:
        rates = [{"achieved_rate": round(status.achieved_rate, 1)} for status in statuses]
        documents = (status.model_dump(mode="json") for status in statuses)
        echo_json([document | rate for document, rate in zip(documents, rates, strict=True)])
    elif not statuses:
        echo("no generator was ever started")
    else:
        echo(_line(status) for status in statuses)


def _line(status: DatagenStatus) -> str:
    expected = f" of {status.count:,}" if status.count else ""
    pace = f"{status.achieved_rate:,.0f}/s" if status.sent else f"rate {status.rate:g}/s"
    pid = f", pid {status.pid}" if status.state in ("starting", "running") else ""
    error = f": {status.error}" if status.error else ""
    return f"{status.topic}: {status.state}, {status.sent:,}{expected} records, {pace}{pid}{error}"
