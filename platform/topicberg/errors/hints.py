"""Hints about a service that does not answer."""

from __future__ import annotations

from collections.abc import Callable

is_local: Callable[[], bool] = bool
"""Whether the deployment is the local stack: :mod:`topicberg.settings`, which knows it, sets this
function, since everything that reads settings imports errors."""


def see_whether_it_runs(service: str, *, starts: bool = False) -> str:
    """Return the hint about a service that does not answer.

    Only the local stack knows its services: `topicberg status` says nothing of another deployment.

    :param starts: also say how to start it
    """
    if is_local():
        start = ", `topicberg up` to start it" if starts else ""
        return f"run `topicberg status` to see whether {service} runs{start}"
    return f"check that {service} runs, and that this machine reaches it: network, DNS and firewall"
