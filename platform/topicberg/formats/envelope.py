"""Debezium's envelope of a change of a table, and the columns that it becomes.

Source: Debezium's documentation of its connectors, "Data change events".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyiceberg.types import NestedField, StructType

from topicberg.errors import TableflowError

BEFORE, AFTER, SOURCE, OPERATION = "before", "after", "source", "op"  # Fields of the envelope.
Changes = Literal["rows", "changes"]
"""The columns of a table of changes. ``rows``: those of the row after a change; ``changes``: both
rows, before and after."""


def changed_columns(
    where: str, fields: Sequence[NestedField], changes: Changes
) -> list[NestedField]:
    """Return the columns of a table of changes, of the fields of an envelope, or TableflowError."""
    by_name = {field.name: field for field in fields}
    if (after := by_name.get(AFTER)) is None or OPERATION not in by_name or SOURCE not in by_name:
        names = ", ".join(by_name)
        raise TableflowError(
            f"{where}: the schema is not Debezium's envelope of a table's changes (before, after, "
            f"source, op): it has the fields {names}",
            hint="remove `changelog` from the spec, or choose the topic of a table: topics of "
            "transactions and of logical messages have no rows",
        )
    if not isinstance(after.field_type, StructType):
        raise TableflowError(
            f"{where}: the field {AFTER} is of the type {after.field_type}, not a record",
            hint="remove `changelog` from the spec: envelopes without a schema of the row, such as "
            "MongoDB's, are not supported",
        )
    if changes == "rows":
        return list(after.field_type.fields)
    return [by_name[name] for name in (BEFORE, AFTER) if name in by_name]
