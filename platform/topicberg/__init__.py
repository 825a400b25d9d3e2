"""Kafka topics in, governed Iceberg tables out: in S3, in AWS Glue and in Snowflake.

What a project uses is here; it is imported when it is used. Further factories of assets, jobs and
sensors are in :mod:`topicberg.orchestration`, charts in :mod:`topicberg.charts`, helpers for tests
in :mod:`topicberg.testing`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topicberg.components import Topic, Topics
    from topicberg.datagen import generator
    from topicberg.errors import TopicbergError
    from topicberg.orchestration import definitions
    from topicberg.orchestration.assets.derived import DerivedTable, derived_table
    from topicberg.orchestration.checks.own import table_check
    from topicberg.orchestration.resources.tables import Tables
    from topicberg.topics import Rules
    from topicberg.transforms.windows import FOREVER

if sys.platform == "win32":
    raise ImportError(
        "topicberg runs on Linux, and not on Windows: install and run it in the Windows Subsystem "
        "for Linux (WSL)"
    )

_PUBLIC = {
    "DerivedTable": "topicberg.orchestration.assets.derived",
    "FOREVER": "topicberg.transforms.windows",
    "Rules": "topicberg.topics",
    "Tables": "topicberg.orchestration.resources.tables",
    "Topic": "topicberg.components",
    "TopicbergError": "topicberg.errors",
    "Topics": "topicberg.components",
    "definitions": "topicberg.orchestration",
    "derived_table": "topicberg.orchestration.assets.derived",
    "generator": "topicberg.datagen",
    "table_check": "topicberg.orchestration.checks.own",
}
"""Name → module."""

__all__ = [
    "FOREVER",
    "DerivedTable",
    "Rules",
    "Tables",
    "Topic",
    "TopicbergError",
    "Topics",
    "definitions",
    "derived_table",
    "generator",
    "table_check",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
