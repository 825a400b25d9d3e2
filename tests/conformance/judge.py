"""What must become of each record: a row, or none."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any

from shapes import Half, Malformed, Shape, Value, evolved, fields_of, placed, twin, with_dropped
from versions import Version

WIRE_BYTES = 5


@dataclass
class Outcome:
    """What must become of a record.

    :param row: its columns but for metadata; None: it is malformed
    :param sure: false: it may also be malformed
    :param exact: false: the values are not checked
    :param names: the field that the reason of a malformed record should name; parts of its path
        are separated by dots, and the names that a renamed field may have by ``|``
    :param why: the oracle's own reason
    """

    row: dict[str, Value] | None
    sure: bool = True
    exact: bool = True
    names: str | None = None
    why: str = ""

    def is_named(self, reason: str) -> bool:
        """Whether a reason names the field."""
        field = (self.names or "").split(".")[-1]
        return any(name in reason for name in field.split("|"))


@dataclass
class Side:
    """The schemas of a topic's values, or of its keys.

    :param own: the subject's versions by schema id
    """

    own: dict[int, Version] = field(default_factory=dict)
    latest: Version | None = None

    @property
    def shape(self) -> Shape:
        assert self.latest is not None
        assert self.latest.shape is not None
        return self.latest.shape


@dataclass
class Judge:
    """The rules for one topic.

    :param key: None: keys are bytes without a schema
    :param foreign: schemas of other subjects by id
    """

    value: Side
    key: Side | None
    upsert: bool
    foreign: dict[int, Version] = field(default_factory=dict)
    columns: Shape | None = None

    def follow(self) -> None:
        """Let the columns follow the newest schemas, with what only older versions have.

        :raises shapes.Refused: they cannot
        """
        own = self.value.shape.children
        keys = {"key": Shape("binary")} if self.key is None else self.key.shape.children
        columns = Shape("struct", {n: one for n, one in keys.items() if n not in own} | dict(own))
        for older in reversed(self.value.own.values()):
            if older.shape is not None:
                fields = fields_of(older.shape, self.value.shape)
                fields = {n: one for n, one in fields.items() if n in own or n not in keys}
                columns = with_dropped(columns, Shape("struct", fields))
        self.columns = evolved(self.columns, columns)

    def outcome(self, key: bytes | None, value: bytes | None) -> Outcome:
        assert self.columns is not None
        if self.upsert and key is None:
            return Outcome(None)
        loose = has_key = False
        halves = []
        sides = [(value, self.value), (key, self.key)]
        try:
            for raw, side in sides:
                if side is None:
                    continue
                if raw is None:
                    halves.append(Half(None, side.shape, side.shape))
                    continue
                writer = self.writer(raw, side)
                assert writer.shape is not None
                fields = fields_of(writer.shape, side.shape)
                has_key |= "key" in fields
                if writer.kind != "PROTOBUF" and (name := twin(self.columns, fields)):
                    raise Malformed(f"the schema's field {name} has no column")
                try:
                    decoded = writer.decode(raw[WIRE_BYTES:])
                except Malformed as malformed:
                    if writer.shape == side.shape:
                        raise
                    # A reason may name another field, whose value does not fit its column.
                    raise Malformed(str(malformed)) from None
                loose |= not decoded.canonical
                halves.append(Half(decoded.value, writer.shape, side.shape))
            result = placed(self.columns, *halves)
        except Malformed as malformed:
            return Outcome(None, sure=not loose, names=malformed.field, why=str(malformed))
        if self.key is None and not has_key and self.columns.children["key"] == Shape("binary"):
            result.row["key"] = key
        return Outcome(result.row, sure=result.sure and not loose, exact=not loose)

    def key_text(self, raw: bytes) -> str:
        """What identifies a key with a schema: its values as the newest schema reads them.

        :raises Malformed: it is not a key
        """
        assert self.key is not None
        writer = self.writer(raw, self.key)
        assert writer.shape is not None
        decoded = writer.decode(raw[WIRE_BYTES:])
        half = Half(decoded.value, writer.shape, self.key.shape)
        row = placed(self.key.shape, half).row
        return repr([(name, row[name]) for name in self.key.shape.children])

    def writer(self, raw: bytes, side: Side) -> Version:
        """:raises Malformed: the record names no schema that it may have"""
        if len(raw) < WIRE_BYTES or raw[0] != 0:
            raise Malformed("not in the wire format")
        (number,) = struct.unpack(">I", raw[1:WIRE_BYTES])
        if number in side.own:
            version = side.own[number]
            if version.shape is None:
                raise Malformed("the schema has no rows", str(number))
            return version
        other = self.foreign.get(number)
        assert side.latest is not None
        if (
            other is None
            or other.shape is None
            or other.kind != side.latest.kind
            or other.identity is None
            or other.identity != side.latest.identity
        ):
            raise Malformed("a schema of another subject", str(number))
        return other


def stored_key(key: bytes) -> bytes:
    """A key without a schema as an upsert table has it."""
    return key if len(key) <= 256 else hashlib.sha256(key).digest()


def wire(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


Row = dict[str, Any]
