"""The columns of a topic's table that identify its rows.

Data files have their columns by field id. If someone drops or renames such a column, the engine
would add one of its name with another id, in which the rows of before have no value: upserts,
deletes and erasures would not find them. So a table's property has the ids.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table

from topicberg.formats.metadata import OFFSET, PARTITION, RAW_KEY, SOURCE_POSITION, SOURCE_TIMESTAMP
from topicberg.tableflow.layout.message_fields import Layout
from topicberg.topics import TopicSpec

IDENTITY_COLUMNS = "topicberg.identity-columns"
"""Property of a table: the field id of each column that identifies rows, and of those in it."""


def identity_columns(spec: TopicSpec, layout: Layout) -> list[str]:
    """Return the columns by which the rows of a key are found."""
    keys = [field.name for field in layout.key.fields()]
    if spec.write_mode == "upsert" and spec.changelog is not None:
        names = (PARTITION, OFFSET, SOURCE_TIMESTAMP, SOURCE_POSITION)
        return [*keys, *map(spec.metadata_column, names)]
    value = {field.name for field in layout.value.fields()}
    keys = [name for name in keys if name not in value]
    if spec.write_mode == "append":
        return keys
    metadata = map(spec.metadata_column, (RAW_KEY, PARTITION, OFFSET, "timestamp"))
    return [*(keys if layout.key.subject is not None else ()), *metadata]


def note_identity(table: Table, columns: Sequence[str]) -> None:
    """Note the field ids of the columns that identify rows; those that are noted stay.

    :param columns: see :func:`identity_columns`
    """
    before = _noted(table)
    kept = {name: field_id for name, field_id in before.items() if _is_in(name, columns)}
    noted = _ids(table.schema(), columns) | kept
    if noted != before:
        with table.transaction() as transaction:
            transaction.set_properties({IDENTITY_COLUMNS: json.dumps(noted, sort_keys=True)})


def changed_identity(
    table: Table, columns: Collection[str] | None = None
) -> Iterator[tuple[str, str | None]]:
    """Yield the noted columns that were dropped or renamed, and the new name; None: dropped.

    :param columns: those that still identify rows; None: all
    """
    for name, field_id in _noted(table).items():
        if columns is not None and not _is_in(name, columns):
            continue
        new_name = table.schema().find_column_name(field_id)
        if new_name != name:
            yield name, new_name


def _is_in(name: str, columns: Collection[str]) -> bool:
    return any(name == column or name.startswith(f"{column}.") for column in columns)


def _noted(table: Table) -> dict[str, int]:
    """Return what the property has; nothing if someone made it unreadable."""
    try:
        noted = json.loads(table.properties.get(IDENTITY_COLUMNS, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(noted, dict) or any(type(number) is not int for number in noted.values()):
        return {}
    return noted


def _ids(schema: Schema, columns: Collection[str]) -> dict[str, int]:
    """Return the field ids of columns and of the fields in them, by their full names."""
    chosen = Schema(*(field for field in schema.fields if field.name in columns))
    return {chosen.find_column_name(number) or "": number for number in index_by_id(chosen)}
