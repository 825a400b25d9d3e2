"""The endpoints of the chosen deployment, see :mod:`.model`.

In the ``local`` deployment the running stack writes them to ``.topicberg/runtime.json`` (mode
0600); those of the cloud are in :mod:`.cloud`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from topicberg.endpoints.model import (
    CATALOG,
    TOKEN_VARIABLE,
    TOPICS_CATALOG,
    Endpoints,
    LakeEndpoints,
    OwnListener,
    SnowflakeEndpoint,
    glue_rest_uri,
)
from topicberg.errors import StackError, StackNotRunningError
from topicberg.settings import Settings, settings

__all__ = [
    "CATALOG",
    "TOKEN_VARIABLE",
    "TOPICS_CATALOG",
    "Endpoints",
    "LakeEndpoints",
    "OwnListener",
    "SnowflakeEndpoint",
    "bypass_proxy",
    "glue_rest_uri",
    "is_stopped",
    "load_endpoints",
    "local_endpoints",
    "runtime_file",
    "stopped",
    "stopped_file",
]


def runtime_file(config: Settings) -> Path:
    return config.state_dir / "runtime.json"


def stopped_file(config: Settings) -> Path:
    """Return the file that exists from the beginning of `topicberg down` to the next `up`."""
    return config.state_dir / "stopped"


def is_stopped(config: Settings) -> bool:
    """Return whether the deployment is a local stack that was never started, or is stopped."""
    runs = runtime_file(config).exists() and not stopped_file(config).exists()
    return config.deployment == "local" and not runs


def stopped() -> StackNotRunningError:
    """Return the error of whoever needs a stack that a user has stopped."""
    return StackNotRunningError(
        "the local stack is stopped: `topicberg down` has ended it",
        hint="run `topicberg up` to start it again",
    )


def bypass_proxy() -> None:
    """Exclude the local stack from the proxy that this user needs for the internet. Every client
    here (requests, boto3, PyIceberg, gRPC, Snowflake's) reads these variables."""
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if "127.0.0.1" not in hosts and hosts != ["*"]:
            os.environ[name] = ",".join([*hosts, "127.0.0.1", "localhost"])


def load_endpoints(config: Settings | None = None) -> Endpoints:
    """Return the endpoints of the chosen deployment; raise TopicbergError if the local stack does
    not run, or settings of the cloud are missing."""
    config = config or settings()
    if config.deployment == "cloud":
        from topicberg.endpoints.cloud import connect

        return connect(config)
    return local_endpoints(config)


def local_endpoints(config: Settings) -> Endpoints:
    """Return the endpoints of the local stack, whatever deployment is chosen.

    :raises StackNotRunningError: the local stack was never started or is stopped
    :raises StackError: its runtime file is damaged
    """
    bypass_proxy()
    path = runtime_file(config)
    if stopped_file(config).exists():
        raise stopped()
    try:
        return Endpoints.model_validate(json.loads(path.read_text())["endpoints"])
    except FileNotFoundError:
        raise StackNotRunningError(
            "the local stack is not running", hint="start it with `topicberg up`"
        ) from None
    except (ValueError, LookupError, TypeError, ValidationError) as error:
        raise StackError(
            f"{path} is damaged: {type(error).__name__}",
            hint="run `topicberg down` and `topicberg up` to write it again",
        ) from None
