"""Steps that are tried again, each kind of failure in its own way: see :mod:`topicberg.transient`.

A retry policy of Dagster would also repeat what can only fail again, a wrong spec for example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg


@contextmanager
def retried() -> Iterator[None]:
    """For functions of assets, checks and ops, as a decorator: ``@retried()``.

    :raises dagster.RetryRequested: the failure passes by itself
    """
    from topicberg.errors import safe
    from topicberg.transient import kind_of, said, without_jvm

    try:
        yield
    except Exception as error:
        kind = kind_of(error)
        if kind is None:
            raise safe(without_jvm(error))  # noqa: B904  a cause would show what was taken out
        context = dg.OpExecutionContext.get()
        wait = kind.wait(context.retry_number)
        if context.retry_number < kind.retries:
            context.log.warning(f"{kind.name}, trying again in {wait:.0f} s: {safe(error)}")
        retry = dg.RetryRequested(max_retries=kind.retries, seconds_to_wait=wait)
        raise retry from safe(said(error))
