"""Work that is done again: one way, on tenacity."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_none
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from topicberg.errors import CommitConflictError, TopicbergError, first_line
from topicberg.errors.meaning import means
from topicberg.errors.table import CONFLICT

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
_AT_ONCE = wait_none()


def retry(
    work: Callable[[], Result],
    stop: int | stop_base,
    *,
    on: type[BaseException] | Callable[[BaseException], bool] = CommitConflictError,
    wait: wait_base | Callable[[RetryCallState], float] = _AT_ONCE,
    sleep: Callable[[float], None] = time.sleep,
    exhausted: TopicbergError | None = None,
) -> Result:
    """Do the work again while it fails in a way that another attempt may resolve.

    :param work: reads the newest state each time
    :param stop: attempts in all, or when no other one begins
    :param on: the failure, by its class or by a question; by default that another commit came
        first, see :func:`conflicts`
    :param exhausted: raised after the last attempt, instead of its error
    """

    def is_resolved(error: BaseException) -> bool:
        return isinstance(error, on) if isinstance(on, type) else on(error)

    def log(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        seconds = state.next_action.sleep if state.next_action else 0.0
        level = logging.INFO if isinstance(stop, int) else logging.DEBUG  # a poll, until a deadline
        logger.log(level, "%s; attempt %d in %.1f s", error, state.attempt_number + 1, seconds)

    retrying = Retrying(
        retry=retry_if_exception(is_resolved),
        stop=stop_after_attempt(stop) if isinstance(stop, int) else stop,
        wait=wait,
        sleep=sleep,
        before_sleep=log,
        reraise=True,
    )
    try:
        return retrying(work)
    except Exception as error:
        if exhausted is None or not is_resolved(error):
            raise
        raise exhausted from error


@contextmanager
def conflicts(subject: str) -> Iterator[None]:
    """Raise the libraries' errors of a commit that came second as a :class:`CommitConflictError`;
    ``subject``: the object, as in ``table shop.orders``."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TopicbergError) or not means(error, CONFLICT):
            raise
        raise CommitConflictError(f"{subject}: {first_line(error)}") from error
