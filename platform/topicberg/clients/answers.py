"""Responses that are not the service's: a "200 OK" with HTML, half a body, or other JSON.

They come from a proxy, a captive portal, a wrong address, or a vendor's failure. The vendors'
clients raise a ``KeyError`` or worse for them; here they become one clear error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from topicberg.errors import TopicbergError, UnreachableError, raised_in

HINT = (
    "check the address: another service, a proxy or a login page may have responded; run "
    "`topicberg status` to see the local stack"
)
MISREAD = (LookupError, TypeError, ValueError, AttributeError)
"""Exceptions of a client that misreads a response; JSON's errors are ValueErrors."""
RESUME_HINT = (
    "report these names, and run the command again with a version of topicberg that knows them: "
    "what exists stays, and the command resumes where it stopped"
)


class AnswerError(UnreachableError):
    """The response is not one of the requested service, or the service fails."""


class UnknownNamesError(TopicbergError):
    """The service answered, with unexpected names; another request gets the same ones."""


def unknown_names(operation: str, expected: str) -> UnknownNamesError:
    """Return the error for an answer of the service itself that lacks a name; ``operation``:
    service and operation, as in ``Snowflake (DESC USER)``."""
    return UnknownNamesError(f"{operation}: unknown names, expected {expected}", hint=RESUME_HINT)


class VendorAnswer(dict[str, Any]):
    """An object of a response: reading a field that it lacks is an error that names the field.

    :param operation: service and operation
    :param is_certain: it is an answer of the service itself, not of something on the way to it
    """

    def __init__(
        self, fields: Mapping[str, Any], operation: str, *, is_certain: bool = False
    ) -> None:
        super().__init__(fields)
        self._operation = operation
        self._refuse = unknown_names if is_certain else unusable

    def __missing__(self, field: str) -> Any:
        return self.first(field)

    def first(self, *fields: str) -> Any:
        """Return the first of these fields that the object has.

        :raises AnswerError: it has none; UnknownNamesError, if the answer is certainly the
            service's
        """
        for field in fields:
            if field in self:
                return self[field]
        present = ", ".join(self) or "no field"
        expected = " or ".join(map(repr, fields))
        raise self._refuse(self._operation, f"an object that has {expected}; it has {present}")


def unusable(operation: str, expected: str) -> AnswerError:
    """Return the error for an unexpected response; ``operation``: service and operation, as in
    ``Glue GetTable``."""
    return AnswerError(f"{operation}: unexpected response, expected {expected}", hint=HINT)


def checked(value: Any, operation: str) -> Any:
    """Return the same JSON with every object of it as an :class:`VendorAnswer`."""
    if isinstance(value, dict):
        return VendorAnswer(
            {name: checked(each, operation) for name, each in value.items()}, operation
        )
    return [checked(each, operation) for each in value] if isinstance(value, list) else value


@contextmanager
def answered(operation: str, expected: str, library: str) -> Iterator[None]:
    """Check the call of a vendor's client, of a package ``library``, that does not check its
    responses.

    :raises AnswerError: the client could not read the response
    """
    try:
        yield
    except MISREAD as error:
        if not raised_in(error.__traceback__, library):
            raise
        raise unusable(operation, expected) from error
