"""The command line. Each group of commands is a module of this package; they import lazily."""

from __future__ import annotations

from topicberg.cli.argv import hide_secrets

hide_secrets()

import atexit  # noqa: E402
import errno  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from importlib import import_module  # noqa: E402
from typing import Annotated, Any  # noqa: E402

import typer  # noqa: E402

from topicberg.cli.output import echo  # noqa: E402
from topicberg.errors import TopicbergError  # noqa: E402

# What a command imports stays: looking for garbage in it is a quarter of the time of importing
# Dagster and Spark, and half a second when the process ends. (Python does not promise either that
# what only a cycle of references holds is finalized then.)
gc.set_threshold(50_000, 20, 100)
atexit.register(gc.freeze)

app = typer.Typer(
    name="topicberg",
    help="Kafka topics in, governed Iceberg tables out.",
    epilog="Begin with `topicberg init NAME`. `topicberg ui` serves the documentation: "
    "http://127.0.0.1:3000/topicberg/docs/project.md",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"max_content_width": 120},
    rich_markup_mode=None,  # rich and its parsers take longer to import than all else of --help
)


def _version(given: bool) -> None:
    if given:
        from importlib.metadata import version

        echo(version("topicberg"))
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Kafka topics in, governed Iceberg tables out."""


_MODULES = {
    "stack": ("up", "down", "status", "logs", "reset", "env"),
    "topics": (),
    "peek": ("peek",),
    "datagen": (),
    "tableflow": (),
    "pipelines": (),
    "checks": ("checks",),
    "alerts": (),
    "sync": ("sync",),
    "query": ("query",),
    "forget": ("forget",),
    "deploy": (),
    "ui": ("ui",),
    "init": ("init",),
    "settings": ("settings",),
    "constraints": ("constraints",),
}
"""Module → its commands; none: it has a group of commands, ``app``, of its own name."""
for _module, _commands in _MODULES.items():
    _loaded = import_module(f"topicberg.cli.{_module}")
    for _name in _commands:
        app.command()(getattr(_loaded, _name))
    if not _commands:
        app.add_typer(_loaded.app, name=_module)


def _warn_of_variables() -> None:
    from topicberg.cli import variables

    in_file = variables.in_file()
    lines = variables.problems({*os.environ, *in_file}) + variables.without_effect({*in_file})
    for line in lines:
        echo(f"warning: {line}", fg="yellow", err=True)


def main() -> None:
    """Run the command line."""
    run(app)


def run(command: Callable[..., Any]) -> None:
    """Run a command; an expected error becomes one clear message and exit code 2.

    :param command: an application of Typer, or the function of its only command
    """
    if not isinstance(command, typer.Typer):
        only = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        only.command()(command)
        command = only
    try:
        if sys.argv[1:] and "--help" not in sys.argv:  # help must not wait for imports
            _warn_of_variables()
        command()
    except TopicbergError as error:
        echo(f"error: {error}", fg="red", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        place = error.filename or "a file"
        echo(
            f"error: {place} cannot be written: {error.strerror}\n  → free some space: `df -h` "
            "shows which disk is full",
            fg="red",
            err=True,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
