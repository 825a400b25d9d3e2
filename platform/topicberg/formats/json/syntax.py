"""JSON text as Python values with exact numbers, and back."""

from __future__ import annotations

import json
import math
import re
import sys
from json.encoder import encode_basestring
from typing import Any, NoReturn

from topicberg.formats.reasons import MAX_LENGTH, MalformedError, byte, shortened, shown

MAX_DEPTH = 1_000
"""Arrays and objects in each other."""
_SPACE = " \t\n\r"
_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_HALF = re.compile(
    r"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)"  # the last: half of a pair
)
_ESCAPE = re.compile(r"\\(?:u(....)|.)")
_DECIMAL_DIGITS, _DOUBLE_DIGITS = 38, 17


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
    """Return the value that a record is, with ``int`` and :class:`Number` for numbers.

    :raises MalformedError: the record is not JSON
    """
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
        value = _slowly(text)
    if ("\\ud" in text or "\\uD" in text) and (half := _half(text)):
        raise MalformedError(f"the record has {half}, which is half of a character")
    return value


def _slowly(text: str) -> Any:
    """Return the value of a text which begins with white space, has a long number, or is none."""
    try:
        return _LONG_DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedError(_syntax(text, error)) from None


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


def _half(text: str) -> str | None:
    return next((found[1].lower() for found in _HALF.finditer(text) if found[1]), None)


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    end, at = byte(len(text.encode())), byte(len(text[: error.pos].encode()))
    rest = text[error.pos :].strip(_SPACE)
    if not text.strip(_SPACE):
        return f"the record is not JSON: it is empty and ends at {end}"
    if not rest or error.msg.startswith("Unterminated"):
        return f"the record is not JSON: it ends at {end}; {error.msg}, from {at}"
    return f"the record is not JSON at {at}: {error.msg}, found {shown(rest[:20])}"


# --- values as text ---


def rendered(value: Any, most: float = math.inf) -> str:
    """Return a value as JSON text.

    :param most: characters that are needed; arrays and objects are not read further
    """
    match value:
        case Number():
            return _number_text(value)
        case str():
            return _quoted(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
    pieces: list[str] = []
    is_object = isinstance(value, dict)
    for member in sorted(value, key=_in_java) if is_object else value:
        if most < 0:
            break
        piece = (
            f"{_quoted(member)}:{rendered(value[member], most)}"
            if is_object
            else rendered(member, most)
        )
        pieces.append(piece)
        most -= len(piece)
    text = ",".join(pieces)
    return f"{{{text}}}" if is_object else f"[{text}]"


def members(value: dict[str, Any]) -> str:
    """Return an object as JSON text, with its own names in their order."""
    return f"{{{','.join(f'{_quoted(name)}:{rendered(one)}' for name, one in value.items())}}}"


def _in_java(name: str) -> bytes:
    """Return what names are ordered by: UTF-16."""
    return name.encode("utf-16-be")


def _quoted(text: str) -> str:
    found = encode_basestring(text)
    if "\\u" not in found:
        return found
    return _ESCAPE.sub(lambda part: f"\\u{part[1].upper()}" if part[1] else part[0], found)


def _number_text(number: Number) -> str:
    mantissa, exponent, _ = number.lower().partition("e")
    digits = len(mantissa.lstrip("-").replace(".", ""))
    if not exponent:
        return plain(number) if digits <= _DECIMAL_DIGITS else str(number)
    double = float(number)
    is_exact = digits <= _DOUBLE_DIGITS and abs(double) < math.inf
    return _double_text(double) if is_exact else str(number)


def plain(number: Number, scale: int | None = None) -> str:
    """Return a number without exponent.

    :param scale: digits behind the point, if any; None: as many as needed
    """
    digits, exponent = number.parts()
    sign = "-" if number.startswith("-") and digits else ""
    places = max(0, -exponent if scale is None else scale)
    digits = f"{digits}{'0' * (exponent + places)}".rjust(places + 1, "0")
    point = len(digits) - places
    return f"{sign}{digits[:point]}.{digits[point:]}" if places else f"{sign}{digits}"


def _double_text(double: float) -> str:
    """Return a double as Java's ``Double.toString`` writes it."""
    text = repr(double)
    if double == 0:
        return text
    if 1e-3 <= abs(double) < 1e7:
        text = plain(Number(text))
        return text if "." in text else f"{text}.0"
    digits, exponent = Number(text).parts()
    sign = "-" if double < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent + len(digits) - 1}"


def abbreviated(value: Any) -> str:
    """Return a value for a message."""
    return shortened(value if isinstance(value, Number) else rendered(value, MAX_LENGTH))


def type_of(value: Any) -> str:
    """Return the type of a value, as JSON Schema calls it; a whole number is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case Number():
            return "number" if any(mark in value for mark in ".eE") else "integer"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
