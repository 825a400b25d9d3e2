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

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
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
    """By digest: where records are of after the erasure; None: none is."""
    key: Sequence[str]
    """The columns of the topic's keys."""

    @classmethod
    def of(cls, table: Table, key: Sequence[str], log: int) -> ForgottenKeys | None:
        """Return what was forgotten, or None: nothing was."""
        ends = dict[str, Offsets | None]()
        for name, text in table.properties.items():
            if name.startswith(FORGOTTEN):
                done = Forgotten.load(text)
                if done.log >= log:
                    ends[name.removeprefix(FORGOTTEN)] = done.offsets if done.log == log else None
        return cls(table.metadata.table_uuid, ends, key) if ends else None

    def rows(
        self,
        keys: Mapping[str, pa.Array],
        columns: Mapping[str, pa.Array],
        partitions: NDArray[np.int32],
        offsets: NDArray[np.int64],
    ) -> list[int]:
        """Return which rows have a forgotten key, or value.

        :param keys: the columns of decoded keys
        :param columns: those of the table
        """
        of_key = {name: keys.get(name, columns.get(name)) for name in self.key}
        is_known = all(column is not None for column in of_key.values())
        parts = [(name, column.to_pylist()) for name, column in columns.items()]
        places = list(zip(partitions.tolist(), offsets.tolist(), strict=True))
        whole = pa.table(of_key).to_pylist() if is_known and of_key else [None] * len(places)
        rows = []
        for row, (partition, offset) in enumerate(places):
            alone = (each for name, values in parts for each in _values(name, values[row]))
            for found in (*([whole[row]] if whole[row] else ()), *alone):
                if (name := digest(found, self.table)) in self.ends:
                    ends = self.ends[name]
                    if ends is None or offset < ends.get(partition, 0):
                        rows.append(row)
                        break
        return rows


def _values(path: str, value: Any) -> Iterator[dict[str, Any]]:
    """Yield a value, and those in its structs, by its path."""
    if value is not None:
        yield {path: value}
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _values(f"{path}.{name}", inner)
