"""Random Avro schemas, records of them, and what a query engine must show of each record."""

from __future__ import annotations

import random
import string
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from itertools import count
from typing import Any

Made = tuple[Any, Any]
"""A value as fastavro writes it, and as an engine shows it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
_DEPTH = 3
_CONTEXT = Context(prec=60)


@dataclass(frozen=True)
class Kind:
    """A type: its schema, and a maker of values."""

    schema: Any
    make: Callable[[random.Random], Made]


def schema_and_records(
    rng: random.Random, records: int = 20
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """A record schema, records for ``fastavro``, and the row that each one becomes."""
    kind = _record(rng, count(1), 0)
    made = [kind.make(rng) for _ in range(records)]
    return kind.schema, [datum for datum, _ in made], [row for _, row in made]


def _kind(rng: random.Random, names: count[int], depth: int) -> Kind:
    makers = [*_SIMPLE]
    if depth < _DEPTH:
        makers += [_optional, _optional, _array, _map, _record, _union]
    return rng.choice(makers)(rng, names, depth + 1)


def _text(rng: random.Random) -> str:
    alphabet = string.ascii_letters + " \"'\\\n\t,;äß漢🙂\x00"
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(12)))


def _constant(schema: Any, make: Callable[[random.Random], Any]) -> Callable[..., Kind]:
    def kind(_rng: random.Random, _names: count[int], _depth: int) -> Kind:
        def both(rng: random.Random) -> Made:
            value = make(rng)
            return value, value

        return Kind(schema, both)

    return kind


def _uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128))


def _whole(bits: int) -> Callable[[random.Random], int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return lambda rng: rng.choice([0, -1, 1, low, high, rng.randint(low, high)])


def _single(rng: random.Random) -> float:
    number = rng.choice([0.0, -0.0, float("inf"), float("nan"), rng.uniform(-1e30, 1e30)])
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _double(rng: random.Random) -> float:
    return rng.choice([0.0, 1e308, 5e-324, float("-inf"), float("nan"), rng.gauss(0, 1e9)])


def _enum(rng: random.Random, names: count[int], _depth: int) -> Kind:
    symbols = [f"S{i}" for i in range(rng.randint(1, 5))]
    schema = {"type": "enum", "name": f"E{next(names)}", "symbols": symbols}
    return Kind(schema, lambda rng: (lambda symbol: (symbol, symbol))(rng.choice(symbols)))


def _fixed(rng: random.Random, names: count[int], _depth: int) -> Kind:
    size = rng.randint(1, 20)
    schema = {"type": "fixed", "name": f"F{next(names)}", "size": size}
    return Kind(schema, lambda rng: (lambda value: (value, value))(rng.randbytes(size)))


def _decimal(rng: random.Random, _names: count[int], _depth: int) -> Kind:
    precision = rng.randint(1, 38)
    scale = rng.randint(0, precision)
    schema = {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": precision,
        "scale": scale,
    }

    def make(rng: random.Random) -> Made:
        digits = rng.randint(-(10**precision) + 1, 10**precision - 1)
        value = Decimal(digits).scaleb(-scale, _CONTEXT)
        return digits.to_bytes((digits.bit_length() + 8) // 8, "big", signed=True), value

    return Kind(schema, make)


def _date(_rng: random.Random, _names: count[int], _depth: int) -> Kind:
    def make(rng: random.Random) -> Made:
        day = date.fromordinal(rng.randint(1, date.max.toordinal()))
        return (day - date(1970, 1, 1)).days, day

    return Kind({"type": "int", "logicalType": "date"}, make)


def _timestamp(unit: str, *, local: bool) -> Callable[..., Kind]:
    step = timedelta(milliseconds=1) if unit == "millis" else timedelta(microseconds=1)
    low, high = (_FIRST - _EPOCH) // step, (_LAST - _EPOCH) // step

    def make(rng: random.Random) -> Made:
        number = rng.randint(low, high)
        moment = _EPOCH + number * step
        return number, moment.replace(tzinfo=None) if local else moment

    logical = f"{'local-' if local else ''}timestamp-{unit}"
    return lambda _rng, _names, _depth: Kind({"type": "long", "logicalType": logical}, make)


def _optional(rng: random.Random, names: count[int], depth: int) -> Kind:
    inner = _kind(rng, names, depth)
    while isinstance(inner.schema, list):
        inner = _kind(rng, names, depth)
    null_first = rng.random() < 0.5

    def make(rng: random.Random) -> Made:
        return (None, None) if rng.random() < 0.3 else inner.make(rng)

    return Kind(["null", inner.schema] if null_first else [inner.schema, "null"], make)


def _array(rng: random.Random, names: count[int], depth: int) -> Kind:
    inner = _kind(rng, names, depth)

    def make(rng: random.Random) -> Made:
        made = [inner.make(rng) for _ in range(rng.randrange(4))]
        return [datum for datum, _ in made], [row for _, row in made]

    return Kind({"type": "array", "items": inner.schema}, make)


def _map(rng: random.Random, names: count[int], depth: int) -> Kind:
    inner = _kind(rng, names, depth)

    def make(rng: random.Random) -> Made:
        made = {_text(rng): inner.make(rng) for _ in range(rng.randrange(4))}
        return (
            {key: datum for key, (datum, _) in made.items()},
            {key: row for key, (_, row) in made.items()},
        )

    return Kind({"type": "map", "values": inner.schema}, make)


def _record(rng: random.Random, names: count[int], depth: int) -> Kind:
    name = f"R{next(names)}"
    fields = {f"f{i}": _kind(rng, names, depth) for i in range(rng.randint(1, 6))}
    schema = {
        "type": "record",
        "name": name,
        "namespace": "fuzz",
        "fields": [{"name": field, "type": kind.schema} for field, kind in fields.items()],
    }

    def make(rng: random.Random) -> Made:
        made = {field: kind.make(rng) for field, kind in fields.items()}
        return (
            {field: datum for field, (datum, _) in made.items()},
            {field: row for field, (_, row) in made.items()},
        )

    return Kind(schema, make)


def _union(rng: random.Random, names: count[int], depth: int) -> Kind:
    """Several branches beside null: a struct with a member for each."""
    simple = {"string": _SIMPLE[0], "long": _SIMPLE[2], "boolean": _SIMPLE[5], "bytes": _SIMPLE[6]}
    chosen = rng.sample(sorted(simple), rng.randint(2, 4))
    kinds = [simple[name](rng, names, depth) for name in chosen]
    nullable = rng.random() < 0.5

    def make(rng: random.Random) -> Made:
        if nullable and rng.random() < 0.2:
            return None, None
        index = rng.randrange(len(kinds))
        datum, row = kinds[index].make(rng)
        members = {f"member{i}": row if i == index else None for i in range(len(kinds))}
        return (chosen[index], datum), members

    return Kind([*(["null"] if nullable else []), *chosen], make)


_SIMPLE: list[Callable[[random.Random, count[int], int], Kind]] = [
    _constant("string", _text),
    _constant("int", _whole(32)),
    _constant("long", _whole(64)),
    _constant("float", _single),
    _constant("double", _double),
    _constant("boolean", lambda rng: rng.random() < 0.5),
    _constant("bytes", lambda rng: rng.randbytes(rng.randrange(10))),
    _constant({"type": "int", "logicalType": "time-millis"}, lambda rng: rng.randrange(10**7)),
    _constant(
        {"type": "string", "logicalType": "uuid"}, lambda rng: f"{rng.getrandbits(128):032x}"
    ),
    _enum,
    _fixed,
    _decimal,
    _date,
    _timestamp("millis", local=False),
    _timestamp("micros", local=False),
    _timestamp("millis", local=True),
    _timestamp("micros", local=True),
]
