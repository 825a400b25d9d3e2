"""Output of commands. Text of others cannot control the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from topicberg.security.text import terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from topicberg.tableflow.waiting import WaitingChange

_PIPE_WIDTH = 10_000


def echo(text: str, *, err: bool = False, **style: Any) -> None:
    """Print a line.

    :param err: to standard error
    :param style: options of :func:`typer.style`
    """
    typer.secho(terminal(text), err=err, **style)


@cache
def warn_once(text: str) -> None:
    """Print a warning to standard error, unless this command has printed it already."""
    echo(text, err=True, fg="yellow")


def report_waiting(waiting: Iterable[WaitingChange], unknown: Iterable[str]) -> None:
    """Print the changes of specs that are not applied, and why others are not known."""
    for change in waiting:
        echo(f"{change.topic}: {change.what}\n  → {change.remediation}", fg="yellow", err=True)
    for reason in unknown:
        echo(reason, err=True)


def echo_json(value: object, default: Callable[[Any], Any] | None = None) -> None:
    """Print a document as JSON, with non-ASCII and control characters escaped."""
    text = json.dumps(value, indent=2, default=default)
    typer.echo(text.replace("\x7f", "\\u007f"))  # which JSON does not escape


def console() -> Console:
    """Return the console of tables: as wide as the terminal, and in a pipe as the table is."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    caption: str | None = None,
    unbroken: str | None = None,
) -> None:
    """Print a table without lines, whose cells go on in the next line where they are too wide.

    :param unbroken: the column whose cells do not
    """
    from rich.table import Table

    table = Table(*columns, caption=caption, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow, column.no_wrap = "fold", column.header == unbroken
    for row in rows:
        table.add_row(*row)
    console().print(table)


def cell(value: object, style: str = "") -> Text:
    """Return a cell of a table of rich, which interprets markup in a plain string."""
    from rich.text import Text

    return Text(terminal(str(value)), style)
