"""One deploy at a time, from whatever machine: a lease in SSM Parameter Store.

The parameter is made only where there is none, which AWS decides for one of several. Its holder
renews it; one that stopped renewing is taken over. A write returns the parameter's new version, and
versions only grow by one: who takes a lease over at version n and is told n + 1 was alone. A write
may be carried out twice, when the first answer was lost: versions n + 1 to now are then all of the
same holder, which the parameter's history tells. A holder that finds the lease another's has lost
it. So there are never two holders.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil

from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    from topicberg.deploy.world import World

logger = logging.getLogger(__name__)

LEASE_SECONDS = 90.0
RENEW_SECONDS = 20.0


class LockedError(TopicbergError):
    """Another deploy is under way."""


@contextmanager
def exclusive(world: World, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the deployment's lease.

    :raises LockedError: another one has it, and still has it after ``wait_seconds``
    """
    client = world.aws("ssm")
    name = world.names.lock
    me = uuid.uuid4().hex
    _acquire(client, name, me, wait_seconds)
    stop = threading.Event()
    holder = threading.Thread(target=_renew, args=(client, name, me, stop), daemon=True)
    holder.start()
    try:
        yield
    finally:
        stop.set()
        holder.join()
        if _holder(client, name)[1].get("holder") == me:
            with suppress(client.exceptions.ParameterNotFound):  # the first answer was lost
                client.delete_parameter(Name=name)


def _acquire(client: Any, name: str, me: str, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            _write(client, name, me, overwrite=False)
            return
        except client.exceptions.ParameterAlreadyExists:
            version, holder = _holder(client, name)
        if holder.get("holder") == me:  # made by a request whose answer was lost
            return
        if version and _is_dead(holder):
            written = _write(client, name, me, overwrite=True)
            if all(_wrote(client, name, me, one) for one in range(version + 1, written)):
                logger.info("took over the deploy lock of %s", _told(holder))
                return
        if time.monotonic() >= deadline:
            raise LockedError(
                f"another deploy is under way: {_told(holder)}",
                hint=f"wait for it; one that was killed is passed by after {LEASE_SECONDS:.0f} s",
            )
        time.sleep(1.0)


def _write(client: Any, name: str, me: str, *, overwrite: bool) -> int:
    """Returns the parameter's version."""
    value = json.dumps(
        {
            "holder": me,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "renewed": time.time(),
        }
    )
    answer = client.put_parameter(Name=name, Value=value, Type="String", Overwrite=overwrite)
    return int(answer["Version"])


def _holder(client: Any, name: str) -> tuple[int, dict[str, Any]]:
    """Version of the lease and who has it; 0: it was given back just now."""
    try:
        parameter = client.get_parameter(Name=name)["Parameter"]
    except client.exceptions.ParameterNotFound:
        return 0, {}
    try:
        holder = json.loads(parameter["Value"])
    except ValueError:
        holder = {}
    return int(parameter["Version"]), holder if isinstance(holder, dict) else {}


def _wrote(client: Any, name: str, me: str, version: int) -> bool:
    """Whether a version that is not the newest any more is ours."""
    try:
        parameter = client.get_parameter(Name=f"{name}:{version}")["Parameter"]
    except client.exceptions.ParameterNotFound:
        return False
    return f'"holder": "{me}"' in parameter["Value"]


def _is_dead(holder: dict[str, Any]) -> bool:
    """It stopped renewing, or it was a process of this machine that is no more."""
    if time.time() - float(holder.get("renewed", 0)) > LEASE_SECONDS:
        return True
    if holder.get("host") != socket.gethostname():
        return False
    try:
        started = psutil.Process(int(holder["pid"])).create_time()
    except psutil.Error:
        return True
    return abs(started - float(holder["started"])) > 1


def _told(holder: dict[str, Any]) -> str:
    if not holder:
        return "somebody"
    since = time.strftime("%H:%M:%S", time.localtime(float(holder.get("renewed", 0))))
    return f"process {holder.get('pid')} on {holder.get('host')}, last seen {since}"


def _renew(client: Any, name: str, me: str, stop: threading.Event) -> None:
    while not stop.wait(RENEW_SECONDS):
        try:
            version, holder = _holder(client, name)
            if holder.get("holder") == me:
                written = _write(client, name, me, overwrite=True)
                if all(_wrote(client, name, me, one) for one in range(version + 1, written)):
                    continue
        except Exception as error:  # the next renewal may work; the lease lasts a few of them
            logger.warning("the deploy lock could not be renewed: %s", type(error).__name__)
            continue
        logger.error("another deploy took the lock over: this one stops")
        os.kill(os.getpid(), 2)
        return
