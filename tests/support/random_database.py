"""A PostgreSQL schema with tables of all kinds, and seeded random changes of them.

Two sessions have transactions at the same time, so the order of the log is not the order of
commits. Each session has keys of its own: they never wait for each other.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg2

SCHEMA = "shop"
SESSIONS = 2
_KEYS = 60
"""Different values of the number in the key, by session."""


@dataclass(frozen=True)
class Kind:
    """A type of PostgreSQL: ``make`` draws a value that ``%s`` takes.

    ``shown``: the expression that selects a column's value as topicberg's column has it, with
    ``{}`` for its name. ``same``: makes values of PostgreSQL and of all readers comparable.
    """

    sql: str
    make: Callable[[random.Random], Any]
    shown: str = "{}"
    same: Callable[[Any], Any] = lambda value: value
    is_large: bool = False


def _text(rng: random.Random) -> str:
    words = ["", "a", "NULL", "ä€😀", "line\nbreak\t", "quote\"'\\", " ", "0", "true", "null"]
    return rng.choice([*words, f"w{rng.randrange(10**6)}"])


def _large(rng: random.Random) -> str:
    """Often stored outside of the row (TOAST), sometimes not."""
    return f"{rng.randrange(10**9)}:" + "é" * rng.choice([0, 5, 1_100, 1_500, 3_000])


def _digits(rng: random.Random, digits: int, scale: int) -> Decimal:
    size = rng.randint(1, digits)
    return Decimal(rng.randrange(-(10**size) + 1, 10**size)).scaleb(-scale)


def _any_decimal(rng: random.Random) -> Decimal:
    return _digits(rng, 28, rng.choice([0, 1, 5, 20]))


def _moment(rng: random.Random) -> datetime:
    micros = rng.choice([0, 1, 999_999, 123_000, rng.randrange(10**6)])
    start = datetime(1900, 1, 1) + timedelta(days=rng.randrange(110_000))
    return start + timedelta(seconds=rng.randrange(86_400), microseconds=micros)


def _zoned(rng: random.Random) -> datetime:
    return _moment(rng).replace(tzinfo=timezone(timedelta(minutes=rng.choice([0, 120, -570]))))


def _time_of_day(rng: random.Random) -> time:
    return _moment(rng).time()


def _zoned_time(rng: random.Random) -> time:
    zone = timezone(timedelta(minutes=rng.choice([0, 150, -720])))
    return _time_of_day(rng).replace(tzinfo=zone)


def _interval(rng: random.Random) -> str:
    return (
        f"{rng.randint(-30, 30)} months {rng.randint(-50, 50)} days "
        f"{rng.randint(-100_000, 100_000)}.{rng.randrange(10**6):06} seconds"
    )


_PARTS = ("year", "month", "day", "hour", "minute", "second")
_INTERVAL = " || ' ' || ".join(f"extract({part} FROM {{0}})" for part in _PARTS)


def _interval_micros(value: Any) -> int:
    """Return Debezium's microseconds of an interval's parts. It counts a month as 30.4375 days, and
    truncates a product of doubles."""
    if not isinstance(value, str):
        return int(value)
    *parts, second = value.split()
    year, month, day, hour, minute = map(int, parts)
    micros, whole = int(Decimal(second).scaleb(6)), int(Decimal(second))
    seconds = whole + (micros - whole * 1_000_000) / 1_000_000
    days = (year * 12 + month) * 30.4375 + day
    return int((((days * 24 + hour) * 60 + minute) * 60 + seconds) * 1e6)


_ZONED_TIME = "mod((extract(epoch FROM {0}) * 1000000)::bigint + 86400000000, 86400000000)"


def _micros(value: Any) -> Any:
    """Return the microseconds of a text like ``10:00:00.5Z``."""
    if not isinstance(value, str):
        return None if value is None else int(value)
    parsed = time.fromisoformat(value.replace("Z", ""))
    seconds = parsed.hour * 3600 + parsed.minute * 60 + parsed.second
    return seconds * 1_000_000 + parsed.microsecond


def _utc(value: datetime | None) -> datetime | None:
    if value is None or value.tzinfo is None:
        return None if value is None else value.replace(tzinfo=UTC)
    return value.astimezone(UTC)


def _single(value: float | None) -> float | None:
    return None if value is None else struct.unpack("f", struct.pack("f", value))[0]


def _listed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _bits(value: Any) -> bytes | None:
    """Return Debezium's bytes of a text of bits: those of its number, and none of zero."""
    if not isinstance(value, str):
        return _bytes(value)
    number = int(value, 2)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _json(rng: random.Random) -> str:
    return json.dumps({"a": rng.randrange(100), "b": [None, _text(rng)], "ü": {"c": 1.5}})


