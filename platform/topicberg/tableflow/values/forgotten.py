"""The keys that were forgotten: no replay brings a row of them back.

A table's properties have a digest of each key, or of each value of a column, and up to where the
table held its topic then. What a record had before that place is not read into the table again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
from pydantic import BaseModel, ValidationError
from pyiceberg.table import Table

from topicberg.kafka.offsets import Offsets

MOST_PARTITIONS = 32  # Whose offsets are recorded with each erasure.
FORGOTTEN = "topicberg.forgotten."  # Of table properties; the digest of an erased key follows.


class Forgotten(BaseModel):
    """The record of an erasure."""

    by: str
    at_ms: int
    rows: int
    reason: str
    log: int = 0
    """See :mod:`topicberg.tableflow.values.logs`."""
    offsets: Offsets | None = None
    """Up to where the table held that log; None: not known, or of many partitions."""

    @classmethod
    def load(cls, text: str) -> Forgotten:
        """Return what a table property says."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:  # written manually
            return cls(by="", at_ms=0, rows=0, reason="", log=sys.maxsize)


def digest(values: Mapping[str, Any], table: UUID) -> str:
    """Return a hash of the values of a key's columns, which differs by table."""

    def text(value: Any) -> str:
        is_moment = isinstance(value, datetime) and value.tzinfo is not None
        return repr(value.astimezone(UTC) if is_moment else value)

    content = json.dumps(values, sort_keys=True, default=text).encode()
    return hashlib.blake2b(content, key=table.bytes, digest_size=16).hexdigest()


@dataclass(frozen=True)
class ForgottenKeys:
    """What was forgotten of a table, for records of one log."""

    table: UUID
    ends: Mapping[str, Offsets | None]
    """By digest: from where on records are not affected; None: all are."""
    key: Sequence[str]  # The columns of the topic's keys.

    @classmethod
    def of(cls, table: Table, key: Sequence[str], log: int) -> ForgottenKeys | None:
        """Return what was forgotten, or None: nothing was."""
        forgotten = {
            name.removeprefix(FORGOTTEN): Forgotten.load(text)
            for name, text in table.properties.items()
            if name.startswith(FORGOTTEN)
        }
        ends = {
            name: done.offsets if done.log == log else None
            for name, done in forgotten.items()
            if done.log >= log
        }
        return cls(table.metadata.table_uuid, ends, key) if ends else None

    def rows(
        self, columns: Mapping[str, pa.Array], places: Sequence[tuple[int, int]]
    ) -> Iterator[int]:
        """Yield which rows have a forgotten key, or a value; ``places``: partition and offset."""
        for number, row in enumerate(pa.table(dict(columns)).to_pylist()):
            values = [*_values("", row)]
            if all(name in row for name in self.key):
                values.append({name: row[name] for name in self.key})
            for name in {digest(value, self.table) for value in values} & self.ends.keys():
                partition, offset = places[number]
                if offset < (self.ends[name] or {partition: sys.maxsize}).get(partition, 0):
                    yield number


def _values(prefix: str, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values of a row, and those in its structs, by their paths."""
    for name, value in row.items():
        if value is not None:
            yield {prefix + name: value}
        if isinstance(value, dict):
            yield from _values(f"{prefix}{name}.", value)
