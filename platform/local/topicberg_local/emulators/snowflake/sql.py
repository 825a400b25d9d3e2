"""Snowflake's SQL: tokens, property lists, and the statements that the emulator answers itself.

A statement is read into :class:`Statement`. Each kind of object has its grammar in a module of its
own; here is what they share: the verbs, ``OR REPLACE``, ``IF [NOT] EXISTS``, ``SET``, ``UNSET``,
``LIKE`` and ``IN``, and property lists: ``NAME = value NAME = (NAME = value …)``.

https://docs.snowflake.com/en/sql-reference/identifiers-syntax and
https://docs.snowflake.com/en/sql-reference/data-types-text#string-constants
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from topicberg_local.emulators.snowflake import errors

T = TypeVar("T")
Name = tuple[str, ...]
"""A qualified name, each part as it is stored: upper case unless it was quoted."""

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|//[^\n]*|/\*.*?\*/)
    |(?P<string>'(?:[^'\\]|''|\\.)*')
    |(?P<dollar>\$\$.*?\$\$)
    |(?P<quoted>"(?:[^"]|"")+")
    |(?P<word>[^\W\d][\w$]*)
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<mark>->>|=>|::|.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"''|\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[0-7]{3}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_PLAIN = re.compile(r"[A-Z_][A-Z0-9_$]*")


@dataclass(frozen=True)
class Token:
    """``value`` is what it stands for, ``text`` how it was written."""

    kind: Literal["string", "quoted", "word", "number", "mark", "end"]
    value: str
    text: str
    start: int


def quote(name: str) -> str:
    """An identifier as it has to be written to be read back: quoted only where needed."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def display(name: Name) -> str:
    return ".".join(quote(part) for part in name)


def tokenize(sql: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(sql):  # a mark matches anything
        text, position = match[0], match.start()
        match match.lastgroup:
            case "string":
                yield Token("string", _ESCAPE.sub(_unescape, text[1:-1]), text, position)
            case "dollar":
                yield Token("string", text[2:-2], text, position)
            case "quoted":
                yield Token("quoted", text[1:-1].replace('""', '"'), text, position)
            case "word":
                yield Token("word", text.upper(), text, position)
            case "number" | "mark" as kind:
                yield Token(kind, text, text, position)


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code is None:
        return "'"
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code[0] in "ux" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code.isdigit() and len(code) == 3 else str(code)


class Stream:
    """The tokens of one statement, read from left to right.

    Every reader raises Snowflake's syntax error, naming the offending token and its place.
    """

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._tokens = list(tokenize(sql))
        while self._tokens and self._tokens[-1].value == ";" and self._tokens[-1].kind == "mark":
            self._tokens.pop()
        self._next = 0

    def peek(self, ahead: int = 0) -> Token:
        index = self._next + ahead
        if index < len(self._tokens):
            return self._tokens[index]
        return Token("end", "", "<EOF>", len(self.sql))

    def find(self, *words: str) -> int | None:
        """How far ahead the first of these words is, wherever it is written; None: nowhere."""
        ahead = enumerate(self._tokens[self._next :])
        return next((n for n, t in ahead if t.kind == "word" and t.value in words), None)

    def advance(self) -> Token:
        token = self.peek()
        self._next += 1
        return token

    def at(self, *words: str) -> bool:
        """Whether exactly these words or marks come next."""
        tokens = [self.peek(ahead) for ahead in range(len(words))]
        are_plain = all(token.kind in ("word", "mark") for token in tokens)
        return are_plain and [token.value for token in tokens] == [*words]

    def take(self, *words: str) -> bool:
        is_next = self.at(*words)
        self._next += len(words) if is_next else 0
        return is_next

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.take(word):
                raise self.unexpected()

    def unexpected(self) -> Exception:
        token = self.peek()
        before = self.sql[: token.start]
        line = before.count("\n") + 1
        return errors.syntax_error(line, token.start - (before.rfind("\n") + 1), token.text)

    def end(self) -> None:
        if self.peek().kind != "end":
            raise self.unexpected()

    def _value(self, *kinds: str) -> str:
        if self.peek().kind not in kinds:
            raise self.unexpected()
        return self.advance().value

    def word(self) -> str:
        return self._value("word")

    def identifier(self) -> str:
        return self._value("word", "quoted")

    def name(self, parts: int = 1) -> Name:
        """A name of at most so many parts."""
        names = [self.identifier()]
        while len(names) < parts and self.take("."):
            names.append(self.identifier())
        return tuple(names)

    def many(self, read: Callable[[], T]) -> list[T]:
        """Return what is read once, or several times with commas between."""
        values = [read()]
        while self.take(","):
            values.append(read())
        return values

    def string(self, _option: str = "") -> str:
        return self._value("string")

    def reference(self, _option: str = "") -> str:
        """The name of an account object, bare or as a string: ``CATALOG = 'ci'``.

        Snowflake reads such a string as an identifier: ``'ci'`` is CI, ``'"ci"'`` is ci.
        """
        if self.peek().kind != "string":
            return self.identifier()
        try:
            (name,) = read_name(self.peek().value, 1)
        except Exception:
            raise self.unexpected() from None
        self.advance()
        return name

    def boolean(self, option: str) -> bool:
        return self.choice(option, ("TRUE", "FALSE")) == "TRUE"

    def integer(self, option: str) -> int:
        token = self.advance()
        if token.kind != "number" or not token.value.isdigit():
            raise errors.invalid_value(token.value or token.text, option)
        return int(token.value)

    def choice(self, option: str, allowed: tuple[str, ...]) -> str:
        token = self.advance()
        if token.kind not in ("word", "string") or token.value.upper() not in allowed:
            raise errors.invalid_value(token.value or token.text, option)
        return token.value.upper()


def read_name(text: str, parts: int) -> Name:
    """Return a name of at most so many parts, which a text is."""
    stream = Stream(text)
    name = stream.name(parts)
    stream.end()
    return name


Reader = Callable[[Stream, str], Any]
"""Reads the value of a property; the second argument is the property's name, for messages."""
Properties = dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """The properties that an object of this kind has, and those that it must be given."""

    kind: str
    readers: Mapping[str, Reader]
    required: tuple[str, ...] = ()

    def read(
        self, stream: Stream, *, until: tuple[str, ...] = (), commas: bool = False
    ) -> Properties:
        """Properties up to the end of the statement, or up to one of the words ``until``.

        :param commas: they may stand between the properties, as they may within parentheses
        """
        properties: Properties = {}
        while stream.peek().kind != "end" and not any(stream.at(word) for word in until):
            if properties and (commas or ")" in until):
                stream.take(",")
            name = stream.identifier()
            if name not in self.readers:
                raise errors.invalid_property(name, self.kind)
            if name in properties:
                raise errors.duplicate_property(name)
            stream.expect("=")
            properties[name] = self.readers[name](stream, name)
        self.complete(properties)
        return properties

    def complete(self, properties: Properties) -> None:
        if missing := [name for name in self.required if name not in properties]:
            raise errors.missing_options(missing)


text, reference, boolean, integer = Stream.string, Stream.reference, Stream.boolean, Stream.integer
"""Readers."""


def choice(*allowed: str) -> Reader:
    return lambda stream, name: stream.choice(name, allowed)


def listed(member: Reader, *, or_none: bool = False) -> Reader:
    """``(one, …)``; ``or_none``: there may be none of them."""

    def read(stream: Stream, name: str) -> list[Any]:
        stream.expect("(")
        is_empty = or_none and stream.at(")")
        members = [] if is_empty else stream.many(lambda: member(stream, name))
        stream.expect(")")
        return members

    return read


texts = listed(text)


def group(spec: Spec) -> Reader:
    def read(stream: Stream, _name: str) -> Properties:
        stream.expect("(")
        inner = spec.read(stream, until=(")",))
        stream.expect(")")
        return inner

    return read


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
    describe: bool = False
    plural: str | None = None
    drop: bool = True
    in_account: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.name.split())


