"""One deploy at a time, from whatever machine: a lease in SSM Parameter Store.

Every write to the parameter is a new version, with a time of AWS's. Who holds the lease follows
from the versions alone, in the same way for everyone (:func:`state_of`): the first write after the
lease before it has ended takes it, its holder's next writes renew it, and any other write is
ignored. So a write that was late, lost or repeated does no harm, and no client's clock is used
whether a lease has ended. Nothing is ever deleted, as that could hit the next holder's lease.

A holder measures by its own machine how long ago it *sent* its last renewal, time in which the
machine slept included, and changes nothing from :data:`MARGIN_SECONDS` before the lease can end:
each request that changes something asks :meth:`Lease.check` first.

Sources: AWS Systems Manager, ``PutParameter`` and ``GetParameterHistory``; Gray and Cheriton,
"Leases" (1989).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from topicberg.errors import TopicbergError
from topicberg_deploy.context import DeployContext

logger = logging.getLogger(__name__)

LEASE_SECONDS = 90.0
RENEW_SECONDS = 20.0
MARGIN_SECONDS = 30.0
"""For requests that are under way when the lease can no longer be renewed, and for AWS's clocks."""
POLL_SECONDS = 2.0
_PAGE = 50
_LOOKS = 5
"""Reads of the history until it has a version that was just written."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_ID = re.compile(r"[0-9a-f]{32}")


class LockedError(TopicbergError):
    """Another deploy is under way."""


class LockLostError(TopicbergError):
    """This deploy does not hold the lease any more, or cannot know that it does."""


@dataclass(frozen=True)
class Entry:
    """One version of the parameter.

    :param at: when AWS wrote it, in seconds
    :param holder: who wrote it; None: it gives the lease back
    :param after: the holder that is known to have ended, whose lease is not waited for
    :param who: the same holder, for people
    """

    version: int
    at: float
    holder: str | None
    after: str | None = None
    who: str = "unknown"


@dataclass(frozen=True)
class LeaseState:
    """Who holds the lease; None: it is free. ``expires`` is in AWS's time."""

    holder: str | None = None
    expires: float = 0.0
    who: str = ""


def state_of(entries: Iterable[Entry]) -> LeaseState:
    """Return who holds the lease after these versions, oldest first."""
    state = LeaseState()
    for entry in entries:
        is_free = state.holder is None or entry.at > state.expires
        if is_free or entry.holder == state.holder or entry.after == state.holder:
            state = LeaseState(entry.holder, entry.at + LEASE_SECONDS, entry.who)
    return state


def seconds_since_boot() -> float:
    """Return a time that continues while the machine sleeps and cannot be set."""
    return time.clock_gettime(_CLOCK)


