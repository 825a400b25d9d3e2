"""What decodes the records of one writer: instructions, and the places that they fill.

A place is where the values of a column go, at every depth: a leaf, a struct, a list or a map.
Places of one *domain* have as many values as each other: those of domain 0 have one for each
record, those inside of a list one for each item of all lists, those inside of a map one for each
entry of all maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyiceberg import types as T

from topicberg.errors import TableflowError
from topicberg.formats.subjects import SchemaType

WIDTH = 6  # Numbers of an instruction: operation, slot, domain, and three arguments.
MAX_NESTED = 16  # Arrays in arrays.


class NotCoveredError(Exception):
    """A schema, or a pair of a schema and a table, has no program."""


class Store(IntEnum):
    """How a slot holds values."""

    NONE = 0  # Only whether there is a value: a struct.
    BYTE, INT32, INT64, INT128 = 1, 4, 8, 16
    TEXT = 100  # Bytes of varying length: text and binary.
    ITEMS = 101  # The items of a list, or the keys and values of a map, in another domain.


_STORES: dict[Store, tuple[type[T.IcebergType], ...]] = {
    Store.BYTE: (T.BooleanType,),
    Store.INT32: (T.IntegerType, T.DateType, T.FloatType),
    Store.INT64: (T.LongType, T.DoubleType, T.TimestampType, T.TimestamptzType),
    Store.INT128: (T.DecimalType,),
    Store.TEXT: (T.StringType, T.BinaryType),
    Store.NONE: (T.StructType,),
    Store.ITEMS: (T.ListType, T.MapType),
}


class JsonOp(IntEnum):
    """Instructions for JSON, one for each value; their arguments in brackets.

    A null, or a property that is missing, leaves the value's place without a value.
    """

    OBJECT = 0
    """[first of the targets, properties, first of their names]. After the targets of the properties
    follows that of all others: -1 skips their values, -2 refuses the record, and -3 keeps names and
    values as text in the slot that follows. The names follow twice: as JSON text has them, and
    without escapes."""
    ARRAY = 1  # [domain of the items]; the instruction of an item follows.
    MAP = 2
    """[domain of the entries, slot of the keys, bytes of a key, or those of ``Store.TEXT``]; the
    instructions of a key and of a value follow."""
    ENTRIES = 3  # [as for a map]; the instruction of an object with key and value follows.
    UNION = 4
    """[first of the targets for a string, a number, true or false, an object, an array]; a negative
    target refuses the record."""
    CHOICE = 5
    """[first of the targets, properties, first of their names]; one of several kinds of objects, of
    which each has a bit in masks: see :func:`topicberg.formats.json.program._choice`."""
    TEXT = 6
    LONG = 7  # [least, most, factor]; a whole number times the factor.
    INT = 8  # [least, most]
    BOOLEAN, DOUBLE, FLOAT = 9, 10, 11
    WIDER = 12  # A float as a double.
    WHOLE_DOUBLE = 13  # [least, most]; a whole number.
    WHOLE_FLOAT = 14  # [least, most]
    BINARY = 15  # Base64.
    DECIMAL = 16
    """[first of the targets]; a number, or base64. The targets are the decimal's own scale, the
    smaller one of this and the column's, how many more zeros the column has, the high and low half
    of the least value of the smaller scale that is too large, and whether base64 is refused."""
    TIME = 17  # A time of RFC 3339.
    WHOLE_DECIMAL = 18  # [least, most, scale]; a whole number.
    JSON = 19  # [sum of: 1, an object; 2, an array; 4, anything else]; as JSON text.
    QUOTED = 20  # The instruction of a number follows; the number may be in quotation marks.
    EMPTY = 21  # An instruction above, or ``QUOTED``, follows; the text without characters is null.


class ProtobufOp(IntEnum):
    """Instructions for Protobuf; their arguments in brackets.

    The first ones read a value. The last ones are executed at the end of a message, for what it
    does not have: their first argument is the number of a field.
    """

    RECORD = 0
    """[first of the texts of message indexes, how many, first of the targets: bytes and messages of
    the largest record]; the instruction of its message follows."""
    MESSAGE = 1
    """[first of the targets of its fields, fields, first of the targets of its end]. A field has
    four targets: tag, instruction, number of the field, number of its oneof; for the last two, -1:
    it is repeated, it is in none. The first target of the end is the number of instructions."""
    ITEM = 2  # [domain of the items, instruction of an item], or of the entries of a map.
    PACKED = 3  # [domain of the items, instruction of an item]; many of them.
    SKIP = 4
    """[bytes of a packed value; 1: of varying length; 0: it is not packed]; a field without a
    column. Groups are refused."""
    NUMBER = 5  # [how it is encoded: see :class:`Encoding`, bytes of the column's value]
    WIDER = 6  # A float as a double.
    TEXT = 7  # [1: bytes that are not UTF-8 are refused]
    ENUM = 8  # [symbols, first of the targets with pairs of number and text, 1: it is closed]
    TIMESTAMP = 9
    CONVERTED = 10
    """[how it is encoded, first of the targets]; a number for a column of another type. The targets
    are least, most, the zeros to append, bytes of the column's value, 1: it is unsigned."""
    TIME = 11  # [0, first of the targets, which are those of a number]
    DATE = 12
    DECIMAL = 13  # [precision, scale, bytes of the column's value]
    PRESENT = 14  # [number]; there is a list, or a struct.
    MAP = 15
    """[number, first of the targets: domain of the entries, slot of the keys, bytes of a key or
    ``Store.TEXT``]; there is a map, whose keys have to differ."""
    REQUIRED = 16  # [number]
    DEFAULT_NUMBER = 17
    """[number, bits of the value, bytes of the column's value]; of 16 bytes, the first of the
    targets with their low and their high half instead of the bits."""
    DEFAULT_TEXT = 18  # [number, text]


