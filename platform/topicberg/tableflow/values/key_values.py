"""When two decoded keys are equal: if they have the same text, which is defined here only.

A key is the values of the fields of the newest key schema, as that schema reads them: whatever
bytes, schema id, spelling and partition the record had. A field that the writer's schema lacks has
the newest schema's default where its format gives one to readers (of Protobuf, what a message
without the field has), else null; a field that the newest schema lacks does not count.

- Numbers are equal if their values are, so a wider type changes nothing. -0.0 is 0.0, and NaN is
  equal to NaN, as in ``GROUP BY``. A float is equal to the double of its value.
- Decimals have the scale of their column; ``1.5`` and ``1.50`` are equal.
- Text and bytes are equal if all of their characters or bytes are.
- Null is equal to null, and to nothing else. A struct is not null because its fields are.
- Members of a union are different fields: an int 1 is not a long 1 beside it.
- The entries of a map have no order.

The batch that writes a row, the index that is built from a data file, the folding of change logs
and ``reread`` all compare this text. Spark's workers get this module with its function, so it
imports only pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class KeyShape:
    """The parts of a value that count; none: it is not nested.

    A struct has its fields; a list one part, its elements; a map two, its keys and values.
    """

    parts: tuple[tuple[str, KeyShape], ...] = ()
    absent: bool | int | float | str | bytes | None = None
    """The value of a record that lacks the field, if it is never null: of Protobuf's fields without
    presence. A column is null if the writer's schema lacks the field."""


def key_text(columns: Sequence[Any], shapes: Sequence[KeyShape] | None = None) -> Any:
    """Return one binary value for each row: equal if and only if the keys are.

    :param columns: Arrow arrays of the fields of the newest key schema, in its order
    :param shapes: of the fields; None: none of them is nested
    """
    shapes = shapes or (KeyShape(),) * len(columns)
    parts = [_sized(_text(column, shape)) for column, shape in zip(columns, shapes, strict=True)]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b",")


def _sized(texts: Any) -> Any:
    """Return the texts with their sizes before them, so that joined ones differ from each other."""
    size = pc.binary_length(texts).cast(pa.string()).cast(pa.binary())
    return pc.fill_null(pc.binary_join_element_wise(size, texts, b":"), b"-")


def _text(values: Any, shape: KeyShape) -> Any:
    """Return the text of each value, null for null."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if shape.absent is not None and pa.types.is_null(values.type):
        values = pa.repeat(pa.scalar(shape.absent), len(values))
    elif shape.absent is not None:
        values = pc.fill_null(values, pa.scalar(shape.absent, values.type))
    kind = values.type
    if pa.types.is_struct(kind):
        return _struct_text(values, shape)
    if pa.types.is_map(kind):
        pairs = zip((values.keys, values.items), shape.parts, strict=True)
        inner = (_sized(_text(part, part_shape)) for part, (_, part_shape) in pairs)
        return _list_text(values, pc.binary_join_element_wise(*inner, b","), is_map=True)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ((_, element),) = shape.parts
        return _list_text(values, _sized(_text(values.values, element)), is_map=False)
    if pa.types.is_floating(kind):
        # Zero has a sign, which is lost by adding one without.
        numbers = pc.add(values.cast(pa.float64()), 0.0)
        return pc.if_else(pc.is_nan(numbers), "nan", numbers.cast(pa.string())).cast(pa.binary())
    if pa.types.is_temporal(kind):
        values = values.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    if not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
        values = values.cast(pa.string())
    return values.cast(pa.binary())


def _struct_text(values: pa.StructArray, shape: KeyShape) -> Any:
    names = {field.name: place for place, field in enumerate(values.type)}
    columns, nothing = values.flatten(), pa.nulls(len(values), pa.binary())
    texts = [
        _sized(_text(columns[names[name]], part) if name in names else nothing)
        for name, part in shape.parts
    ]
    joined = pc.binary_join_element_wise(*texts, b",")
    return pc.if_else(values.is_valid(), joined, pa.scalar(None, pa.binary()))


def _list_text(values: Any, parts: Any, *, is_map: bool) -> pa.Array:
    """Return the text of each list or map, given those of the items of all of them."""
    offsets, listed = values.offsets.to_pylist(), parts.to_pylist()
    texts = []
    for row, is_there in enumerate(values.is_valid().to_pylist()):
        inside = listed[offsets[row] : offsets[row + 1]] if is_there else []
        inside = [b"%d:%s" % (len(text), text) for text in sorted(inside)] if is_map else inside
        texts.append(b",".join(inside) if is_there else None)
    return pa.array(texts, pa.binary())
