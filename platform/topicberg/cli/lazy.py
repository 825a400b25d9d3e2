"""What most commands need first, imported when it is called: help must not wait for imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings


def settings() -> Settings:
    """Return :func:`topicberg.settings.settings`."""
    from topicberg import settings

    return settings.settings()


def load_endpoints(config: Settings) -> Endpoints:
    """Return :func:`topicberg.endpoints.load_endpoints`."""
    from topicberg import endpoints

    return endpoints.load_endpoints(config)
