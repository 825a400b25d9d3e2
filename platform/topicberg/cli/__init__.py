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
from functools import partial  # noqa: E402
from importlib import import_module  # noqa: E402
from typing import Annotated, Any  # noqa: E402

import typer  # noqa: E402

from topicberg.cli.output import complain, echo, warn  # noqa: E402
from topicberg.cli.settings import in_file, problems, without_effect  # noqa: E402
from topicberg.errors import TopicbergError, causes  # noqa: E402
from topicberg.extensions import entry_points, load, needs, package_of  # noqa: E402
from topicberg.version import VERSION  # noqa: E402

# What a command imports stays: looking for garbage in it is a quarter of the time of importing
# Dagster and Spark, and half a second when the process ends. (Python does not promise either that
# what only a cycle of references holds is finalized then.)
gc.set_threshold(50_000, 20, 100)
atexit.register(gc.freeze)

app = typer.Typer(
    name="topicberg",
    help="Kafka topics in, governed Iceberg tables out.",
    epilog="Begin with `topicberg init NAME`. `topicberg ui` serves the documentation: "
    "http://127.0.0.1:3000/topicberg/docs/project.html",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"max_content_width": 120},
    rich_markup_mode=None,  # rich and its parsers take longer to import than all else of --help
)


def _version(given: bool) -> None:
    if given:
        echo(VERSION)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Kafka topics in, governed Iceberg tables out."""


_COMMANDS = (
    "topics peek tableflow pipelines checks alerts sync query forget ui env init settings "
    "constraints"
)
_GROUPS = ("topics", "tableflow", "pipelines", "alerts")
"""Those that have commands, in an ``app``."""
_MODULES = {"peek": "query", "sync": "pipelines", "constraints": "init"}
"""Command → its module, if that has another name."""
for _name in _COMMANDS.split():
    _loaded = import_module(f"topicberg.cli.{_MODULES.get(_name, _name)}")
    if _name in _GROUPS:
        app.add_typer(_loaded.app, name=_name)
    else:
        app.command()(getattr(_loaded, _name))

_OF_EXTRAS = {
    **dict.fromkeys(("up", "down", "status", "logs", "reset", "datagen"), "local"),
    "deploy": "deploy",
}
"""The commands of topicberg's other distributions, and the extra that installs each."""
_ANY = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _add_refusal(name: str, why: str, hint: str | None) -> None:
    """Add a command that says why it is not there, whatever its arguments."""

    @app.command(name, help=why, context_settings=_ANY)
    def refuse() -> None:
        raise TopicbergError(why, hint=hint)


def _add_commands() -> None:
    """Add the commands of other packages; one that cannot be used leaves the others."""
    missing = dict(_OF_EXTRAS)
    for point in entry_points("topicberg.commands"):
        if point.name in _COMMANDS.split():
            of = f"{point.name} of {package_of(point)}"
            warn(f"warning: the command {of} is left out: topicberg has one")
            continue
        missing.pop(point.name, None)
        try:
            load(point, partial(_add, point.name))
        except TopicbergError as error:
            _add_refusal(point.name, error.message, error.hint)
    for name, extra in missing.items():
        _add_refusal(name, f"`topicberg {name}` is not installed", needs(extra))


def _add(name: str, command: Any) -> None:
    """Add a command. What Typer cannot build would break every `--help`: it is tried first."""
    for parent in (typer.Typer(add_completion=False), app):
        if isinstance(command, typer.Typer):
            parent.add_typer(command, name=name)
        else:
            parent.command(name)(command)
        if parent is not app:
            typer.main.get_command(parent)


_add_commands()


def main() -> None:
    """Run the command line."""
    run(app)


def run(command: Callable[..., Any]) -> None:
    """Run a command; an expected error becomes one clear message and exit code 2; ``command``: an
    application of Typer, or the function of its only command."""
    if not isinstance(command, typer.Typer):
        only = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        only.command()(command)
        command = only
    try:
        if sys.argv[1:] and "--help" not in sys.argv:  # help must not wait for imports
            names = in_file().keys()
            lines = problems({*os.environ, *names}) + without_effect({*names})
            warn(f"warning: {line}" for line in lines)
        command()
    except TopicbergError as error:
        complain(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if (why := _outside_failure(error)) is None:
            raise
        complain(f"error: {why}")
        sys.exit(2)


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _outside_failure(error: Exception) -> str | None:
    """Return which file, database or service cannot be used, with a hint; None: it is another
    failure. Libraries raise the errors of the disk and of SQLite as causes of their own."""
    from topicberg.errors.meaning import classify, explain, is_refused

    for cause in causes(error):
        is_of_disk = isinstance(cause, OSError) and cause.errno in _DISK_ERRORS
        if is_of_disk or type(cause).__module__ == "sqlite3":
            from topicberg.alerts.dagster_processes import storage_problem
            from topicberg.alerts.watch import full_disk
            from topicberg.settings import settings

            if not isinstance(cause, OSError):
                return f"Dagster: {storage_problem(settings()) or f'SQLite: {cause}'}"
            hint = "free some space: `df -h` shows which disk is full"
            why = full_disk(settings().state_dir) or f"{cause.strerror}\n  → {hint}"
            return f"{cause.filename or 'a file'} cannot be written: {why}"
    is_own = type(error).__module__ == "builtins"  # or of whatever handled a library's error
    is_of_service = not is_own and (classify(error) is not None or is_refused(error))
    return str(explain(" ".join(["topicberg", *sys.argv[1:2]]), error)) if is_of_service else None
