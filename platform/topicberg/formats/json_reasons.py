"""Why a JSON record is malformed: the first value that does not fit its column.

Called for malformed records only, one at a time: it follows the same plan as the expression for
Spark (:mod:`.json_sql`).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
from pyiceberg import types as T

from topicberg.formats import json_sql
from topicberg.formats.connect_values import TEXTS, check_decimal, is_text
from topicberg.formats.json_nodes import Kind, Node, join, json_text
from topicberg.formats.json_plan import SCALARS, Plan
from topicberg.formats.reasons import (
    MAX_LENGTH,
    MalformedError,
    byte,
    field_at,
    shortened,
    shown,
)

MAX_DEPTH = 998
"""Jackson's limit of 1000, without the two levels around the record."""
MAX_NUMBER = 1000
"""Characters: Jackson's limit."""
_SPACE = " \t\n\r"
_SURROGATE = re.compile("[\ud800-\udfff]")
_MIME_BASE64 = re.compile(
    r"(?:[\0- ]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=))*[\0- ]*\Z"
)
_BASE64 = re.compile(json_sql.BASE64.replace(r"\z", r"\Z"))
_DATE_TIME = re.compile(json_sql.DATE_TIME.replace(r"\z", r"\Z"))
_DOUBLE_DIGITS = re.compile(r"[0-9][.E]|Infinity")
_MAX_DECIMAL = 38
_EXPECTED: dict[Kind, str] = {
    **{kind: one.expected for kind, one in SCALARS.items()},
    "list": "an array",
    "map": "an object",
    "entries": "an array of objects with key and value",
    "struct": "an object",
}
_OPENED = {"{": "an object", "[": "an array", "n": "null"}
_TIMES = ("date", "timestamp", "timestamptz", "timestamp-micros")
_FLOATS = ("float", "any-float")
_DOUBLES = ("double", "any-double")
_NUMBERS = (*json_sql.RANGES, *_FLOATS, *_DOUBLES, "decimal")
_EXACT = Context(prec=2 * MAX_NUMBER)
_MIN_CHECKS, _CHECKS = 500_000, 4
"""The most checks of values in a record, and more of them for each of its characters."""


class _TooManyError(Exception):
    """A schema of unions in unions requires too many checks of the same values."""


class _Number(str):
    """A number with the characters of the record."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """An object; ``earlier``: the values of names that are repeated later, by name."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.earlier: dict[str, list[Any]] = {}
        if len(self) < len(pairs):
            last = {name: place for place, (name, _) in enumerate(pairs)}
            for place, (name, value) in enumerate(pairs):
                if last[name] != place:
                    self.earlier.setdefault(name, []).append(value)


def reason(payload: bytes, plan: Plan, wrapped_as: str | None) -> str | None:
    """Return why the record is malformed, or None if it is not.

    :param wrapped_as: the record was put into an object's property of that name
    """
    if wrapped_as is not None:
        payload = payload[len(json_sql.opening(wrapped_as)) : -1]
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        found = shown(payload[error.start : error.start + 4])
        return f"the record is not UTF-8 at {byte(error.start)}: {found}"
    try:
        value = _parsed(text)
        record = value if wrapped_as is None else _Object([(wrapped_as, value)])
        _Checker(text).check(record, plan, "")
    except json.JSONDecodeError as error:
        return _syntax(text, error)
    except RecursionError:
        return "the record has too many nested arrays and objects"
    except _TooManyError:
        return "the record has too many values for the unions of its schema to find the reason"
    except MalformedError as malformed:
        return str(malformed)
    return None


def _parsed(text: str) -> Any:
    """Return the value, with numbers as the record has them.

    :raises MalformedError: JSON allows the record, but the decoder does not
    """

    def constant(name: str) -> None:
        raise MalformedError(f"the record is not JSON: {name} is not a value")

    value = json.loads(
        text,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=constant,
        object_pairs_hook=_Object,
    )
    depth, level = 0, [value]
    while level:
        depth += any(isinstance(one, dict | list) for one in level)
        for one in level:
            if isinstance(one, _Number) and len(one) > MAX_NUMBER:
                raise MalformedError(
                    f"the number {shortened(one)} has more than {MAX_NUMBER} characters"
                )
            if isinstance(one, str) and (half := _SURROGATE.search(one)):
                raise MalformedError(
                    f"the record has \\u{ord(half[0]):04x}, which is half of a character"
                )
        level = [inner for one in level for inner in _inside(one)]
    if depth > MAX_DEPTH:
        raise MalformedError(
            f"the record has {depth} nested arrays and objects, the limit is {MAX_DEPTH}"
        )
    return value


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, _Object):
        yield from value
        yield from value.values()
        for earlier in value.earlier.values():  # the names are those above
            yield from earlier
    elif isinstance(value, list):
        yield from value


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    end, at = byte(len(text.encode())), byte(len(text[: error.pos].encode()))
    rest = text[error.pos :].strip(_SPACE)
    if not text.strip(_SPACE):
        return f"the record is not JSON: it is empty and ends at {end}"
    if not rest or error.msg.startswith("Unterminated"):
        return f"the record is not JSON: it ends at {end}; {error.msg}, from {at}"
    return f"the record is not JSON at {at}: {error.msg}, found {shown(rest[:20])}"


