"""The switches of the Tableflow engine.

The engine goes by the topics' specs: a topic is materialized if its spec says so, as its spec says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topicberg.settings import Settings


def enable(config: Settings, topic: str, options: Mapping[str, Any]) -> None:
    """Materialize a topic.

    :param options: ``table_formats`` and the fields of ``config``, as ``tableflow/v1`` names them
    """


def disable(config: Settings, topic: str) -> None:
    """Materialize it no longer."""


def resume(config: Settings, topic: str) -> None:
    """Go on with a topic that is suspended."""
