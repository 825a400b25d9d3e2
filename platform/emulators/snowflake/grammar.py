"""The statements that the emulator answers itself, read into :class:`Statement`.

Each kind of object has its grammar in a module of its own; here is what they share: the verbs,
``OR REPLACE``, ``IF [NOT] EXISTS``, ``LIKE``, ``IN`` and the rest of SHOW.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emulators.snowflake.errors import incompatible
from emulators.snowflake.tokens import Name, Stream

Tail = Callable[[Stream, "Statement"], None]
"""Reads what follows the name, into ``action`` and ``properties``."""


@dataclass
class Statement:
    """One statement.

    :param verb: CREATE, ALTER, DROP, SHOW, DESCRIBE, USE, GRANT or REVOKE
    :param kind: of the object, singular, e.g. ``EXTERNAL VOLUME``
    :param action: of an ALTER, e.g. ``SET``; ``TERSE`` of a SHOW
    """

    verb: str
    kind: str
    name: Name = ()
    or_replace: bool = False
    if_exists: bool = False
    if_not_exists: bool = False
    action: str = ""
    properties: dict[str, Any] = field(default_factory=dict)
    like: str | None = None
    starts_with: str | None = None
    limit: int | None = None
    scope: tuple[str, Name] | None = None


@dataclass(frozen=True)
class Kind:
    """The grammar of one kind of object. A verb that is None is not a statement of this kind."""

    name: str
    parts: int = 1
    create: Tail | None = None
    alter: Tail | None = None
    describe: Tail | None = None
    plural: str | None = None
    drop: bool = True
    in_account: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.name.split())


def nothing(_stream: Stream, _statement: Statement) -> None:
    """A tail that has to be empty."""


def parse_object_statement(stream: Stream, kinds: tuple[Kind, ...]) -> Statement | None:
    """A statement on one of ``kinds``, or None when it is on none of them.

    :raises ProgrammingError: it is on one of them and wrong
    """
    readers = {
        "CREATE": _create,
        "ALTER": _alter,
        "DROP": _drop,
        "SHOW": _show,
        "DESC": _describe,
        "DESCRIBE": _describe,
    }
    reader = readers.get(stream.peek().value) if stream.peek().kind == "word" else None
    if reader is None:
        return None
    statement = reader(stream, kinds)
    if statement is not None:
        stream.end()
    return statement


def _create(stream: Stream, kinds: tuple[Kind, ...]) -> Statement | None:
    words = 3 if (replace := _at(stream, 1, ("OR", "REPLACE"))) else 1
    kind = _kind(stream, words, kinds)
    if kind is None or kind.create is None:
        return None
    _skip(stream, words + len(kind.words))
    statement = Statement("CREATE", kind.name, or_replace=replace)
    statement.if_not_exists = stream.take("IF", "NOT", "EXISTS")
    if statement.or_replace and statement.if_not_exists:
        raise incompatible("IF NOT EXISTS", "OR REPLACE")
    statement.name = stream.name(kind.parts)
    kind.create(stream, statement)
    return statement


def _alter(stream: Stream, kinds: tuple[Kind, ...]) -> Statement | None:
    kind = _kind(stream, 1, kinds)
    if kind is None or kind.alter is None:
        return None
    _skip(stream, 1 + len(kind.words))
    statement = Statement("ALTER", kind.name, if_exists=stream.take("IF", "EXISTS"))
    statement.name = stream.name(kind.parts)
    kind.alter(stream, statement)
    return statement


def _drop(stream: Stream, kinds: tuple[Kind, ...]) -> Statement | None:
    kind = _kind(stream, 1, kinds)
    if kind is None or not kind.drop:
        return None
    _skip(stream, 1 + len(kind.words))
    statement = Statement("DROP", kind.name, if_exists=stream.take("IF", "EXISTS"))
    statement.name = stream.name(kind.parts)
    if not kind.in_account:
        stream.take("CASCADE") or stream.take("RESTRICT")
    return statement


def _describe(stream: Stream, kinds: tuple[Kind, ...]) -> Statement | None:
    kind = _kind(stream, 1, kinds)
    if kind is None or kind.describe is None:
        return None
    _skip(stream, 1 + len(kind.words))
    statement = Statement("DESCRIBE", kind.name, name=stream.name(kind.parts))
    kind.describe(stream, statement)
    return statement


def _show(stream: Stream, kinds: tuple[Kind, ...]) -> Statement | None:
    terse = _at(stream, 1, ("TERSE",))
    words = 2 if terse else 1
    for kind in kinds:
        if kind.plural and _at(stream, words, tuple(kind.plural.split())):
            break
    else:
        return None
    _skip(stream, words + len(kind.plural.split()))
    statement = Statement("SHOW", kind.name, action="TERSE" if terse else "")
    if stream.take("LIKE"):
        statement.like = stream.string()
    if not kind.in_account and stream.take("IN"):
        statement.scope = _scope(stream)
    if stream.take("STARTS", "WITH"):
        statement.starts_with = stream.string()
    if stream.take("LIMIT"):
        statement.limit = stream.integer("LIMIT")
    return statement


def _scope(stream: Stream) -> tuple[str, Name]:
    if stream.take("ACCOUNT"):
        return "ACCOUNT", ()
    if stream.take("DATABASE"):
        return "DATABASE", stream.name() if stream.peek().kind in ("word", "quoted") else ()
    stream.take("SCHEMA")
    return "SCHEMA", stream.name(2) if stream.peek().kind in ("word", "quoted") else ()


def _kind(stream: Stream, ahead: int, kinds: tuple[Kind, ...]) -> Kind | None:
    return next((kind for kind in kinds if _at(stream, ahead, kind.words)), None)


def _at(stream: Stream, ahead: int, words: tuple[str, ...]) -> bool:
    found = (stream.peek(ahead + index) for index in range(len(words)))
    return all(t.kind == "word" and t.value == w for t, w in zip(found, words, strict=True))


def _skip(stream: Stream, count: int) -> None:
    for _ in range(count):
        stream.advance()
