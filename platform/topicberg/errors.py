"""Errors that a user can act on.

Every error that topicberg raises on purpose is a :class:`TopicbergError`: one clear message that
names the file, field or resource, and a hint that says how to mend it. The command line prints
both and exits with 2; Dagster shows them as the failure of the step. Neither holds a secret that
the process knows, nor a control character, whoever wrote the text that it quotes.
"""

from __future__ import annotations

from topicberg.security.redaction import redact
from topicberg.security.text import terminal

_DEPTH = 10
"""Errors that one came from which are looked at."""


class TopicbergError(Exception):
    """The root of all errors that topicberg raises on purpose.

    :param message: what is wrong, naming the file, field or resource
    :param hint: what to do about it
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = terminal(redact(message))
        self.hint = terminal(redact(hint)) if hint else hint
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.hint}" if self.hint else self.message


def safe(error: BaseException) -> BaseException:
    """Return the error itself, or one without the secrets and control characters of its text.

    The errors that it came from are looked at as well: Dagster shows all of them.
    """
    said: list[str] = []
    each: BaseException | None = error
    while each is not None and len(said) < _DEPTH:
        said.append(f"{type(each).__name__}: {each}")
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    text = "\ncaused by ".join(said)
    if terminal(redact(text)) == text:
        return error
    cleaned = TopicbergError(text)
    cleaned.__suppress_context__ = True
    return cleaned


class SpecError(TopicbergError):
    """A topic spec, or one of its files, is wrong."""


class StackError(TopicbergError):
    """The local stack cannot do what was asked."""


class StackNotRunningError(StackError):
    """The local stack, or one service of it, is not running."""


class TableflowError(TopicbergError):
    """A topic cannot be materialized; the topic is suspended until it is mended."""


class CommitConflictError(TopicbergError):
    """Somebody else committed to the table first; nothing was written, the work can be redone."""


class UnreachableError(TopicbergError):
    """A service does not answer; nothing is wrong with what was asked of it."""


class ThrottledError(TopicbergError):
    """A service asks to slow down, or has no room for more."""
