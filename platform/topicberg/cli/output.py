"""What commands print. Text that others wrote does nothing on a terminal."""

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
    :param style: as :func:`typer.style` takes it
    """
    typer.secho(terminal(text), err=err, **style)


def echo_json(value: object, default: Callable[[Any], Any] | None = None) -> None:
    """Print a document. Whatever is not ASCII is escaped, and so are control characters."""
    text = json.dumps(value, indent=2, default=default)
    typer.echo(text.replace("\x7f", "\\u007f"))  # which JSON leaves as it is


def cell(value: object, style: str = "") -> Text:
    """Return a cell of a table of rich, which would read markup in a plain string."""
    from rich.text import Text

    return Text(terminal(str(value)), style)
