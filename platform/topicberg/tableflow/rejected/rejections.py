"""The records of a batch that do not become rows, and what the topic's error mode keeps of them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeVar
from uuid import UUID

from topicberg.formats.reasons import MalformedError
from topicberg.kafka.offsets import PartitionOffset
from topicberg.kafka.records import Records
from topicberg.tableflow.layout.inline_schemas import UnknownInlineError
from topicberg.tableflow.layout.message_fields import KEY, VALUE
from topicberg.tableflow.layout.writers import UNKNOWN, UnknownSchemaError, named_schemas
from topicberg.tableflow.values.offsets import OffsetSet

ErrorMode = Literal["SUSPEND", "SKIP", "LOG"]
MAX_UNKNOWN = 1_000
"""Ids of unknown schemas that one batch keeps."""
MOST_REASONS, OTHER_REASONS = 30, "other reasons"
_REASON_LENGTH = 160
_VALUES = re.compile(
    r": value (?![-+\d.eE]+ (?:exceeds the \w+|has too many digits|is out of range)\b).*|\[.*\]|"
    r'"(?:[^"\\]|\\.)*"?…?|(?<= )(?<!schema )(?:[-+]?\d|0x)[^ ,;:]*'
)
"""Keys of maps, in brackets, are values as well."""
Key = TypeVar("Key", bound=Hashable)


def without_values(reason: str) -> str:
    """Return a reason without the values of its record, so that many records have the same one."""
    return _VALUES.sub("…", " ".join(reason.split()))[:_REASON_LENGTH]


def joined(parts: Iterable[tuple[Key, OffsetSet]]) -> dict[Key, OffsetSet]:
    """Return the offsets of all parts, by key."""
    offsets = dict[Key, OffsetSet]()
    for key, some in parts:
        offsets[key] = offsets[key] | some if key in offsets else some
    return offsets


@dataclass
class Rejections:
    """The malformed records of a batch, or of a part of one."""

    mode: ErrorMode
    count: int = 0
    first: tuple[PartitionOffset, str, str | None] | None = None
    """The first one by partition and offset, its reason, and the id of its schema if unknown."""
    unknown: set[str] = field(default_factory=set)
    """Ids and GUIDs of schemas that were not looked up yet."""
    inline: dict[bytes, PartitionOffset] = field(default_factory=dict)
    """SHA-256 of the schemas that records begin with and that are not registered yet → where."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """In mode LOG: each of them, with the columns of a dead letter."""
    left_out: dict[tuple[str, str | None], OffsetSet] = field(default_factory=dict)
    """All of them, by the reason without its values, and the id of the schema if unknown."""
    kafka_times: int = 0
    """Rows that have Kafka's time, as their event time is missing or out of range."""
    is_partial: bool = False
    """Whether records were left: schemas are looked up first."""

    @property
    def is_final(self) -> bool:
        """Whether the batch ends here: the topic suspends."""
        return self.count > 0 and self.mode == "SUSPEND"

    @property
    def ends_reading(self) -> bool:
        """Whether the other records are not read, and there are no files."""
        return self.is_final or self.is_partial

    @property
    def has_new_schemas(self) -> bool:
        """Whether records name, or have, schemas that were not looked up yet."""
        return bool(self.unknown or self.inline)

    def add(self, records: Records, index: int, reason: MalformedError) -> None:
        """Add one of some records."""
        self.count += 1
        place = int(records.partitions[index]), int(records.offsets[index])
        number = reason.schema_id if isinstance(reason, UnknownSchemaError) else None
        if number is not None and len(self.unknown) < MAX_UNKNOWN:
            self.unknown.add(number)
        if isinstance(reason, UnknownInlineError) and len(self.inline) < MAX_UNKNOWN:
            self.inline.setdefault(sha256(reason.opening).digest(), place)
        if self.first is None or place < self.first[0]:
            self.first = place, str(reason), number
        why = without_values(str(reason)), number
        if why not in self.left_out and len(self.left_out) >= MOST_REASONS:
            why = OTHER_REASONS, None
        self.left_out.setdefault(why, OffsetSet()).add(place)
        if self.mode == "LOG":
            self.records.append(records.raw(index) | {"reason": str(reason), "schema_id": number})

    def name_missing(self, missing: Mapping[str, Mapping[int | UUID, str]]) -> None:
        """Give the reasons of records whose schemas were looked up and are missing, given why."""

        def named(reason: str, number: str | None) -> str:
            if number is None:
                return reason
            of_side = missing[KEY if reason.startswith("the key") else VALUE]
            return reason.replace(UNKNOWN, of_side.get(named_schemas([number])[0], UNKNOWN))

        if self.first is not None:
            self.first = self.first[0], named(*self.first[1:]), self.first[2]
        for record in self.records:
            record["reason"] = named(record["reason"], record["schema_id"])
        named_reasons = ((named(*why), offsets) for why, offsets in self.left_out.items())
        self.left_out = {(text, None): offsets for text, offsets in joined(named_reasons).items()}

    @classmethod
    def joined(cls, mode: ErrorMode, parts: Iterable[Rejections]) -> Rejections:
        """Return those of all parts of a batch."""
        whole = cls(mode)
        for part in parts:
            whole.count += part.count
            whole.left_out = joined([*whole.left_out.items(), *part.left_out.items()])
            whole.kafka_times += part.kafka_times
            whole.unknown |= part.unknown
            whole.inline |= part.inline
            whole.records += part.records
            whole.is_partial |= part.is_partial
            if part.first and (whole.first is None or part.first[0] < whole.first[0]):
                whole.first = part.first
        return whole
