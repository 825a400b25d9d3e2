"""Instructions that decode records of a resolved schema; see :mod:`topicberg.formats.columnar`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyiceberg import types as T

from topicberg.formats.avro import resolution
from topicberg.formats.avro.schema import Type
from topicberg.formats.columnar.program import (
    AvroOp,
    NotCoveredError,
    ProgramCode,
    Skip,
    Slot,
    Slots,
    Store,
)
from topicberg.formats.columnar.times import Moment
from topicberg.formats.connect import TEXTS

MAX_INSTRUCTIONS = 100_000
"""Of the values of a field that has no column: a type that is used many times is skipped as many
times."""
_IS_UTF8 = 1
_MOMENTS = {
    TEXTS["zoned-timestamp"]: Moment.ZONED,
    TEXTS["iso-timestamp"]: Moment.LOCAL,
    TEXTS["iso-date"]: Moment.DAY,
    TEXTS["iso-time"]: Moment.TIME,
}
_WORD = 2**64


def emit_row(code: ProgramCode, places: Slots, row: resolution.Row) -> None:
    """Append the instructions that read the fields of a record, or raise NotCoveredError."""
    for name, value in row.defaults.items():
        constant(code, places[name], value)
    for _, column, node in row.parts:
        if isinstance(node, resolution.Skipped):
            skip(code, node.type)
        elif column is not None:  # as that of all other nodes
            emit(code, places[column], node)


def emit(code: ProgramCode, place: Slot, node: resolution.Node) -> None:
    """Append the instructions that read a value."""
    match node:
        case resolution.AvroScalar():
            _scalar(code, place, node)
        case resolution.Skipped():
            skip(code, node.type)
        case resolution.Unfit():
            code.emit(AvroOp.FAIL, place)
        case resolution.Choice():
            emits = [
                None if b is None else partial(emit, place=place, node=b) for b in node.branches
            ]
            _union(code, emits)
        case resolution.AvroMember():
            code.emit(AvroOp.PRESENT, place)
            emit(code, place.by_name[node.name], node.inner)
        case resolution.Items():
            (item,) = place.inside
            _items(code, place, lambda code: emit(code, item, node.inner))
        case resolution.Entries():
            key, value = place.inside

            def entry(code: ProgramCode) -> None:
                code.emit(AvroOp.TEXT, key, _IS_UTF8)
                emit(code, value, node.inner)

            _items(code, place, entry)
            code.emit(AvroOp.UNIQUE, place, place.items, key.slot)
        case resolution.Row():
            code.emit(AvroOp.PRESENT, place)
            emit_row(code, place.by_name, node)


def _scalar(code: ProgramCode, place: Slot, node: resolution.AvroScalar) -> None:
    is_double = isinstance(node.column, T.DoubleType)
    match node.form:
        case resolution.Form.BOOLEAN:
            code.emit(AvroOp.BOOLEAN, place)
        case resolution.Form.WHOLE if isinstance(node.column, T.IntegerType | T.DateType):
            code.emit(AvroOp.INT, place, *node.bounds)
        case resolution.Form.WHOLE:
            code.emit(AvroOp.LONG, place, *node.bounds, node.factor)
        case resolution.Form.NEAREST:
            operation = AvroOp.NEAREST_DOUBLE if is_double else AvroOp.NEAREST_FLOAT
            code.emit(operation, place, *node.bounds)
        case resolution.Form.FLOAT:
            code.emit(AvroOp.WIDER if is_double else AvroOp.FLOAT, place)
        case resolution.Form.DOUBLE:
            code.emit(AvroOp.DOUBLE, place)
        case resolution.Form.TEXT:
            code.emit(AvroOp.TEXT, place, _IS_UTF8)
        case resolution.Form.BINARY if node.size is None:
            code.emit(AvroOp.TEXT, place)
        case resolution.Form.BINARY:
            code.emit(AvroOp.FIXED, place, node.size or 0)
        case resolution.Form.ENUM:
            first = code.text([symbol.encode() for symbol in node.symbols])
            code.emit(AvroOp.ENUM, place, len(node.symbols), first)
        case resolution.Form.DECIMAL:
            _decimal(code, place, node)
        case resolution.Form.CONNECT_TEXT:
            code.emit(AvroOp.MOMENT, place, _MOMENTS[node.text])
        case resolution.Form.NANOS:
            code.emit(AvroOp.NANOS, place)
        case resolution.Form.DECIMAL_TEXT:
            code.emit(AvroOp.DECIMAL_TEXT, place, node.scale)
        case resolution.Form.VARIABLE_DECIMAL:
            code.emit(AvroOp.DECIMAL_TEXT, place, 0, 1 + (node.symbols[0] == "value"))


def _decimal(code: ProgramCode, place: Slot, node: resolution.AvroScalar) -> None:
    """Append the instructions of a decimal; its limit is that of the writer's scale."""
    zeros = node.column.scale - node.scale
    limit = min(10 ** max(0, node.column.precision - zeros), 2**127 - 1)
    size = -1 if node.size is None else node.size
    code.emit(AvroOp.DECIMAL, place, size, *reversed(_halves(limit)))
    if zeros:
        code.emit(AvroOp.RESCALE, place, zeros)


