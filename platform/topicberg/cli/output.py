"""Output of commands. Text of others cannot control the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from topicberg.security.text import terminal

if TYPE_CHECKING:
    from rich.text import Text


def echo(text: str, *, err: bool = False, **style: Any) -> None:
    """Print a line.

    :param err: to standard error
    :param style: options of :func:`typer.style`
    """
    typer.secho(terminal(text), err=err, **style)


def echo_json(value: object, default: Callable[[Any], Any] | None = None) -> None:
    """Print a document as JSON, with non-ASCII and control characters escaped."""
    text = json.dumps(value, indent=2, default=default)
    typer.echo(text.replace("\x7f", "\\u007f"))  # which JSON does not escape


def cell(value: object, style: str = "") -> Text:
    """Return a cell of a table of rich, which interprets markup in a plain string."""
    from rich.text import Text

    return Text(terminal(str(value)), style)
