"""What other packages add: entry points, a group for each kind of addition.

============================ ==================================================================
group                        what an entry point names
============================ ==================================================================
``topicberg.commands``       a command of the command line: a Typer application, or a function
``topicberg.definitions``    :class:`topicberg.orchestration.assets.lake.Addition`: definitions
``topicberg.catalogs``       :class:`topicberg.orchestration.catalogs.catalog.Catalog`
``topicberg.alert_channels`` :class:`topicberg.alerts.channels.ChannelFactory`
``topicberg.settings``       a module with models of settings, :class:`.EnvironmentSettings`
``topicberg.stack``          :class:`LocalStack`
============================ ==================================================================

A package that cannot be used takes nothing else away: a warning says why, and it is left out.

What is not installed with topicberg alone is in extras of topicberg, which :func:`needs` names.

Source: Python Packaging User Guide, "Entry points specification".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, version
from typing import TYPE_CHECKING, Any, Protocol

from topicberg.errors import StackError, TopicbergError

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.security.guard import IsOwn
    from topicberg.settings import Settings

OWN = {"topicberg-deploy": "deploy", "topicberg-local": "local"}
"""The distributions that have topicberg's version, and the extra that installs each."""
logger = logging.getLogger(__name__)


def needs(extra: str) -> str:
    """Return the hint for what an extra installs."""
    return f"run `pip install 'topicberg[{extra}]'`"


@contextmanager
def of_extra(extra: str) -> Iterator[None]:
    """Raise a TopicbergError around an import if a library that an extra installs is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise TopicbergError(f"{error.name} is not installed", hint=needs(extra)) from None


class LocalStack(Protocol):
    """What starts the services of the local deployment."""

    def start(self, config: Settings) -> Endpoints:
        """Start what is not running, with progress on the terminal. For commands."""

    def ensure_running(self, config: Settings) -> None:
        """Start what is not running, for runs, unless a user stopped it, which is a StackError."""

    def own_client(self) -> IsOwn | None:
        """Return how servers know the clients of this user; None: they cannot."""


def extensions(
    group: str, use: Callable[[Any], Any] = lambda addition: addition
) -> Iterator[tuple[str, Any]]:
    """Yield the additions of a group, by name, or what ``use`` makes of them; those that fail are
    left out with a warning.

    :raises StackError: a distribution of topicberg is of another version than this library
    """
    for point in entry_points(group):
        try:
            yield point.name, load(point, use)
        except StackError:
            raise
        except TopicbergError as error:
            logger.warning("%s", error)


def load(point: EntryPoint, use: Callable[[Any], Any] = lambda addition: addition) -> Any:
    """Return what an entry point names, or what ``use`` makes of it; raise TopicbergError if the
    package cannot be imported, fails, or is of another version."""
    name = package_of(point)
    if name in OWN and (installed := version(name)) != (library := version("topicberg")):
        raise StackError(
            f"{name} is version {installed}, topicberg is {library}",
            hint=f"run `pip install 'topicberg[{OWN[name]}]=={library}'`",
        )
    try:
        return use(point.load())
    except Exception as error:  # a stranger's module may raise anything
        if name == "topicberg":
            raise
        why, hint = f"{type(error).__name__}: {error}", None
        if isinstance(error, TopicbergError):
            why, hint = error.message, error.hint
        raise TopicbergError(
            f"{name}: {point.value} ({point.group}) cannot be used: {why}",
            hint=hint or f"upgrade {name}, or uninstall it",
        ) from error


def package_of(point: EntryPoint) -> str:
    """Return the distribution that has an entry point."""
    return point.dist.name if point.dist else "a package"


def local_stack() -> LocalStack:
    """Return what starts the local stack; raise StackError if it is not installed, or of another
    version than this library."""
    for point in entry_points("topicberg.stack"):
        stack: LocalStack = load(point)
        return stack
    raise StackError(
        "the local stack is not installed",
        hint=f"{needs('local')}, or set TOPICBERG_DEPLOYMENT=cloud",
    )


@cache
def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, topicberg's own first; the first one has its name."""
    by_name: dict[str, EntryPoint] = {}
    for point in sorted(
        metadata.entry_points(group=group),
        key=lambda p: (package_of(p) not in ("topicberg", *OWN), p.name, package_of(p)),
    ):
        if (owner := by_name.setdefault(point.name, point)) is not point:
            logger.warning(
                "%s: %s of %s is left out: %s has that name",
                package_of(point),
                point.name,
                group,
                package_of(owner),
            )
    return tuple(by_name.values())