def _halves(number: int) -> tuple[int, int]:
    """Return the lower and the higher half of a number, both with a sign."""
    low, high = number % _WORD, (number >> 64) % _WORD
    return low - _WORD * (low >> 63), high - _WORD * (high >> 63)


def constant(code: ProgramCode, place: Slot, value: Any) -> None:
    """Append the instructions that write a stored value."""
    if value is None:
        return
    match place.store:
        case Store.NONE:
            code.emit(AvroOp.PRESENT, place)
            for inner in place.inside:
                constant(code, inner, value[inner.name])
        case Store.ITEMS:
            code.emit(AvroOp.PRESENT, place)
            for item in value:
                parts = (item,) if len(place.inside) == 1 else item
                for inner, part in zip(place.inside, parts, strict=True):
                    constant(code, inner, part)
                code.emit(AvroOp.VALUE, None, domain=place.items)
        case Store.TEXT:
            text = value.encode() if isinstance(value, str) else value
            code.emit(AvroOp.CONSTANT, place, code.text([text]))
        case _:
            if isinstance(value, float):
                kind = "<d" if place.store == Store.INT64 else "<f"
                value = int.from_bytes(struct.pack(kind, value), "little", signed=True)
            code.emit(AvroOp.NUMBER, place, int(place.store), *_halves(int(value)))


def _union(code: ProgramCode, branches: Sequence[Skip | None]) -> None:
    """Append the instructions of a union; a branch of None: null."""
    first, jumps = len(code.targets), list[int]()
    code.emit(AvroOp.UNION, None, len(branches), first)
    code.targets += [0] * len(branches)
    for number, branch in enumerate(branches):
        code.targets[first + number] = code.at
        if branch is not None:
            branch(code)
        jumps.append(code.emit(AvroOp.JUMP, None))
    for jump in jumps:
        code.instructions[jump][3] = code.at


def _items(code: ProgramCode, place: Slot | None, item: Skip) -> None:
    """Append the instructions of an array or a map; each item has a byte (:mod:`.schema`)."""
    domain = place.items if place else 0
    array = code.emit(AvroOp.ARRAY, place, domain or -1)
    code.instructions[array][4] = code.at
    item(code)
    code.emit(AvroOp.ITEM, None, domain=domain)
    code.instructions[array][5] = code.at


def skip(code: ProgramCode, kind: Type) -> None:
    """Append what skips a value without a column; NotCoveredError: it is recursive or large."""
    _skip(code, kind, (), code.at + MAX_INSTRUCTIONS)


def _skip(code: ProgramCode, kind: Type, around: tuple[Type, ...], end: int) -> None:
    if code.at > end:
        raise NotCoveredError(f"{kind} has too many parts")
    if kind in around:
        raise NotCoveredError(f"{kind} is recursive")
    inside = (*around, kind)
    match kind.kind:
        case "boolean" | "float" | "double" | "fixed":
            size = {"boolean": 1, "float": 4, "double": 8}.get(kind.kind, kind.size)
            code.emit(AvroOp.SKIP_BYTES, None, size)
        case "int" | "long" | "enum":
            code.emit(AvroOp.SKIP_NUMBER, None)
        case "bytes" | "string":
            code.emit(AvroOp.SKIP_TEXT, None)
        case "record":
            for field in kind.fields:
                _skip(code, field.type, inside, end)
        case "array" | "map":

            def item(code: ProgramCode) -> None:
                if kind.kind == "map":
                    code.emit(AvroOp.SKIP_TEXT, None)
                _skip(code, kind.inner, inside, end)

            _items(code, None, item)
        case "union":
            skipped = [
                None
                if branch.kind == "null"
                else partial(_skip, kind=branch, around=inside, end=end)
                for branch in kind.branches
            ]
            _union(code, skipped)