class _Checker:
    """Checks the values of one record against a plan."""

    def __init__(self, text: str) -> None:
        bare = text.replace("\\\\", "").replace('\\"', "")
        bare = re.sub('"[^"]*"', "", bare)
        self.many_digits = bool(re.search(json_sql.inexact(json_sql.DIGITS), bare))
        self.more_digits = bool(re.search(json_sql.inexact(json_sql.TEXT_DIGITS), bare))
        self.infinite = bool(re.search(json_sql.INFINITE, bare))
        self.left = _MIN_CHECKS + _CHECKS * len(text)

    def check(self, value: Any, plan: Plan, path: str) -> None:
        """Raise the reason if a value does not fit; null never fits."""
        if value is None and path:
            return
        self.left -= 1
        if self.left < 0:
            raise _TooManyError
        match plan.kind:
            case "struct" if isinstance(value, _Object):
                self.struct(value, plan, path)
            case "list" if isinstance(value, list):
                for place, one in enumerate(value):
                    self.check(one, plan.children["element"], f"{path}[{place}]")
            case "map" if isinstance(value, _Object):
                for name, last in value.items():
                    inner = f"{path}.{shortened(name)}"
                    for one in (*value.earlier.get(name, ()), last):
                        self.check(one, plan.children["value"], inner)
            case "entries" if isinstance(value, list):
                for place, one in enumerate(value):
                    self.entry(one, plan, f"{path}[{place}]")
            case "union":
                self.union(value, plan, path)
            case _:
                self.scalar(value, plan, path)

    def struct(self, value: _Object, plan: Plan, path: str) -> None:
        for name, child in plan.children.items():
            if name not in value:
                continue
            inner = join(path, name)
            if child.kind not in json_sql.INEXACT:  # Spark reads it too, if it needs a type
                for earlier in value.earlier.get(name, ()):
                    self.check(earlier, child, inner)
            self.check(value[name], child, inner)

    def entry(self, value: Any, plan: Plan, path: str) -> None:
        if not isinstance(value, _Object):
            expected = "an object with key and value"
            raise _misfit(path, plan.column, f"{expected} expected, {_text(value)} found")
        key = value.get("key")
        if key is None:
            raise _misfit(path, plan.column, "the key is missing")
        self.check(key, plan.children["key"], f"{path}.key")
        self.check(value.get("value"), plan.children["value"], f"{path}.value")

    # --- unions ---

    def union(self, value: Any, plan: Plan, path: str) -> None:
        reasons: list[str] = []
        fitting = []
        for member in plan.members:
            problem = self.problem(value, member.plan, path)
            if problem is None:
                fitting.append(member)
            else:
                reasons.append(problem)
        if not fitting:
            if len(reasons) == 1:
                raise MalformedError(reasons[0])
            raise _misfit(
                path, plan.column, f"value {_text(value)} is none of its {len(reasons)} types"
            )
        best = [one for one in fitting if _declares(value, one.plan.node)] or fitting
        if best[0].place is None:
            kind = best[0].plan.node.name or best[0].plan.kind
            raise _misfit(path, plan.column, f"value {_text(value)} is a {kind}, without a column")

    def problem(self, value: Any, plan: Plan, path: str) -> str | None:
        """Return why a value is not a member of a union, or None if it is."""
        if not _discriminated(value, plan.node):
            return f"field {path}: value {_text(value)} lacks what the schema requires"
        try:
            if value is None:
                raise _unexpected(path, plan, value)
            self.check(value, plan, path or "$")
        except MalformedError as malformed:
            return str(malformed)
        return None

    # --- scalars ---

    def scalar(self, value: Any, plan: Plan, path: str) -> None:
        kind = plan.kind
        fits: bool
        match kind:
            case "json":
                return self.json(value, plan, path)
            case "boolean":
                fits = isinstance(value, bool)
            case "string":
                fits = isinstance(value, str) and not isinstance(value, _Number)
            case "binary":
                fits = _is_text(value) and bool(_MIME_BASE64.match(value))
            case "date-time":
                fits = _is_text(value) and _is_time(value)
            case "any-float" | "any-double" if _is_text(value):
                fits = value in json_sql.OTHER_NUMBERS
            case "decimal" if _is_text(value):
                return self.bytes(value, plan, path)
            case "decimal-text":
                return self.decimal_text(value, plan, path)
            case "variable-decimal":
                return self.variable_decimal(value, plan, path)
            case _ if kind in TEXTS:
                fits = _is_text(value) and is_text(TEXTS[kind], value)
            case _:
                fits = isinstance(value, _Number) and kind in _NUMBERS
        if not fits:
            raise _unexpected(path, plan, value)
        if isinstance(value, _Number):
            self.number(value, plan, path)
        return None

    def json(self, value: Any, plan: Plan, path: str) -> None:
        text = _rendered(value)
        if plan.node.opening and text[:1] not in plan.node.opening:
            expected = " or ".join(_OPENED[one] for one in plan.node.opening)
            raise _misfit(path, plan.column, f"{expected} expected, {_text(value)} found")
        changed = self.more_digits or ("Infinity" in text and self.infinite)
        if changed and _DOUBLE_DIGITS.search(text):
            raise MalformedError(
                f"field {path} (string): value {_text(value)} or one beside it has more digits, or "
                "is larger, than a number in JSON text can be"
            )

    def bytes(self, value: str, plan: Plan, path: str) -> None:
        if not 0 < len(value) <= 24 or not _BASE64.match(value):
            raise _unexpected(path, plan, value)
        unscaled = int.from_bytes(base64.b64decode(value), "big", signed=True)
        number = Decimal(unscaled).scaleb(-plan.node.scale, _EXACT)
        self.decimal(number, plan, path, _plain(number))

    def decimal_text(self, value: Any, plan: Plan, path: str) -> None:
        if isinstance(value, _Number):
            scale = plan.node.scale
            number = _decimal(value)
            if number is None or not 0 <= scale <= _MAX_DECIMAL:
                raise _misfit(path, plan.column, f"value {shortened(value)} has too many digits")
            return self.decimal_of(
                number, T.DecimalType(_MAX_DECIMAL, scale), path, shortened(value)
            )
        return self.unscaled(value, plan.node.scale, plan, path)

    def variable_decimal(self, value: Any, plan: Plan, path: str) -> None:
        scale = _decimal(number) if isinstance(number := _part(value, "scale"), _Number) else None
        if scale is None or scale != scale.to_integral_value(context=_EXACT):
            raise _unexpected(path, plan, value)
        return self.unscaled(_part(value, "value"), int(scale), plan, path)

    def unscaled(self, value: Any, scale: int, plan: Plan, path: str) -> None:
        if not _is_text(value) or not _BASE64.match(value):
            raise _unexpected(path, plan, value)
        check_decimal(base64.b64decode(value), scale, f"field {path} (string)")

    def number(self, value: _Number, plan: Plan, path: str) -> None:
        label, column = f"value {shortened(value)}", plan.column
        if plan.kind in (*_FLOATS, *_DOUBLES):
            with np.errstate(over="ignore"):
                read = np.float32(float(value)) if plan.kind in _FLOATS else float(value)
            if abs(read) == float("inf"):
                raise _misfit(path, column, f"{label} exceeds the range")
            return None
        number = _decimal(value)
        if number is None:
            if abs(double := float(value)) >= 1e38:
                raise _misfit(path, column, f"{label} exceeds the range")
            number = Decimal(repr(double))  # what Spark converts the double to
            if self.many_digits:
                raise _misfit(path, column, f"{label} or another number has too many digits")
        if plan.kind == "decimal":
            return self.decimal(number, plan, path, shortened(value))
        if number != number.to_integral_value(context=_EXACT):
            raise _unexpected(path, plan, value)
        low, high = json_sql.RANGES[plan.kind]
        if not low <= number <= high:
            dates = plan.kind in _TIMES
            problem = "is not between the years 1 and 9999" if dates else "exceeds the range"
            raise _misfit(path, column, f"{label} {problem}")
        if not _holds(column, int(number)):
            raise _misfit(path, column, f"{label} exceeds the column's range")
        return None

    def decimal(self, number: Decimal, plan: Plan, path: str, label: str) -> None:
        own = T.DecimalType(plan.node.precision, plan.node.scale)
        for kind in (own, plan.column):
            assert isinstance(kind, T.DecimalType)  # noqa: S101  the plan's
            self.decimal_of(number, kind, path, label)

    def decimal_of(self, number: Decimal, kind: T.DecimalType, path: str, label: str) -> None:
        if number and number.adjusted() >= kind.precision - kind.scale:
            raise _misfit(path, kind, f"value {label} exceeds the precision")
        if number != number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT):
            raise _misfit(path, kind, f"value {label} exceeds the scale")


