"""The run launcher that ``dagster.yaml`` names: forked runs, or else Dagster's own."""

from __future__ import annotations

from typing import Any

from topicberg.dagster.compatibility import warn_degraded


def _launcher() -> type[Any]:
    try:
        from topicberg_local.dagster.forking import ForkingRunLauncher
    except ImportError as error:
        from dagster import DefaultRunLauncher

        warn_degraded("every run imports its libraries again, for seconds", error)
        return DefaultRunLauncher
    return ForkingRunLauncher


ForkingRunLauncher = _launcher()
