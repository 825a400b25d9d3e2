"""Errors that a user can act on.

Every error that topicberg raises on purpose is a :class:`TopicbergError`: one clear message that
names the file, field or resource, and a hint that says how to fix it. The command line prints
both and exits with 2; Dagster shows them as the failure of the step. Neither contains a secret that
the process knows, or a control character, not even in quoted text.

:mod:`.table` says what an error of another program means, :mod:`.retry` does work again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any

from topicberg.security.redaction import redact
from topicberg.security.text import terminal

_DEPTH = 10  # How many causes of an error are inspected.
_HINT = "\n  → "
MAX_CHARACTERS = 8_000
"""Of a message: names in schemas may have a million characters, and statuses, logs, checks and
alerts repeat it."""


is_local: Callable[[], bool] = bool
"""Whether the deployment is the local stack: :mod:`topicberg.settings`, which knows it, sets this
function, since everything that reads settings imports errors."""


class TopicbergError(Exception):
    """The base class of all errors that topicberg raises on purpose: what failed, with the file,
    field or resource, and a hint: how to fix it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = _shortened(terminal(redact(message)))
        self.hint = terminal(redact(hint)) if hint else hint
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}{_HINT}{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors come from processes that decode, and from tasks of Spark. A subclass may need other
        # arguments, which are among its attributes.
        return type(self).__new__, (type(self), self.message), self.__dict__


def _shortened(text: str) -> str:
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else f"{text[:half]} […] {text[-half:]}"


def split_hint(text: str) -> tuple[str, str | None]:
    """Return message and hint of the text of an error, which others keep as text only (Dagster, and
    Tableflow's API): the inverse of ``str(error)``."""
    message, _, hint = text.partition(_HINT)
    return message, hint.strip() or None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or else the name of its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip()


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, and the chain of its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def line_in(error: BaseException, *files: str) -> int | None:
    """Return the line of the innermost call in a file; None: there is none.

    :param files: paths, or their ends
    """
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.endswith(files)]
    return lines[-1] if lines else None


def raised_in(trace: TracebackType | None, library: str) -> bool:
    """Return whether a package's code took part in raising an error."""
    frames = (frame for frame, _ in traceback.walk_tb(trace))
    return any(str(frame.f_globals.get("__name__")).startswith(library) for frame in frames)


def safe(error: BaseException) -> BaseException:
    """Return the error itself, or one without the secrets and control characters of its text and
    its causes' texts, all of which Dagster shows."""
    chain = islice(causes(error), _DEPTH)
    text = "\ncaused by ".join(f"{type(each).__name__}: {each}" for each in chain)
    if terminal(redact(text)) == text:
        return error
    cleaned = TopicbergError(text)
    cleaned.__suppress_context__ = True
    return cleaned


def see_whether_it_runs(service: str, *, starts: bool = False) -> str:
    """Return the hint about a service that does not answer, and, with ``starts``, how to start it:
    `topicberg status` knows only the local stack."""
    if is_local():
        start = ", `topicberg up` to start it" if starts else ""
        return f"run `topicberg status` to see whether {service} runs{start}"
    return f"check that {service} runs, and that this machine reaches it: network, DNS and firewall"


class SpecError(TopicbergError):
    """A topic spec, or one of its files, is invalid."""


class StackError(TopicbergError):
    """The local stack cannot do what was requested."""


class StackNotRunningError(StackError):
    """The local stack, or one service of it, is not running."""


class TableflowError(TopicbergError):
    """A topic cannot be materialized; it is suspended until the cause is fixed."""


class TableFormatError(TableflowError):
    """A table has a format version, or a feature of one, that topicberg does not read or write."""


class CommitConflictError(TopicbergError):
    """Another writer committed to the table first; nothing was written, the work can be redone."""


class UnreachableError(TopicbergError):
    """A service does not answer; the request itself is valid."""


class ThrottledError(TopicbergError):
    """A service asks to slow down, or has no capacity for more."""


class LoginError(TopicbergError):
    """A service refuses the credentials, or what they may do: the same request fails again."""


class NotFoundError(UnreachableError):
    """The host name of a server does not resolve."""


class CertificateError(LoginError):
    """The certificate of a server, or of this client, is not accepted."""


class MissingFileError(TopicbergError):
    """A file of a table is missing in the object store."""
