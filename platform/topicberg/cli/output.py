"""What commands share: their output, and the settings and services that most of them need first.

Text of others cannot control the terminal. What is imported here and takes long is imported when it
is called: help must not wait for imports.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topicberg.errors import TopicbergError
from topicberg.security.text import terminal

if TYPE_CHECKING:
    from rich.text import Text

    from topicberg.endpoints import Endpoints
    from topicberg.kafka.schemas import FileState
    from topicberg.orchestration.assets import Lake
    from topicberg.settings import Settings
    from topicberg.tableflow.layout.waiting import WaitingChange

_PIPE_WIDTH = 10_000
AsJson = Annotated[bool, typer.Option("--json", help="as JSON")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]


def settings() -> Settings:
    """Return :func:`topicberg.settings.settings`."""
    from topicberg import settings

    return settings.settings()


def load_endpoints(config: Settings) -> Endpoints:
    """Return :func:`topicberg.endpoints.load_endpoints`."""
    from topicberg import endpoints

    return endpoints.load_endpoints(config)


def load_lake(config: Settings) -> Lake:
    """Return all topics and derived tables, as Dagster has them while a spec is invalid; raise
    SpecError if derived tables are invalid, or do not fit the specs."""
    from topicberg.orchestration.assets.lake import lake_of
    from topicberg.topics.kept import build_with_kept

    return build_with_kept(config, partial(lake_of, config), keeps=False, report=warn_once)


def echo(lines: str | Iterable[str], *, err: bool = False, **style: Any) -> None:
    """Print a line, or each of several; ``style``: as of :func:`typer.style`."""
    for line in [lines] if isinstance(lines, str) else lines:
        typer.secho(terminal(line), err=err, **style)


warn = partial(echo, err=True, fg="yellow")
"""Print to standard error what does not fail the command."""
complain = partial(echo, err=True, fg="red")
"""Print to standard error what is wrong."""
warn_once = cache(warn)
"""Print a warning, unless this command has printed it already."""


def described_fix(difference: WaitingChange | FileState) -> str:
    """Return the lines of what differs of a topic, and of how to fix it."""
    return f"{difference.topic}: {difference.what}\n  → {difference.remediation}"


def report_waiting(waiting: Iterable[WaitingChange], unknown: Iterable[str]) -> None:
    """Print the changes of specs that are not applied, and why others are not known."""
    warn(described_fix(change) for change in waiting)
    echo(unknown, err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before what cannot be undone, unless the user has agreed; no ends the command.

    :raises TopicbergError: the input, which is not a terminal, ends before an answer
    """
    try:
        has_agreed = yes or typer.confirm(question)
    except typer.Abort:  # at a terminal: Ctrl-C
        if sys.stdin.isatty():
            raise
        raise TopicbergError(
            f"{question} The input ended before an answer", hint="agree with `--yes`"
        ) from None
    if not has_agreed:
        raise typer.Abort


def exit_if(failed: object, code: int = 1) -> None:
    """End the command with an exit code if what it reported is a failure."""
    if failed:
        raise typer.Exit(code)


def echo_json(value: object, default: Callable[[Any], Any] | None = None) -> None:
    """Print a document as JSON, with non-ASCII and control characters escaped."""
    text = json.dumps(value, indent=2, default=default)
    typer.echo(text.replace("\x7f", "\\u007f"))  # which JSON does not escape


def print_table(
    columns: Iterable[str | Text],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str | None = None,
    caption: str | None = None,
    unbroken: str | None = None,
    right: Container[int] = (),
) -> None:
    """Print a table without lines, whose cells continue in the next line where they are too wide,
    but of the column ``unbroken``; those with numbers in ``right`` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=caption, box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if number in right else "left",
            overflow="fold",
            no_wrap=column == unbroken,
        )
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


def cell(value: object, style: str = "") -> Text:
    """Return a cell of a table of rich, which interprets markup in a plain string."""
    from rich.text import Text

    return Text(terminal(str(value)), style)