class Encoding(IntEnum):
    """How Protobuf writes a number."""

    INT32, UINT32, SINT32 = 0, 1, 2
    INT64 = 3  # Also without a sign.
    SINT64, BOOL, FIXED32 = 4, 5, 6
    SFIXED32 = 7  # Also of floats.
    FIXED64 = 8


class AvroOp(IntEnum):
    """Instructions for Avro; the arguments after slot and domain in brackets."""

    END = 0  # The record ends.
    FAIL = 1  # There is no value that fits.
    JUMP = 2  # [instruction]
    UNION = 3  # [branches, first of their targets]
    PRESENT = 4  # There is a struct.
    LONG = 5  # [least, most, factor]; a number times the factor.
    INT = 6  # [least, most]
    BOOLEAN, FLOAT, DOUBLE = 7, 8, 9
    WIDER = 10  # A float as a double.
    NEAREST_FLOAT = 11  # [least, most]; a whole number.
    NEAREST_DOUBLE = 12  # [least, most]
    TEXT = 13  # [1: bytes that are not UTF-8 are refused]
    FIXED = 14  # [bytes]
    ENUM = 15  # [symbols, first of their texts]
    DECIMAL = 16
    """[bytes, or -1 if their number is in the record; high and low half of the least value that is
    too large]"""
    ARRAY = 17  # [domain of the items, instructions of an item, instruction after it]
    ITEM = 18  # An item ends.
    SKIP_NUMBER, SKIP_TEXT = 19, 20
    SKIP_BYTES = 21  # [bytes]
    UNIQUE = 22  # [domain of the entries, slot of the keys]; a map ends, whose keys have to differ.
    RESCALE = 23  # [zeros to append; negative: to remove]; of the decimal that was read.
    NUMBER = 24  # [bytes, low and high half of the value]; a constant.
    CONSTANT = 25  # [number of the text]; a constant.
    VALUE = 26  # An item of a constant ends.
    NANOS = 27  # Nanoseconds as microseconds.
    MOMENT = 28  # [what the text is of: see :class:`.times.Moment`]
    DECIMAL_TEXT = 29
    """[scale; 1: the scale is before, 2: behind the number instead]; a decimal as text."""


@dataclass(frozen=True)
class Slot:
    """Where the values of a column go."""

    name: str
    column: T.IcebergType
    slot: int
    domain: int
    store: Store
    inside: tuple[Slot, ...] = ()
    """The fields of a struct; the items of a list; the keys and the values of a map."""
    items: int = -1  # The domain of what a list or a map has.

    @property
    def by_name(self) -> dict[str, Slot]:
        """What is inside, by name."""
        return {place.name: place for place in self.inside}


