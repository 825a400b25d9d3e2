"""The statements that the emulator answers itself, read into :class:`Statement`.

Each kind of object has its grammar in a module of its own; here is what they share: the verbs,
``OR REPLACE``, ``IF [NOT] EXISTS``, ``SET``, ``UNSET``, ``LIKE`` and ``IN``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from topicberg_local.emulators.snowflake.errors import incompatible, invalid_property, unsupported
from topicberg_local.emulators.snowflake.options import Spec
from topicberg_local.emulators.snowflake.tokens import Name, Stream

Tail = Callable[[Stream, "Statement"], None]
"""Reads what follows the name, into ``action`` and ``properties``."""


@dataclass
class Statement:
    """One statement.

    :param verb: CREATE, ALTER, DROP, SHOW, DESCRIBE, USE, GRANT or REVOKE
    :param kind: of the object, singular, e.g. ``EXTERNAL VOLUME``
    :param action: of an ALTER, e.g. ``SET``
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


def creates(spec: Spec, *, tags: str = "") -> Tail:
    """Properties.

    :param tags: which ones could follow in Snowflake, e.g. ``tags of a user``
    """

    def read(stream: Stream, statement: Statement) -> None:
        statement.properties = spec.read(stream, until=("WITH", "TAG") if tags else ())
        if stream.peek().kind != "end":
            raise unsupported(tags)

    return read


def alters(spec: Spec, *, unset: bool = False, refused: tuple[str, ...] = ()) -> Tail:
    """``SET`` with properties.

    :param unset: or ``UNSET`` with their names
    :param refused: how the tail may begin too, in Snowflake only
    """

    def read(stream: Stream, statement: Statement) -> None:
        word = stream.peek().value
        if stream.take("SET"):
            statement.action = word
            if stream.at("TAG") or stream.peek(1).value == "POLICY":
                raise unsupported(f"ALTER {statement.kind} … SET {stream.peek().value}")
            statement.properties = spec.read(stream)
            if not statement.properties:
                raise stream.unexpected()
        elif unset and stream.take("UNSET"):
            statement.action = word
            names = [stream.word()]
            while stream.take(",") or stream.peek().kind == "word":
                names.append(stream.word())
            for name in names:
                if name not in spec.readers:
                    raise invalid_property(name, spec.kind)
            statement.properties = dict.fromkeys(names)
        elif word in refused:
            raise unsupported(f"ALTER {statement.kind} … {word}")
        else:
            raise stream.unexpected()

    return read


def parse_object_statement(stream: Stream, kinds: tuple[Kind, ...]) -> Statement | None:
    """A statement on one of ``kinds``, or None when it is on none of them.

    :raises ProgrammingError: it is on one of them and wrong
    """
    for kind in kinds:
        statement = _create(stream, kind) or _on_existing(stream, kind) or _show(stream, kind)
        if statement is not None:
            stream.end()
            return statement
    return None


def _create(stream: Stream, kind: Kind) -> Statement | None:
    if kind.create is None:
        return None
    replace = stream.take("CREATE", "OR", "REPLACE", *kind.words)
    if not replace and not stream.take("CREATE", *kind.words):
        return None
    statement = Statement("CREATE", kind.name, or_replace=replace)
    statement.if_not_exists = stream.take("IF", "NOT", "EXISTS")
    if statement.or_replace and statement.if_not_exists:
        raise incompatible("IF NOT EXISTS", "OR REPLACE")
    statement.name = stream.name(kind.parts)
    kind.create(stream, statement)
    return statement


def _on_existing(stream: Stream, kind: Kind) -> Statement | None:
    if kind.describe and (stream.take("DESC", *kind.words) or stream.take("DESCRIBE", *kind.words)):
        statement = Statement("DESCRIBE", kind.name, stream.name(kind.parts))
        kind.describe(stream, statement)
        return statement
    if kind.alter and stream.take("ALTER", *kind.words):
        statement = Statement("ALTER", kind.name, if_exists=stream.take("IF", "EXISTS"))
        statement.name = stream.name(kind.parts)
        kind.alter(stream, statement)
        return statement
    if kind.drop and stream.take("DROP", *kind.words):
        statement = Statement("DROP", kind.name, if_exists=stream.take("IF", "EXISTS"))
        statement.name = stream.name(kind.parts)
        if not kind.in_account:
            stream.take("CASCADE") or stream.take("RESTRICT")
        return statement
    return None


def _show(stream: Stream, kind: Kind) -> Statement | None:
    if kind.plural is None or not stream.take("SHOW", *kind.plural.split()):
        return None
    statement = Statement("SHOW", kind.name)
    if stream.take("LIKE"):
        statement.like = stream.string()
    if not kind.in_account and stream.take("IN"):
        statement.scope = _scope(stream)
    if stream.at("STARTS") or stream.at("LIMIT"):
        raise unsupported(f"SHOW {kind.plural} … {stream.peek().value}")
    return statement


def _scope(stream: Stream) -> tuple[str, Name]:
    if stream.take("ACCOUNT"):
        return "ACCOUNT", ()
    if stream.take("DATABASE"):
        return "DATABASE", stream.name() if stream.peek().kind in ("word", "quoted") else ()
    stream.take("SCHEMA")
    return "SCHEMA", stream.name(2) if stream.peek().kind in ("word", "quoted") else ()