def _array(rng: random.Random, make: Callable[[random.Random], Any], most: int = 4) -> list[Any]:
    return [rng.choice([None, make(rng), make(rng)]) for _ in range(rng.randint(0, most))]


def _whole(bits: int) -> Callable[[random.Random], int]:
    edge = 2 ** (bits - 1)
    return lambda rng: rng.choice([0, 1, -1, edge - 1, -edge, rng.randrange(-edge, edge)])


KINDS: dict[str, Kind] = {
    "int2": Kind("smallint", _whole(16)),
    "int4": Kind("int", _whole(32)),
    "int8": Kind("bigint", _whole(64)),
    "txt": Kind("text", _text),
    "vc": Kind("varchar(12)", lambda rng: _text(rng)[:12]),
    "ch": Kind("char(3)", lambda rng: rng.choice(["ab", "abc", "ä"])),
    "dec": Kind("numeric(12,4)", lambda rng: _digits(rng, 12, 4)),
    "wide": Kind("numeric(38,0)", lambda rng: _digits(rng, 38, 0)),
    "huge": Kind("numeric(60,10)", lambda rng: _digits(rng, 60, 10), "{}::text"),
    "free": Kind("numeric", _any_decimal, "trim_scale({})::text"),  # as Debezium sends it
    "cash": Kind("money", lambda rng: _digits(rng, 12, 2), "{}::numeric(64,2)::text"),
    "ts": Kind("timestamp", _moment),
    "ts3": Kind("timestamp(3)", _moment),
    "tstz": Kind("timestamptz", _zoned, same=_utc),
    "day": Kind("date", lambda rng: _moment(rng).date()),
    "tm": Kind("time", _time_of_day, "(extract(epoch FROM {}) * 1000000)::bigint"),
    "tm3": Kind("time(3)", _time_of_day, "(extract(epoch FROM {}) * 1000)::int"),
    "ttz": Kind("timetz", _zoned_time, _ZONED_TIME, _micros),
    "iv": Kind("interval", _interval, _INTERVAL, _interval_micros),
    "uid": Kind("uuid", lambda rng: f"{rng.getrandbits(128):032x}", "{}::text"),
    "doc": Kind("jsonb", _json, "{}::text"),
    "ia": Kind("int[]", lambda rng: _array(rng, _whole(32)), same=_listed),
    "ta": Kind("text[]", lambda rng: _array(rng, _text), same=_listed),
    "raw": Kind("bytea", lambda rng: rng.randbytes(rng.choice([0, 1, 9])), same=_bytes),
    "bl": Kind("boolean", lambda rng: rng.random() < 0.5),
    "f4": Kind("real", lambda rng: rng.choice([0.0, 1.1, -1e30, rng.random()]), same=_single),
    "f8": Kind("double precision", lambda rng: rng.choice([0.1, -1e300, rng.gauss(0, 1)])),
    "ip": Kind("inet", lambda rng: f"10.0.{rng.randrange(256)}.{rng.randrange(256)}", "host({})"),
    "bits": Kind("bit(9)", lambda rng: f"{rng.getrandbits(9):09b}", "{}::text", _bits),
    "varbits": Kind(
        "bit varying(40)", lambda rng: f"{rng.getrandbits(32):032b}"[: rng.randint(1, 40)],
        "{}::text", _bits,
    ),
    "rng": Kind("int4range", lambda rng: f"[{rng.randrange(9)},{rng.randint(10, 20)})", "{}::text"),
    "st": Kind(f"{SCHEMA}.status", lambda rng: rng.choice(["new", "paid", "gone"]), "{}::text"),
    "big": Kind("text", _large, is_large=True),
    "blob": Kind(
        "bytea", lambda rng: rng.randbytes(rng.choice([3, 2_500])), same=_bytes, is_large=True
    ),
    "tags": Kind(
        "text[]", lambda rng: _array(rng, _text, rng.choice([2, 900])), same=_listed, is_large=True
    ),
    "numbers": Kind(
        "int[]", lambda rng: _array(rng, _whole(32), rng.choice([2, 900])), same=_listed,
        is_large=True,
    ),
    "more": Kind("text", _large, is_large=True),
}  # fmt: skip
_ORDINARY = [name for name, kind in KINDS.items() if not kind.is_large]
_WIDENED = {
    "int2": ("int", _whole(16)),
    "int4": ("bigint", _whole(64)),
    "vc": ("text", _text),
    "dec": ("numeric(14,4)", lambda rng: _digits(rng, 14, 4)),
    "f4": ("double precision", lambda rng: rng.choice([0.1, -1e300])),
}