Slots = Mapping[str, Slot]  # Where the values of columns go, by name.


class Shape:
    """The places of some columns of a table."""

    def __init__(self, columns: Sequence[T.NestedField]) -> None:
        """:raises TableflowError: a column has a type that no record fills"""
        self._slots, self._domains = count(), count(1)
        self.places = tuple(self._place(column.name, column.field_type, 0) for column in columns)
        self.slots, self.domains = next(self._slots), next(self._domains)
        self.all = tuple(self._all(self.places))

    def _place(self, name: str, column: T.IcebergType, domain: int) -> Slot:
        store = next((store for store, kinds in _STORES.items() if isinstance(column, kinds)), None)
        if store is None:
            raise TableflowError(
                f"the column {name} is a {column}, which topicberg does not write",
                hint="rename the column, or drop it: topicberg never created it",
            )
        slot, items = next(self._slots), next(self._domains) if store is Store.ITEMS else -1
        fields: Sequence[T.NestedField] = ()
        match column:
            case T.StructType(fields=parts):
                fields = parts
            case T.ListType(element_field=part):
                fields = (part,)
            case T.MapType(key_field=key, value_field=value):
                fields = (key, value)
        inner = domain if items < 0 else items
        inside = tuple(self._place(field.name, field.field_type, inner) for field in fields)
        return Slot(name, column, slot, domain, store, inside, items)

    def _all(self, places: Sequence[Slot]) -> Sequence[Slot]:
        return [slot for place in places for slot in (place, *self._all(place.inside))]

    def ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what is written where a value of a domain ends, so that offsets are never absent.

        :returns: domain → first row of the second array, with one more at its end; rows of a slot
            and the domain of its items, or -1 for text
        """
        varying = [place for place in self.all if place.store in (Store.TEXT, Store.ITEMS)]
        varying.sort(key=lambda place: place.domain)
        starts = np.searchsorted([place.domain for place in varying], range(self.domains + 1))
        rows = [(place.slot, place.items) for place in varying]
        return starts.astype(np.int64), np.array(rows or [(0, 0)], np.int64)


@dataclass
class ProgramCode:
    """Instructions under construction, of one or more programs."""

    instructions: list[list[int]] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)  # Where the branches of unions begin.
    texts: list[bytes] = field(default_factory=list)  # Constant texts, such as symbols of enums.
    unknown: Slot | None = None
    """Where the properties of a record of JSON go that are not declared."""

    @property
    def at(self) -> int:
        return len(self.instructions)

    def emit(self, operation: int, place: Slot | None, *arguments: int, domain: int = 0) -> int:
        """Append an instruction; return where it is. ``domain``: of one without a place."""
        slot, domain = (place.slot, place.domain) if place else (-1, domain)
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


Skip = Callable[[ProgramCode], None]


@dataclass(frozen=True)
class Programs:
    """Programs of several writers that fill the same places; small enough to be sent to a task."""

    instructions: NDArray[np.int64]
    targets: NDArray[np.int64]
    texts: tuple[NDArray[np.int64], NDArray[np.uint8]]  # Offsets and bytes of the constant texts.
    writers: NDArray[np.int64]  # Rows of a schema id, in order, and where its program begins.
    language: SchemaType

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What compiled code takes."""
        return self.instructions, self.targets, *self.texts, self.writers

    @classmethod
    def of(
        cls, code: ProgramCode, writers: Sequence[tuple[int, int]], language: SchemaType
    ) -> Programs:
        offsets = np.cumsum([0, *map(len, code.texts)], dtype=np.int64)
        return cls(
            np.array(code.instructions, np.int64).reshape(-1, WIDTH),
            np.array([*code.targets, 0], np.int64),
            # A copy can be written, as it can be in a task: compiled code is of one type.
            (offsets, np.frombuffer(b"".join(code.texts) + bytes(8), np.uint8).copy()),
            np.array(sorted(writers), np.int64).reshape(-1, 2),
            language,
        )
