"""One local stack for the workers of a run: who starts it, who ends it, and whose turn it is."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from topicberg.endpoints import Endpoints
from topicberg.errors import StackError
from topicberg.settings import Settings
from topicberg_local import stack
from topicberg_local.health import NotReadyError

STARTING_SECONDS = 400.0


class SharedStack:
    """The folder of a stack that pytest's workers share, and locks beside it.

    Tests use the stack at the same time, but for those that kill or restart its services. Files
    whose tests end Spark wait for the other files, whose tests may share a session.
    """

    def __init__(self, folder: Path, locks: Path) -> None:
        self.folder = folder
        self._locks = locks
        locks.mkdir(parents=True, exist_ok=True)
        self._started = locks / "started"
        self._users: IO[bytes] | None = None

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """One worker compiles the tests; then all others read what it wrote, at the same time."""
        done = self._locks / "compiled"
        with self._locked("compiling", fcntl.LOCK_EX) as file:
            if done.exists():
                fcntl.flock(file, fcntl.LOCK_UN)
            yield
            done.touch()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """One worker starts, the others wait; from then on this one is a user."""
        with self._locked("start", fcntl.LOCK_EX):
            self._users = (self._locks / "users").open("ab")
            fcntl.flock(self._users, fcntl.LOCK_SH)
            yield

    def note_that_we_started(self) -> None:
        self._started.touch()

    @contextmanager
    def ending(self) -> Iterator[bool]:
        """Yield whether this run started the stack, and no other worker uses it any more."""
        if self._users is None:
            yield False
            return
        with self._locked("start", fcntl.LOCK_EX):  # nobody begins to use it meanwhile
            is_last = True
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_last = False
            self._users.close()
            yield is_last and self._started.exists()

    @contextmanager
    def turn(self, of: Literal["file", "test"], *, alone: bool) -> Iterator[None]:
        """A turn: beside others, or alone. Who waits to be alone comes before new others."""
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        with self._locked(f"next-{of}", fcntl.LOCK_EX) as following, self._locked(of, kind):
            fcntl.flock(following, fcntl.LOCK_UN)
            yield

    @contextmanager
    def _locked(self, name: str, kind: int) -> Iterator[IO[bytes]]:
        with (self._locks / name).open("ab") as file:
            fcntl.flock(file, kind)
            try:
                yield file
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked process may have the file open, too


def up(config: Settings) -> Endpoints:
    """Start what does not run; the UI of another worker's test may be starting it already. On a
    busy machine, a service may be started and not answer yet."""
    deadline = time.monotonic() + STARTING_SECONDS
    while True:
        try:
            return stack.up(config)
        except StackError as error:
            starts = isinstance(error, NotReadyError) or "by another command" in error.message
            if not starts or time.monotonic() > deadline:
                raise
        time.sleep(0.5)
