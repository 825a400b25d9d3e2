"""Steps that are retried, each kind of failure in its own way: see :mod:`topicberg.errors.table`.

A retry policy of Dagster would also repeat what can only fail again, a wrong spec for example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from topicberg.errors import safe
from topicberg.errors.meaning import classify, to_report


@contextmanager
def retried() -> Iterator[None]:
    """For functions of assets, checks and ops, as a decorator: ``@retried()``.

    :raises dagster.RetryRequested: a retry may resolve the failure
    """
    try:
        yield
    except Exception as error:
        kind = classify(error)
        if kind is None:
            raise safe(to_report(error))  # noqa: B904  a cause would show what was taken out
        context = dg.OpExecutionContext.get()
        wait = kind.wait(context.retry_number)
        if context.retry_number < kind.retries:
            context.log.warning(f"{kind.name}, retrying in {wait:.0f} s: {safe(error)}")
        raise dg.RetryRequested(kind.retries, wait) from safe(to_report(error))