def _misfit(path: str, kind: object, problem: str) -> MalformedError:
    return MalformedError(f"{field_at(path, kind) if path else 'the record'}: {problem}")


def _unexpected(path: str, plan: Plan, value: Any) -> MalformedError:
    expected = _EXPECTED.get(plan.kind, "a value")
    return _misfit(path, plan.column, f"{expected} expected, {_text(value)} found")


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, _Object) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, _Number)


def _is_time(text: str) -> bool:
    """Return whether Spark reads the text as a time; Spark allows offsets of up to 18 hours."""
    if not _DATE_TIME.match(text):
        return False
    whole, _, _ = text.upper().partition("Z")
    offset = timedelta()
    if len(whole) == len(text):
        sign, hours, minutes = text[-6], int(text[-5:-3]), int(text[-2:])
        if minutes > 59 or 60 * hours + minutes > 18 * 60:
            return False
        offset = timedelta(hours=hours, minutes=minutes) * (-1 if sign == "-" else 1)
    try:
        datetime.strptime(whole[:19], "%Y-%m-%dT%H:%M:%S") - offset
    except (ValueError, OverflowError):
        return False
    return whole[17:19] < "60"


def _text(value: Any) -> str:
    return shortened(value if isinstance(value, _Number) else _rendered(value, MAX_LENGTH))


