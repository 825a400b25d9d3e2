"""What decodes the records of one writer: instructions, and the places that they fill.

A place is where the values of a column go, at every depth: a leaf, a struct, or a list. Places of
one *domain* have as many values as each other: those of domain 0 have one for each record, those
inside of a list one for each item of all lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count

import numpy as np
from numpy.typing import NDArray
from pyiceberg import types as T

from topicberg.formats.subjects import SchemaType

WIDTH = 6
"""Numbers of an instruction: operation, slot, domain, and three arguments."""


MAX_NESTED = 16
"""Arrays in arrays."""


class NotCoveredError(Exception):
    """A schema, or a pair of a schema and a table, has no program."""


class Store(IntEnum):
    """How a slot holds values."""

    NONE = 0
    """Only whether there is a value: a struct."""
    BYTE = 1
    INT32 = 4
    INT64 = 8
    INT128 = 16
    TEXT = 100
    """Bytes of varying length: text and binary."""
    ITEMS = 101
    """The items of a list, in another domain."""


_STORES: tuple[tuple[type[T.IcebergType], Store], ...] = (
    (T.BooleanType, Store.BYTE),
    (T.IntegerType, Store.INT32),
    (T.DateType, Store.INT32),
    (T.FloatType, Store.INT32),
    (T.LongType, Store.INT64),
    (T.DoubleType, Store.INT64),
    (T.TimestampType, Store.INT64),
    (T.TimestamptzType, Store.INT64),
    (T.DecimalType, Store.INT128),
    (T.StringType, Store.TEXT),
    (T.BinaryType, Store.TEXT),
    (T.StructType, Store.NONE),
    (T.ListType, Store.ITEMS),
)


class JsonOp(IntEnum):
    """Instructions for JSON, one for each value; their arguments in brackets.

    A null, or a property that is missing, leaves the value's place without a value.
    """

    OBJECT = 0
    """[first of the targets, properties, first of their names]. After the targets of the properties
    follows that of all others; it is negative, so that their values are skipped."""
    ARRAY = 1
    """[domain of the items, instruction of an item]"""
    TEXT = 2
    LONG = 3
    """[least, most, factor]; a whole number times the factor."""
    INT = 4
    """[least, most]"""
    BOOLEAN = 5
    DOUBLE = 6
    FLOAT = 7
    WIDER = 8
    """A float as a double."""
    WHOLE_DOUBLE = 9
    """[least, most]; a whole number."""
    WHOLE_FLOAT = 10
    """[least, most]"""
    BINARY = 11
    """Base64."""
    DECIMAL = 12
    """[scale; high and low half of the least value that is too large]; a number, or base64."""
    TIME = 13
    """A time of RFC 3339."""


class ProtobufOp(IntEnum):
    """Instructions for Protobuf; their arguments in brackets.

    The first ones read a value, the last ones are executed at the end of a message, for fields that
    it does not have.
    """

    RECORD = 0
    """[first of the texts of message indexes, how many, bytes of the largest record]; the
    instruction of its message follows."""
    MESSAGE = 1
    """[first of the targets of its fields, fields, first of the targets of its end]. A field has
    four targets: tag, instruction, number of the field, number of its oneof; for the last two, -1:
    it is repeated, it is in none. The first target of the end is the number of instructions."""
    ITEM = 2
    """[domain of the items, instruction of an item]"""
    PACKED = 3
    """[domain of the items, instruction of an item]; many of them."""
    SKIP = 4
    """A field without a column."""
    NUMBER = 5
    """[how it is encoded: see :class:`Encoding`, bytes of the column's value]"""
    WIDER = 6
    """A float as a double."""
    TEXT = 7
    ENUM = 8
    """[symbols, first of the targets with pairs of number and text]"""
    TIMESTAMP = 9
    LIST = 10
    """A list is never null."""
    REQUIRED = 11
    """[number of the field]"""
    DEFAULT_NUMBER = 12
    """[number of the field, bits of the value, bytes of the column's value]"""
    DEFAULT_TEXT = 13
    """[number of the field, text]"""


class Encoding(IntEnum):
    """How Protobuf writes a number."""

    INT32 = 0
    UINT32 = 1
    SINT32 = 2
    INT64 = 3
    """Also without a sign."""
    SINT64 = 4
    BOOL = 5
    FIXED32 = 6
    SFIXED32 = 7
    """Also of floats."""
    FIXED64 = 8


class AvroOp(IntEnum):
    """Instructions for Avro; the arguments after slot and domain in brackets."""

    END = 0
    """The record ends."""
    FAIL = 1
    """There is no value that fits."""
    JUMP = 2
    """[instruction]"""
    UNION = 3
    """[branches, first of their targets]"""
    PRESENT = 4
    """There is a struct."""
    LONG = 5
    """[least, most, factor]; a number times the factor."""
    INT = 6
    """[least, most]"""
    BOOLEAN = 7
    FLOAT = 8
    DOUBLE = 9
    WIDER = 10
    """A float as a double."""
    NEAREST_FLOAT = 11
    """[least, most]; a whole number."""
    NEAREST_DOUBLE = 12
    """[least, most]"""
    TEXT = 13
    FIXED = 14
    """[bytes]"""
    ENUM = 15
    """[symbols, first of their texts]"""
    DECIMAL = 16
    """[bytes, or -1 if their number is in the record; high and low half of the least value that is
    too large]"""
    ARRAY = 17
    """[domain of the items, instructions of an item, instruction after it]"""
    ITEM = 18
    """An item ends."""
    SKIP_NUMBER = 19
    """[least, most]"""
    SKIP_TEXT = 20
    SKIP_BYTES = 21
    """[bytes]"""
    SKIP_ENUM = 22
    """[symbols]"""


@dataclass(frozen=True)
class Place:
    """Where the values of a column go."""

    name: str
    column: T.IcebergType
    slot: int
    domain: int
    store: Store
    inside: tuple[Place, ...] = ()
    """The fields of a struct; the items of a list."""
    items: int = -1
    """The domain of a list's items."""

    def field(self, name: str) -> Place:
        return next(place for place in self.inside if place.name == name)


class Shape:
    """The places of some columns of a table."""

    def __init__(self, columns: Sequence[T.NestedField]) -> None:
        """:raises NotCoveredError: a column has a type that programs do not fill"""
        self._slots, self._domains = count(), count(1)
        self.places = tuple(self._place(one.name, one.field_type, 0) for one in columns)
        self.slots, self.domains = next(self._slots), next(self._domains)
        self.all = tuple(self._all(self.places))

    def _place(self, name: str, column: T.IcebergType, domain: int) -> Place:
        store = next((store for kind, store in _STORES if isinstance(column, kind)), None)
        if store is None:
            raise NotCoveredError(f"the column {name} is a {column}")
        slot = next(self._slots)
        if isinstance(column, T.StructType):
            fields = (self._place(one.name, one.field_type, domain) for one in column.fields)
            return Place(name, column, slot, domain, store, tuple(fields))
        if isinstance(column, T.ListType):
            items = next(self._domains)
            item = self._place("element", column.element_type, items)
            return Place(name, column, slot, domain, store, (item,), items)
        return Place(name, column, slot, domain, store)

    def _all(self, places: Sequence[Place]) -> Sequence[Place]:
        return [one for place in places for one in (place, *self._all(place.inside))]

    def ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what is written where a value of a domain ends, so that offsets are never absent.

        :returns: domain → first row of the second array, with one more at its end; rows of a slot
            and the domain of its items, or -1 for text
        """
        rows: list[tuple[int, int]] = []
        starts = [0]
        for domain in range(self.domains):
            for place in self.all:
                if place.domain == domain and place.store in (Store.TEXT, Store.ITEMS):
                    rows.append((place.slot, place.items))
            starts.append(len(rows))
        return np.array(starts, np.int64), np.array(rows or [(0, 0)], np.int64)


@dataclass
class Code:
    """Instructions under construction, of one or more programs."""

    instructions: list[list[int]] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    """Where the branches of unions begin."""
    texts: list[bytes] = field(default_factory=list)
    """Constant texts, such as symbols of enums."""

    @property
    def at(self) -> int:
        return len(self.instructions)

    def emit(self, operation: int, place: Place | None, *arguments: int) -> int:
        """Append an instruction; return where it is."""
        slot, domain = (place.slot, place.domain) if place else (-1, 0)
        padding = [0] * (WIDTH - 3 - len(arguments))
        self.instructions.append([int(operation), slot, domain, *arguments, *padding])
        return self.at - 1

    def mark(self) -> tuple[int, int, int]:
        """Return where the next program begins."""
        return self.at, len(self.targets), len(self.texts)

    def reset(self, mark: tuple[int, int, int]) -> None:
        """Remove what was appended since a mark."""
        del self.instructions[mark[0] :], self.targets[mark[1] :], self.texts[mark[2] :]

    def text(self, values: Sequence[bytes]) -> int:
        """Add constant texts; return the number of the first one."""
        self.texts += values
        return len(self.texts) - len(values)


Emit = Callable[[Code, Place], None]
"""Appends the instructions that read a value into a place.

:raises NotCoveredError: there are none
"""
Skip = Callable[[Code], None]


@dataclass(frozen=True)
class Programs:
    """Programs of several writers that fill the same places; small enough to be sent to a task."""

    instructions: NDArray[np.int64]
    targets: NDArray[np.int64]
    texts: tuple[NDArray[np.int64], NDArray[np.uint8]]
    """Offsets and bytes of the constant texts."""
    writers: NDArray[np.int64]
    """Rows of a schema id and where its program begins."""
    language: SchemaType

    @classmethod
    def of(cls, code: Code, writers: Sequence[tuple[int, int]], language: SchemaType) -> Programs:
        offsets = np.cumsum([0, *map(len, code.texts)], dtype=np.int64)
        return cls(
            np.array(code.instructions, np.int64).reshape(-1, WIDTH),
            np.array([*code.targets, 0], np.int64),
            # A copy can be written, as it can be in a task: compiled code is of one type.
            (offsets, np.frombuffer(b"".join(code.texts) + bytes(8), np.uint8).copy()),
            np.array(writers, np.int64).reshape(-1, 2),
            language,
        )
