"""Snowflake's SQL, cut into tokens, and a stream of them that a grammar can read.

https://docs.snowflake.com/en/sql-reference/identifiers-syntax and
https://docs.snowflake.com/en/sql-reference/data-types-text#string-constants
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from topicberg_local.emulators.snowflake.errors import invalid_value, syntax_error

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
    position = 0
    while position < len(sql):
        match = _TOKEN.match(sql, position)
        if match is None:  # pragma: no cover  a mark matches anything
            break
        text = match[0]
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
        position = match.end()


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
        for ahead, token in enumerate(self._tokens[self._next :]):
            if token.kind == "word" and token.value in words:
                return ahead
        return None

    def advance(self) -> Token:
        token = self.peek()
        self._next += 1
        return token

    def at(self, *words: str) -> bool:
        """Whether exactly these words or marks come next."""
        tokens = (self.peek(ahead) for ahead in range(len(words)))
        return all(
            t.kind in ("word", "mark") and t.value == w for t, w in zip(tokens, words, strict=True)
        )

    def take(self, *words: str) -> bool:
        if not self.at(*words):
            return False
        self._next += len(words)
        return True

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.take(word):
                raise self.unexpected()

    def unexpected(self) -> Exception:
        token = self.peek()
        before = self.sql[: token.start]
        line = before.count("\n") + 1
        return syntax_error(line, token.start - (before.rfind("\n") + 1), token.text)

    def end(self) -> None:
        if self.peek().kind != "end":
            raise self.unexpected()

    def word(self) -> str:
        if self.peek().kind != "word":
            raise self.unexpected()
        return self.advance().value

    def identifier(self) -> str:
        if self.peek().kind not in ("word", "quoted"):
            raise self.unexpected()
        return self.advance().value

    def name(self, parts: int = 1) -> Name:
        """A name of at most so many parts."""
        found = [self.identifier()]
        while len(found) < parts and self.take("."):
            found.append(self.identifier())
        return tuple(found)

    def string(self) -> str:
        if self.peek().kind != "string":
            raise self.unexpected()
        return self.advance().value

    def strings(self) -> list[str]:
        """Return one string, or several with commas between them."""
        texts = [self.string()]
        while self.take(","):
            texts.append(self.string())
        return texts

    def reference(self) -> str:
        """The name of an account object, bare or as a string: ``CATALOG = 'ci'``.

        Snowflake reads such a string as an identifier: ``'ci'`` is CI, ``'"ci"'`` is ci.
        """
        if self.peek().kind != "string":
            return self.identifier()
        inner = Stream(self.peek().value)
        try:
            name = inner.identifier()
            inner.end()
        except Exception:
            raise self.unexpected() from None
        self.advance()
        return name

    def boolean(self, option: str) -> bool:
        token = self.advance()
        value = token.value.upper()
        if token.kind not in ("word", "string") or value not in ("TRUE", "FALSE"):
            raise invalid_value(token.value or token.text, option)
        return value == "TRUE"

    def integer(self, option: str) -> int:
        token = self.advance()
        if token.kind != "number" or not token.value.isdigit():
            raise invalid_value(token.value or token.text, option)
        return int(token.value)

    def choice(self, option: str, allowed: tuple[str, ...]) -> str:
        token = self.advance()
        if token.kind not in ("word", "string") or token.value.upper() not in allowed:
            raise invalid_value(token.value or token.text, option)
        return token.value.upper()
