"""Answers that are none: a "200 OK" with HTML, with half a body, or with another service's JSON.

A proxy, a captive portal or a wrong address give them, and so does a vendor that is out of order.
The vendors' clients make a ``KeyError`` or worse of them; here they become one clear error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from topicberg.errors import UnreachableError

HINT = (
    "something else answers at its address, or stands before it (a proxy, a login page): check the "
    "address; `topicberg status` shows the local stack"
)
MISREAD = (LookupError, TypeError, ValueError, AttributeError)
"""What a client raises that takes an answer for another one; JSON's errors are ValueErrors."""


class AnswerError(UnreachableError):
    """What answered is not the service that was asked, or is out of order."""


class Answer(dict[str, Any]):
    """An object of an answer: to read a field that it does not have is an error that says so.

    :param asked: service and operation
    """

    def __init__(self, fields: Mapping[str, Any], asked: str) -> None:
        super().__init__(fields)
        self._asked = asked

    def __missing__(self, field: str) -> Any:
        raise unusable(self._asked, f"an object that has {field!r}")


def unusable(asked: str, expected: str) -> AnswerError:
    """
    :param asked: service and operation, as in ``Glue GetTable``
    """
    return AnswerError(f"{asked} was answered with something else than {expected}", hint=HINT)


def checked(value: Any, asked: str) -> Any:
    """The same JSON with every object of it as an :class:`Answer`."""
    if isinstance(value, dict):
        return Answer({name: checked(each, asked) for name, each in value.items()}, asked)
    if isinstance(value, list):
        return [checked(each, asked) for each in value]
    return value


@contextmanager
def answered(asked: str, expected: str, library: str) -> Iterator[None]:
    """Around the call of a vendor's client that does not check what it is answered.

    :param library: the client's package; errors of our own pass as they are
    :raises AnswerError: the client could not read the answer
    """
    try:
        yield
    except MISREAD as error:
        if not raised_in(error.__traceback__, library):
            raise
        raise unusable(asked, expected) from error


def raised_in(trace: TracebackType | None, library: str) -> bool:
    """Whether a package's code has anything to do with an error."""
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith(library):
            return True
        trace = trace.tb_next
    return False
