"""JSON text as Python values with exact numbers, and back."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from functools import partial
from json.decoder import JSONArray, JSONObject, scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, NamedTuple, NoReturn

from topicberg.formats.reasons import MAX_LENGTH, MalformedError, byte, shortened, shown

MAX_DEPTH = 1_000
"""Arrays and objects in each other."""
_SPACE = " \t\n\r"
_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_HALF = re.compile(
    r"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)"  # the last: half of a pair
)
_MAX_DIGITS = 4_000  # Of a whole number that Python reads as such.


class Number(str):
    """A number with a point, an exponent or very many digits, as the record writes it."""

    __slots__ = ()

    def parts(self) -> tuple[str, int]:
        """Return the digits without zeros at their ends, and the exponent of the last one."""
        mantissa, _, power = self.lower().partition("e")
        whole, _, fraction = mantissa.lstrip("-").partition(".")
        digits = f"{whole}{fraction}".lstrip("0")
        if not (short := digits.rstrip("0")):
            return "", 0
        most = 2 * sys.maxsize
        exponent = int(power or 0) if len(power) < len(str(most)) else most
        if power.startswith("-"):
            exponent = -abs(exponent)
        return short, exponent - len(fraction) + len(digits) - len(short)


def _constant(name: str) -> NoReturn:
    raise MalformedError(f"the record is not JSON: {name} is not a value")


_DECODER = json.JSONDecoder(parse_float=Number, parse_constant=_constant)
_SCAN: Any = _DECODER.scan_once  # type: ignore[attr-defined]  # what typeshed does not list
_LONG_DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_constant)


def parsed(payload: bytes) -> Any:
    """Return the value of a record of JSON, with ``int`` and :class:`Number` for numbers."""
    try:
        text = str(payload, "utf-8")
    except UnicodeDecodeError as error:
        invalid_bytes = shown(payload[error.start : error.start + 4])
        raise MalformedError(
            f"the record is not UTF-8 at {byte(error.start)}: {invalid_bytes}"
        ) from None
    if text.count("[") + text.count("{") > MAX_DEPTH // 4:
        _check_depth(text)
    try:
        value, end = _SCAN(text, 0)
        if end != len(text) and text[end:].strip(_SPACE):
            value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedError(_syntax(text, error)) from None
    except (StopIteration, ValueError):  # white space, no value, or a long number
        try:
            value = _LONG_DECODER.decode(text)
        except json.JSONDecodeError as error:
            raise MalformedError(_syntax(text, error)) from None
    for match in _HALF.finditer(text) if "\\ud" in text or "\\uD" in text else ():
        if match[1]:
            half = match[1].lower()
            raise MalformedError(f"the record has {half}, which is half of a character")
    return value


def _check_depth(text: str) -> None:
    depth = most = 0
    for bracket in _BRACKET.finditer(text):
        mark = bracket[0]
        if mark in "[{":
            depth += 1
            most = max(most, depth)
        elif mark in "]}":
            depth -= 1
        if depth > MAX_DEPTH:
            raise MalformedError(
                f"the record has too many nested arrays and objects, the limit is {MAX_DEPTH}"
            )
    if most > MAX_DEPTH // 4:  # Python refuses by how deep its caller is
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 5 * MAX_DEPTH))


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    end, at = byte(len(text.encode())), byte(len(text[: error.pos].encode()))
    rest = text[error.pos :].strip(_SPACE)
    if not text.strip(_SPACE):
        return f"the record is not JSON: it is empty and ends at {end}"
    if not rest or error.msg.startswith("Unterminated"):
        return f"the record is not JSON: it ends at {end}; {error.msg}, from {at}"
    return f"the record is not JSON at {at}: {error.msg}, found {shown(rest[:20])}"


class Texts:
    """The texts of the values of one record, as they stand there. ``value``: the record's."""

    def __init__(self, payload: bytes) -> None:
        """:param payload: a record that is JSON"""
        self._text = str(payload, "utf-8").strip(_SPACE)
        if self._text.count("[") + self._text.count("{") > MAX_DEPTH // 10:
            # Several functions of Python's own scanner are called for each depth.
            sys.setrecursionlimit(max(sys.getrecursionlimit(), 8 * MAX_DEPTH))
        self._containers: dict[int, tuple[int, int, Any]] = {}
        # With the containers: of a name that is repeated, one is freed, and its id used again.
        self._written: dict[tuple[int, Any], str] = {}
        decoder: Any = json.JSONDecoder(parse_float=Number, parse_int=_integer)
        decoder.parse_object = partial(self._container, JSONObject)
        decoder.parse_array, decoder.parse_string = partial(self._container, JSONArray), _string
        decoder.scan_once = py_make_scanner(decoder)
        scanned = decoder.decode(self._text)
        self.value = scanned.value if isinstance(scanned, _Written) else scanned

    def of(self, value: Any, container: Any, place: Any) -> str:
        """Return the text of a value, of a container at a name or a number; None: of the record."""
        if isinstance(value, dict | list):
            begin, end, _ = self._containers[id(value)]
            return self._text[begin:end]
        if container is None:
            return self._text
        return self._written.get((id(container), place)) or rendered(value)

    def _container(self, parse: Any, start: tuple[str, int], *options: Any) -> tuple[Any, int]:
        container, end = parse(start, *options)
        self._containers[id(container)] = start[1] - 1, end, container
        is_object = isinstance(container, dict)
        for place, value in container.items() if is_object else enumerate(container):
            if isinstance(value, _Written):
                self._written[id(container), place] = value.text
                container[place] = value.value
        return container, end