def _rendered(value: Any, most: float = float("inf")) -> str:
    """Return a value as JSON text, with numbers as the decoder writes them.

    :param most: characters that are needed; arrays and objects are not read further
    """
    if isinstance(value, _Number):
        exact = _decimal(value)
        if exact is not None:
            return _plain(exact)
        return str(float(value)).replace("inf", "Infinity").replace("e", "E")
    if not isinstance(value, dict | list):
        return json_text(value)
    pieces: list[str] = []
    for one in value:
        if most < 0:
            break
        name = f"{_rendered(one)}:" if isinstance(value, dict) else ""
        pieces.append(name + _rendered(value[one] if name else one, most))
        most -= len(pieces[-1])
    text = ",".join(pieces)
    return f"{{{text}}}" if isinstance(value, dict) else f"[{text}]"


def _plain(number: Decimal) -> str:
    text = format(number.normalize(_EXACT), "f") if abs(number.adjusted()) < 100 else str(number)
    return "0" if number == 0 else text


def _decimal(value: str) -> Decimal | None:
    """Return a number that the decoder reads as a decimal; None: it reads it as a double."""
    if "e" in value or "E" in value:
        return None
    number = Decimal(value)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101  it is a number
    return number if len(digits) <= _MAX_DECIMAL and -exponent <= _MAX_DECIMAL else None


def _holds(column: T.IcebergType, number: int) -> bool:
    if isinstance(column, T.DecimalType):
        return bool(abs(number) < 10 ** (column.precision - column.scale))
    if isinstance(column, T.IntegerType):
        return -(2**31) <= number < 2**31
    if isinstance(column, T.FloatType):
        return int(np.float32(number)) == number
    if isinstance(column, T.DoubleType):
        return int(float(number)) == number
    return True


def _declares(value: Any, node: Node) -> bool:
    return node.kind != "struct" or set(value) <= set(node.children)


def _discriminated(value: Any, node: Node) -> bool:
    """Return whether a value has what a member of a union requires besides types."""
    if node.constants and node.kind in json_sql.COMPARED and not _one_of(value, node):
        return False
    if node.kind != "struct":
        return True
    if not isinstance(value, dict):
        return False
    return all(name in value for name in node.required) and all(
        value[name] is None or _one_of(value[name], child)
        for name, child in node.children.items()
        if child.constants and child.kind in json_sql.COMPARED and name in value
    )


def _one_of(value: Any, node: Node) -> bool:
    return not isinstance(value, dict | list) and _rendered(value) in node.texts