@dataclass
class Lease:
    """One client's part in the lease.

    :param client: boto3's ``ssm``
    :param me: the client's id, of its own
    :param is_dead: whether the process behind a holder's id is known to have ended
    :param state: as it was seen last
    """

    client: Any
    name: str
    me: str
    is_dead: Callable[[str], bool] = lambda _: False
    now: Callable[[], float] = seconds_since_boot
    state: LeaseState = LeaseState()
    _version: int = 0
    _until: float = float("-inf")

    def acquire(self) -> bool:
        """Take the lease if it is free. One attempt; :attr:`state` then says who has it."""
        sent = self.now()
        try:
            self._hold(sent, self._write(overwrite=False))
            return True
        except self.client.exceptions.ParameterAlreadyExists:
            entries, now = self._history()
        self.state = state_of(entries)
        holder, after = self.state.holder, None
        if holder not in (None, self.me) and now <= self.state.expires:
            if not self.is_dead(str(holder)):
                return False
            after = holder
        sent = self.now()
        return self._confirm(sent, self._write(overwrite=True, after=after))

    def renew(self) -> None:
        """Renew the lease.

        :raises LockLostError: another client has it
        """
        sent = self.now()
        written = self._write(overwrite=True)
        if written == self._version + 1:  # no other client wrote in between
            self._hold(sent, written)
        elif not self._confirm(sent, written):
            self._until = float("-inf")
            raise LockLostError(f"another deploy took the lock: {self.state.who}")

    def check(self) -> None:
        """Ask before each change.

        :raises LockLostError: the lease is lost, or was not renewed in time
        """
        if self.now() >= self._until:
            raise LockLostError(
                "the deploy lock could not be renewed in time, so nothing more is changed",
                hint="run the command again when AWS answers: it resumes where it stopped",
            )

    def release(self) -> None:
        """Give the lease back; if it is another client's by now, that changes nothing."""
        self._until = float("-inf")
        self._write(overwrite=True, holder=False, after=self.me)

    def _hold(self, sent: float, version: int) -> None:
        self._version = version
        self._until = sent + LEASE_SECONDS - MARGIN_SECONDS

    def _confirm(self, sent: float, version: int) -> bool:
        """Whether the lease is this client's after its write of a version."""
        for _ in range(_LOOKS):
            entries, _ = self._history()
            if any(entry.version == version for entry in entries):
                self.state = state_of(entries)
                if self.state.holder == self.me:
                    self._hold(sent, version)
                return self.state.holder == self.me
        return False

    def _write(self, *, overwrite: bool, holder: bool = True, after: str | None = None) -> int:
        """Return the parameter's new version."""
        who = f"process {os.getpid()} on {socket.gethostname()}"
        value = {"holder": self.me if holder else None, "after": after, "who": who}
        response = self.client.put_parameter(
            Name=self.name, Value=json.dumps(value), Type="String", Overwrite=overwrite
        )
        return int(response["Version"])

    def _history(self) -> tuple[list[Entry], float]:
        """The versions that AWS still has, oldest first, and its time when it answered."""
        entries: list[Entry] = []
        paginator = self.client.get_paginator("get_parameter_history")
        for response in paginator.paginate(Name=self.name, PaginationConfig={"PageSize": _PAGE}):
            entries += map(_entry, response["Parameters"])
            date = response["ResponseMetadata"]["HTTPHeaders"]["date"]
        entries.sort(key=lambda entry: entry.version)
        return entries, parsedate_to_datetime(date).timestamp()


def _entry(parameter: dict[str, Any]) -> Entry:
    value: Any = None
    with suppress(ValueError):
        value = json.loads(parameter["Value"])
    value = value if isinstance(value, dict) else {}
    return Entry(
        version=int(parameter["Version"]),
        at=parameter["LastModifiedDate"].timestamp(),
        holder=value.get("holder"),
        after=value.get("after"),
        who=str(value.get("who", "unknown")),
    )


@contextmanager
def exclusive(context: DeployContext, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the deployment's lease; every change through ``context`` asks for it.

    :raises LockedError: another one has it, and still has it after ``wait_seconds``
    """
    me = uuid.uuid4().hex
    folder = context.config.state_dir / "deploy-locks"
    with _alive(folder / me):
        client = context.aws.new_client("ssm")
        lease = Lease(client, context.names.lock, me, lambda holder: _ended(folder, holder))
        deadline = time.monotonic() + wait_seconds
        while not lease.acquire():
            if time.monotonic() >= deadline:
                raise LockedError(
                    f"another deploy is under way: {lease.state.who}",
                    hint=f"wait for it; a deploy that was killed blocks others for at most "
                    f"{LEASE_SECONDS:.0f} s",
                )
            time.sleep(POLL_SECONDS)
        stop = threading.Event()
        renewing = threading.Thread(target=_renew, args=(lease, stop), daemon=True)
        renewing.start()
        unchecked, context.check_lease = context.check_lease, lease.check
        try:
            yield
        finally:
            stop.set()
            renewing.join()
            context.check_lease = unchecked
            try:
                lease.release()
            except Exception as error:  # a lease that is not released expires
                logger.warning("the deploy lock could not be released: %s", type(error).__name__)


def _renew(lease: Lease, stop: threading.Event) -> None:
    while not stop.wait(RENEW_SECONDS):
        try:
            lease.renew()
        except LockLostError as error:
            logger.error("%s; this one stops", error)
            return
        except Exception as error:  # the next renewal may work; the lease lasts a few of them
            logger.warning("the deploy lock could not be renewed: %s", type(error).__name__)


@contextmanager
def _alive(path: Path) -> Iterator[None]:
    """Lock a file for as long as this process lives; the kernel unlocks it, whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _ended(folder: Path, holder: str) -> bool:
    """Whether a holder was a process of this machine that has ended."""
    path = folder / holder
    if not _ID.fullmatch(holder):
        return False
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return True
    except OSError:  # it lives, is another machine's, or has a state directory of its own
        return False
