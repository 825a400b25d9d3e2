"""Polling of vendors: with a limit, and with progress for what takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from topicberg.errors import TopicbergError

T = TypeVar("T")

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 15.0
SILENT_SECONDS = 20.0
"""What takes longer says so, again and again."""


class DeadlineExceededError(TopicbergError):
    """What was polled for did not happen in time."""


def poll(
    ask: Callable[[], T | None],
    awaited: str,
    seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the first response of ``ask`` that is neither None nor False.

    Reads at growing intervals: fast changes are seen soon, and slow ones are not read too often.

    :param awaited: a sentence about what is waited for, for the error
    :raises DeadlineExceededError: not within ``seconds``
    """
    deadline = time.monotonic() + seconds
    interval = FIRST_SECONDS
    while True:
        response = ask()
        if response is not None and response is not False:
            return response
        if time.monotonic() + interval > deadline:
            raise DeadlineExceededError(
                f"timed out after {seconds:.0f} s: {awaited}",
                hint="run the command again: it resumes where it stopped",
            )
        sleep(interval)
        interval = min(LONGEST_SECONDS, interval * 1.5)


@contextmanager
def report_progress(say: Callable[[str], None], usual_minutes: float) -> Iterator[None]:
    """Say every :data:`SILENT_SECONDS` how long the body has taken, and how long it usually does.

    :param usual_minutes: an order of magnitude; 0: not known
    """
    over = threading.Event()
    usual = f", usually about {usual_minutes:g} min" if usual_minutes else ""
    began = time.monotonic()

    def report() -> None:
        while not over.wait(SILENT_SECONDS):
            say(f"after {time.monotonic() - began:.0f} s not ready yet{usual}")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
