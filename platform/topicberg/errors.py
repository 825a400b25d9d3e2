"""Errors that a user can act on.

Every error that topicberg raises on purpose is a :class:`TopicbergError`: one clear message that
names the file, field or resource, and a hint that says how to mend it. The command line prints
both and exits with 2; Dagster shows them as the failure of the step.
"""

from __future__ import annotations


class TopicbergError(Exception):
    """The root of all errors that topicberg raises on purpose.

    :param message: what is wrong, naming the file, field or resource
    :param hint: what to do about it
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.hint}" if self.hint else self.message


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
