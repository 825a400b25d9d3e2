"""Waiting for something to become so: by asking, with a limit, and saying what was waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from topicberg.errors import TopicbergError

T = TypeVar("T")

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 15.0


class PatienceError(TopicbergError):
    """Something did not become so in time."""


def until(
    ask: Callable[[], T | None],
    what: str,
    seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> T:
    """The first answer of ``ask`` that is neither None nor False.

    Reads at growing intervals: fast changes are seen soon, and slow ones are not read too often.

    :param what: a sentence about what is waited for, for the error
    :raises PatienceError: not within ``seconds``
    """
    deadline = now() + seconds
    interval = FIRST_SECONDS
    while True:
        answer = ask()
        if answer is not None and answer is not False:
            return answer
        if now() + interval > deadline:
            raise PatienceError(
                f"waited {seconds:.0f} s in vain: {what}",
                hint="run the command again: it resumes where it stopped",
            )
        sleep(interval)
        interval = min(LONGEST_SECONDS, interval * 1.5)
