"""What other packages add: entry points, a group for each kind of addition.

======================== ======================================================================
group                    what an entry point names
======================== ======================================================================
``topicberg.commands``   a command of the command line: an application of Typer, or a function
``topicberg.definitions`` :class:`topicberg.orchestration.loading.Addition`: assets of the graph
``topicberg.catalogs``   :class:`topicberg.catalogs.catalog.Catalog`: where tables are registered
``topicberg.alert_channels`` :class:`topicberg.alerts.channels.ChannelFactory`: where alerts go
``topicberg.settings``   a module with models of settings, :class:`.EnvironmentSettings`
``topicberg.stack``      :class:`LocalStack`: what starts a local stack
======================== ======================================================================

Source: Python Packaging User Guide, "Entry points specification".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, version
from typing import TYPE_CHECKING, Any, Protocol

from topicberg.errors import StackError, TopicbergError
from topicberg.extras import needs

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.security.guard import IsOwn
    from topicberg.settings import Settings

OWN = {"topicberg-deploy": "deploy", "topicberg-local": "local"}
"""The distributions that have topicberg's version, and the extra that installs each."""


class LocalStack(Protocol):
    """What starts the services of the local deployment."""

    def start(self, config: Settings) -> Endpoints:
        """Start what is not running, with progress on the terminal. For commands."""

    def ensure_running(self, config: Settings) -> None:
        """Start what is not running, unless a user stopped it. For runs.

        :raises StackError: a user stopped it, or a service does not start
        """

    def own_client(self) -> IsOwn | None:
        """Return how servers know the clients of this user; None: they cannot."""


def extensions(group: str) -> Iterator[tuple[str, Any]]:
    """Yield the additions of a group, by name.

    :raises TopicbergError: the package of one cannot be imported, or is of another version
    """
    for point in entry_points(group):
        yield point.name, load(point)


def load(point: EntryPoint) -> Any:
    """Return what an entry point names.

    :raises TopicbergError: as of :func:`extensions`
    """
    name = point.dist.name if point.dist else "a package"
    if extra := OWN.get(name):
        installed, own = version(name), version("topicberg")
        if installed != own:
            raise StackError(
                f"{name} is version {installed}, topicberg is {own}",
                hint=f"run `pip install 'topicberg[{extra}]=={own}'`",
            )
    try:
        return point.load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        raise TopicbergError(
            f"{name}: {point.value} ({point.group}) cannot be imported: {error}",
            hint=f"upgrade {name}, or uninstall it",
        ) from error


def local_stack() -> LocalStack:
    """Return what starts the local stack.

    :raises StackError: it is not installed, or of another version than this library
    """
    for _, stack in extensions("topicberg.stack"):
        typed: LocalStack = stack
        return typed
    raise StackError(
        "the local stack is not installed",
        hint=f"{needs('local')}, or set TOPICBERG_DEPLOYMENT=cloud",
    )


@cache
def entry_points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(sorted(metadata.entry_points(group=group), key=lambda point: point.name))
