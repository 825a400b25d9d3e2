"""What runs are for, as their tags say."""

from __future__ import annotations

from collections.abc import Mapping

KIND = "topicberg/kind"
"""Tag of runs: what they are for."""
REGISTRATION, COMPUTATION = "registration", "computation"
"""Kinds of runs that sensors request."""
NOT_RETRIED = {"dagster/max_retries": "0"}
"""Tag of runs that a sensor requests again if they fail: else Dagster would also start a killed one
again, and both would compute the same."""


def is_computation_of_sensor(tags: Mapping[str, str]) -> bool:
    """Return whether a sensor requested a run to compute partitions, and no user did."""
    return tags.get(KIND) == COMPUTATION
