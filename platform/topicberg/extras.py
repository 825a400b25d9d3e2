"""What is not installed with topicberg alone, and the extra that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topicberg.errors import TopicbergError


def needs(extra: str) -> str:
    """Return the hint for what an extra installs."""
    return f"run `pip install 'topicberg[{extra}]'`"


@contextmanager
def of_extra(extra: str) -> Iterator[None]:
    """Around an import of a library that an extra installs.

    :raises TopicbergError: it is not installed
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise TopicbergError(f"{error.name} is not installed", hint=needs(extra)) from None
