"""What this package adds to topicberg: :class:`topicberg.extensions.LocalStack`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.security.guard import IsOwn
    from topicberg.settings import Settings


def start(config: Settings) -> Endpoints:
    """Start what is not running, with progress on the terminal."""
    from rich.console import Console

    from topicberg_local.cli import stack

    return stack.start(config, Console(stderr=True))


def ensure_running(config: Settings) -> None:
    """Start what is not running, unless a user stopped it."""
    from topicberg_local import stack

    stack.ensure_running(config)


def own_client() -> IsOwn | None:
    """Return whether a client is a process of this user, if the operating system reports it."""
    from topicberg_local import peers

    return peers.own_client()
