"""The local deployment: the stack of this checkout, started when something needs it."""

from __future__ import annotations

from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.settings import Settings
from topicberg.topics import TopicSpec


def connect(config: Settings) -> Endpoints:
    """Endpoints of the running stack; the first call starts it.

    :raises StackError: it cannot start
    """
    from topicberg.local.stack import ensure_running

    ensure_running(config)
    return load_endpoints(config)


def peek(config: Settings) -> Endpoints:
    """The same without starting anything.

    :raises StackNotRunningError: the stack is not running
    """
    return load_endpoints(config)


def catch_up(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> None:
    """Run the engine here, beside the stack's own: whoever commits second plans anew."""
    from topicberg.tableflow.engine import run_once

    run_once(spec, endpoints, config)
