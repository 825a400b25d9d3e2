"""``topicberg constraints``: the versions of packages that this version was tested with."""

from __future__ import annotations

from pathlib import Path

from topicberg.cli.output import echo

FILE = Path(__file__).parents[1] / "constraints.txt"
"""Of the library, written by `make lock`."""


def constraints() -> None:
    """Print the tested versions of all packages, as a file for `pip install --constraint`."""
    echo(FILE.read_text().rstrip("\n"))