class _Written(NamedTuple):
    """A value whose text is another one than :func:`rendered` returns."""

    value: Any
    text: str


def _integer(text: str) -> int | Number | _Written:
    if text == "-0":
        return _Written(0, text)
    return int(text) if len(text) <= _MAX_DIGITS else Number(text)


def _string(text: str, begin: int, strict: bool) -> tuple[str | _Written, int]:
    value, end = scanstring(text, begin, strict)
    has_escapes = text.find("\\", begin, end) >= 0
    return _Written(value, text[begin - 1 : end]) if has_escapes else value, end


class _Here(threading.local):
    """The texts of this thread's record, and what has the value that is read."""

    texts: Texts | None = None
    container: Any = None
    place: Any = None
    steps = 0  # How many values the unions of the record may still look at.

    def take(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise MalformedError("the record has too many values for the unions of its schema")


here = _Here()


def text_of(value: Any) -> str:
    """Return the text of the value that is read."""
    assert here.texts is not None  # noqa: S101  the plan has texts
    return here.texts.of(value, here.container, here.place)


def rendered(value: Any, most: float = math.inf) -> str:
    """Return a value as JSON text without white space; ``most``: characters that are needed."""
    match value:
        case Number():
            return str(value)
        case dict():
            pieces = (f"{quoted(name)}:{rendered(inner, most)}" for name, inner in value.items())
        case list():
            pieces = (rendered(inner, most) for inner in value)
        case _:
            return quoted(value) if isinstance(value, str) else json.dumps(value)
    read: list[str] = []
    while most >= 0 and (piece := next(pieces, None)) is not None:
        read.append(piece)
        most -= len(piece)
    text = ",".join(read)
    return f"{{{text}}}" if isinstance(value, dict) else f"[{text}]"


def quoted(text: str) -> str:
    """Return text as JSON text."""
    return encode_basestring(text)


def plain(number: Number, scale: int | None = None) -> str:
    """Return a number without exponent; ``scale``: digits behind the point, None: as needed."""
    digits, exponent = number.parts()
    sign = "-" if number.startswith("-") and digits else ""
    places = max(0, -exponent if scale is None else scale)
    digits = f"{digits}{'0' * (exponent + places)}".rjust(places + 1, "0")
    point = len(digits) - places
    return f"{sign}{digits[:point]}.{digits[point:]}" if places else f"{sign}{digits}"


def abbreviated(value: Any) -> str:
    """Return a value for a message."""
    return shortened(value if isinstance(value, Number) else rendered(value, MAX_LENGTH))


def type_of(value: Any) -> str:
    """Return the type of a value, as JSON Schema calls it; a whole number is an integer."""
    if isinstance(value, Number):
        return "number" if any(mark in value for mark in ".eE") else "integer"
    return _TYPES[type(value)]


_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