def creates(spec: Spec, *, tags: str = "") -> Tail:
    """Properties; ``tags``: which ones could follow in Snowflake, e.g. ``tags of a user``."""

    def read(stream: Stream, statement: Statement) -> None:
        statement.properties = spec.read(stream, until=("WITH", "TAG") if tags else ())
        if stream.peek().kind != "end":
            raise errors.unsupported(tags)

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
                raise errors.unsupported(f"ALTER {statement.kind} … SET {stream.peek().value}")
            statement.properties = spec.read(stream)
            if not statement.properties:
                raise stream.unexpected()
        elif unset and stream.take("UNSET"):
            statement.action = word
            while not statement.properties or stream.take(",") or stream.peek().kind == "word":
                name = stream.word()
                if name not in spec.readers:
                    raise errors.invalid_property(name, spec.kind)
                statement.properties[name] = None
        elif word in refused:
            raise errors.unsupported(f"ALTER {statement.kind} … {word}")
        else:
            raise stream.unexpected()

    return read


def parse_object_statement(stream: Stream, kinds: tuple[Kind, ...]) -> Statement | None:
    """A statement on one of ``kinds``, not read to its end; None: on none of them."""
    for kind in kinds:
        if statement := _create(stream, kind) or _on_existing(stream, kind) or _show(stream, kind):
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
        raise errors.incompatible("IF NOT EXISTS", "OR REPLACE")
    statement.name = stream.name(kind.parts)
    kind.create(stream, statement)
    return statement


def _on_existing(stream: Stream, kind: Kind) -> Statement | None:
    for word, verb, has_verb in (
        ("DESC", "DESCRIBE", kind.describe),
        ("DESCRIBE", "DESCRIBE", kind.describe),
        ("ALTER", "ALTER", kind.alter),
        ("DROP", "DROP", kind.drop),
    ):
        if has_verb and stream.take(word, *kind.words):
            if_exists = verb != "DESCRIBE" and stream.take("IF", "EXISTS")
            statement = Statement(verb, kind.name, stream.name(kind.parts), if_exists=if_exists)
            if verb == "ALTER" and kind.alter:
                kind.alter(stream, statement)
            elif verb == "DROP" and not kind.in_account:
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
        raise errors.unsupported(f"SHOW {kind.plural} … {stream.peek().value}")
    return statement


def _scope(stream: Stream) -> tuple[str, Name]:
    if stream.take("ACCOUNT"):
        return "ACCOUNT", ()
    kind, parts = ("DATABASE", 1) if stream.take("DATABASE") else ("SCHEMA", 2)
    if kind == "SCHEMA":
        stream.take("SCHEMA")
    return kind, stream.name(parts) if stream.peek().kind in ("word", "quoted") else ()