@dataclass
class Table:
    """A table of the source. ``keys``: those of its rows, as the sessions see them."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, Kind]
    keys: set[tuple[Any, ...]] = field(default_factory=set)
    has_ddl: bool = False
    added: int = 0

    @property
    def path(self) -> str:
        return f"{SCHEMA}.{self.name}"

    def create(self, full: bool) -> list[str]:
        """Return the statements that create it.

        :param full: with REPLICA IDENTITY FULL
        """
        key = [f"{name} {'text' if name == 'region' else 'bigint'} NOT NULL" for name in self.key]
        rest = [f"{name} {kind.sql}" for name, kind in self.columns.items()]
        members = [*key, *rest, f"PRIMARY KEY ({', '.join(self.key)})"]
        found = [f"CREATE TABLE {self.path} ({', '.join(members)})"]
        found += [
            f"ALTER TABLE {self.path} ALTER COLUMN {name} SET STORAGE EXTERNAL"
            for name, kind in self.columns.items()
            if kind.is_large
        ]
        if full:
            found.append(f"ALTER TABLE {self.path} REPLICA IDENTITY FULL")
        return found

    def new_key(self, rng: random.Random, session: int) -> tuple[Any, ...]:
        number = rng.randrange(_KEYS) * SESSIONS + session
        return (number,) if len(self.key) == 1 else (rng.choice(["eu", "ap", "ü s"]), number)

    def of_session(self, session: int) -> list[tuple[Any, ...]]:
        return sorted(key for key in self.keys if key[-1] % SESSIONS == session)


class Session:
    """A connection with transactions of its own."""

    def __init__(self, number: int, address: str) -> None:
        self.number = number
        self.connection = psycopg2.connect(address)
        self.cursor = self.connection.cursor()
        self.left = 0
        """Statements that the transaction still has; 0: there is none."""
        self.changes = 0
        self.before: dict[str, set[tuple[Any, ...]]] = {}
        """The session's keys of each table that it changed, as they were."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> None:
        self.cursor.execute(statement, list(values))
        self.changes += max(self.cursor.rowcount, 0)


class Workload:
    """Random changes; what ``seed`` and the numbers of changes are alike is alike."""

    def __init__(self, address: str, seed: int, tables: Sequence[str]) -> None:
        self.rng = random.Random(seed)
        self.address = address
        self.tables = [self._table(number, name) for number, name in enumerate(tables)]
        self.changes = 0
        self.counts: dict[str, int] = {}
        self.sessions: list[Session] = []
        with psycopg2.connect(address) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE SCHEMA {SCHEMA}")
            cursor.execute(f"CREATE TYPE {SCHEMA}.status AS ENUM ('new', 'paid', 'gone')")
            for number, table in enumerate(self.tables):
                for statement in table.create(full=number % 4 == 3):
                    cursor.execute(statement)
        self.sessions = [Session(number, address) for number in range(SESSIONS)]

    def _table(self, number: int, name: str) -> Table:
        large = ["big", "blob", "tags", "numbers"]
        if number % 5 == 0:
            columns = [*_ORDINARY, *large]
        elif number % 5 == 1:
            columns = ["int4", "big", "vc", "dec"]
        else:
            columns = [
                *self.rng.sample(_ORDINARY, 5),
                *self.rng.sample(large, self.rng.randrange(3)),
            ]
        if number % 5 in (1, 2):
            columns += [name for name in ("int2", "f4") if name not in columns]
        key = ("region", "no") if number % 3 == 1 else ("id",)
        return Table(name, key, {c: KINDS[c] for c in columns}, has_ddl=number % 5 in (1, 2))

    def run(self, changes: int) -> None:
        """Change rows until so many more are committed."""
        until = self.changes + changes
        while self.changes < until:
            draw = self.rng.random()
            if draw < 0.003:
                self._truncate()
            elif draw < 0.006:
                self._alter()
            else:
                self._step(self.rng.choice(self.sessions))
        self.finish()

    def finish(self) -> None:
        """End all transactions."""
        for session in self.sessions:
            self._end(session)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _step(self, session: Session) -> None:
        if not session.left:
            session.left = self.rng.choice([1, 1, 2, 3, 8])
        self._change(session, self.rng.choice(self.tables))
        session.left -= 1
        if not session.left:
            self._end(session)

    def _end(self, session: Session) -> None:
        if self.rng.random() < 0.1:
            session.connection.rollback()
            for table in self.tables:
                if (before := session.before.get(table.name)) is not None:
                    table.keys.difference_update(table.of_session(session.number))
                    table.keys |= before
            self._count("rollback")
        else:
            session.connection.commit()
            self.changes += session.changes
        session.left, session.changes, session.before = 0, 0, {}

    def _values(self, table: Table, share: float) -> dict[str, Any]:
        """Draw new values of some columns; large ones seldom change."""
        found = {}
        for name, kind in table.columns.items():
            if self.rng.random() < (share / 3 if kind.is_large else share):
                found[name] = None if self.rng.random() < 0.15 else kind.make(self.rng)
        return found

    def _set(self, table: Table, values: dict[str, Any]) -> str:
        return ", ".join(f"{name} = {self._value(table, name)}" for name in values)

    def _value(self, table: Table, name: str) -> str:
        kind = table.columns.get(name)
        return "%s" if kind is None else f"CAST(%s AS {kind.sql})"

    def _where(self, table: Table) -> str:
        return " AND ".join(f"{name} = %s" for name in table.key)

    def _change(self, session: Session, table: Table) -> None:
        rng, number = self.rng, session.number
        keys = table.of_session(number)
        session.before.setdefault(table.name, set(keys))
        new, draw = table.new_key(rng, number), rng.random()
        if not keys or (draw < 0.3 and new not in table.keys):
            self._insert(session, table, new)
            return
        key = rng.choice(keys)
        if draw < 0.62:
            values = self._values(table, 0.4) or {next(iter(table.columns)): None}
            self._update(session, table, key, values)
        elif draw < 0.66:  # many rows
            values = self._values(table, 0.1) or {next(iter(table.columns)): None}
            session.run(
                f"UPDATE {table.path} SET {self._set(table, values)} "
                f"WHERE {table.key[-1]} %% {SESSIONS} = {number} AND {table.key[-1]} %% 7 = %s",
                [*values.values(), rng.randrange(7)],
            )
            self._count("update of many")
        elif draw < 0.78:
            self._delete(session, table, key)
        elif draw < 0.86 and new not in table.keys:
            self._move(session, table, key, new)
        elif draw < 0.92 and len(keys) > 1 and new not in table.keys:
            other = rng.choice([one for one in keys if one != key])
            self._move(session, table, key, new)
            self._move(session, table, other, key)
            self._move(session, table, new, other)
            self._count("swap of keys")
        elif draw < 0.96:
            self._delete(session, table, key)
            self._insert(session, table, key)
        else:
            session.run("SAVEPOINT undo")
            changes = session.changes
            self._update(
                session, table, key, self._values(table, 0.9) or {next(iter(table.columns)): None}
            )
            session.run("ROLLBACK TO SAVEPOINT undo")
            session.changes = changes
            self._count("rollback to savepoint")

    def _insert(self, session: Session, table: Table, key: tuple[Any, ...]) -> None:
        values = self._values(table, 0.9)
        names = [*table.key, *values]
        casts = [self._value(table, name) for name in names]
        session.run(
            f"INSERT INTO {table.path} ({', '.join(names)}) VALUES ({', '.join(casts)})",
            [*key, *values.values()],
        )
        table.keys.add(key)
        self._count("insert")

    def _update(
        self, session: Session, table: Table, key: tuple[Any, ...], values: dict[str, Any]
    ) -> None:
        session.run(
            f"UPDATE {table.path} SET {self._set(table, values)} WHERE {self._where(table)}",
            [*values.values(), *key],
        )
        self._count("update")

    def _delete(self, session: Session, table: Table, key: tuple[Any, ...]) -> None:
        session.run(f"DELETE FROM {table.path} WHERE {self._where(table)}", key)
        table.keys.discard(key)
        self._count("delete")

    def _move(
        self, session: Session, table: Table, key: tuple[Any, ...], new: tuple[Any, ...]
    ) -> None:
        values = dict(zip(table.key, new, strict=True)) | self._values(table, 0.1)
        self._update(session, table, key, values)
        table.keys.discard(key)
        table.keys.add(new)
        self._count("change of a key")

    def _alone(self, statement: str) -> None:
        self.finish()
        session = self.sessions[0]
        session.run(statement)
        session.connection.commit()
        session.changes = 0

    def _truncate(self) -> None:
        table = self.rng.choice(self.tables)
        self._alone(f"TRUNCATE {table.path}")
        table.keys.clear()
        self.changes += 1
        self._count("truncate")

    def _alter(self) -> None:
        table, rng = self.rng.choice([one for one in self.tables if one.has_ddl]), self.rng
        extra = [name for name in table.columns if name.startswith("extra")]
        wider = [name for name in _WIDENED if table.columns.get(name) is KINDS[name]]
        what = rng.choice(
            ["add", "add", *(["drop"] if extra else []), *(["widen"] if wider else [])]
        )
        if what == "add" and table.added < 12:
            kind, name = KINDS[rng.choice(_ORDINARY)], f"extra{table.added}"
            table.added += 1
            self._alone(f"ALTER TABLE {table.path} ADD COLUMN {name} {kind.sql}")
            table.columns[name] = kind
        elif what == "drop":
            name = rng.choice(extra)
            self._alone(f"ALTER TABLE {table.path} DROP COLUMN {name}")
            del table.columns[name]
        elif what == "widen":
            name = rng.choice(wider)
            sql, make = _WIDENED[name]
            self._alone(f"ALTER TABLE {table.path} ALTER COLUMN {name} TYPE {sql}")
            table.columns[name] = Kind(sql, make)
        else:
            return
        self._count(f"column: {what}")

    def rows(self, table: Table) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the source's rows, as all readers must have them."""
        names = [*table.key, *table.columns]
        shown = [*table.key, *(k.shown.format(name) for name, k in table.columns.items())]
        with psycopg2.connect(self.address) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(shown)} FROM {table.path}")
            return same_rows(table, names, cursor.fetchall())

    def close(self) -> None:
        for session in self.sessions:
            session.connection.close()


def same_rows(
    table: Table, names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return rows by their keys, with comparable values.

    :raises AssertionError: a key has two rows
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for values in rows:
        row = dict(zip(names, values, strict=True))
        key = tuple(row[name] for name in table.key)
        assert key not in found, f"{table.name}: two rows of {key}"
        found[key] = {
            name: None if row[name] is None else kind.same(row[name])
            for name, kind in table.columns.items()
        }
    return found
