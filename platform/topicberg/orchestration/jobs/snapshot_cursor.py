"""What the snapshot sensor remembers of each table: what it has reported and registered.

What must be computed is in the derived tables themselves (:mod:`topicberg.transforms.unread`), and
how often that was tried in the tags of Dagster's runs. A reset of the cursor therefore reports and
registers again, and computes nothing again. Dagster stores the cursor with every tick, so a table
has at most 60 bytes in it.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic import BaseModel, Field, ValidationError

SENSOR = "snapshots"
UNREGISTERED, UNCHECKED, UNOBSERVED, UNFINISHED = "r", "c", "o", "w"
"""Flags: the table differs from what the catalogs have; a tick has registered it, which no run has
checked yet; its topic is to be observed in Kafka; not all of it is computed."""


def short_hash(text: str, length: int = 8) -> str:
    """Return some characters of a hash of a text, six bits each."""
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()[:length]


@dataclass(frozen=True)
class TableCursor:
    """A table as a tick has left it."""

    snapshot: int | None = None
    """The last one that was reported, and whose changes were looked for in derived tables."""
    registered: str = ""
    """Hash of the metadata that Glue and Snowflake have."""
    signal: str = ""
    """Hash of what the table's writer reported at the last look."""
    flags: str = ""
    observed: int = 0
    """The minute since 1970 when the topic was observed."""

    @staticmethod
    def parse(text: str) -> TableCursor:
        """:raises ValueError: no tick has written it"""
        snapshot, registered, signal, flags, observed = text.split(".")
        number = int.from_bytes(urlsafe_b64decode(snapshot + "="), signed=True)
        return TableCursor(
            number if snapshot else None, registered, signal, flags, int(observed, 16)
        )

    def __str__(self) -> str:
        snapshot = ""
        if self.snapshot is not None:
            number = self.snapshot.to_bytes(8, signed=True)
            snapshot = urlsafe_b64encode(number).decode().rstrip("=")
        fields = snapshot, self.registered, self.signal, self.flags, f"{self.observed:x}"
        return ".".join(fields)

    def has(self, flag: str) -> bool:
        return flag in self.flags

    def flagged(self, flag: str, *, on: bool = True) -> TableCursor:
        flags = {*self.flags} | {flag} if on else {*self.flags} - {flag}
        return replace(self, flags="".join(sorted(flags)))


class Cursor(BaseModel):
    """The sensor's cursor."""

    tables: dict[str, str] = Field(default_factory=dict, description="hash of its name → its state")
    checked_at: int = Field(default=0, description="when a run was requested that checks tables")

    @staticmethod
    def parse(text: str | None) -> Cursor:
        """Return the cursor; an empty one if there is none, or one that is not of this version."""
        with suppress(ValidationError):
            if text:
                return Cursor.model_validate_json(text)
        return Cursor()

    def states(self, names: Iterable[str]) -> dict[str, TableCursor]:
        """Return the states of those of the tables that have one."""
        states: dict[str, TableCursor] = {}
        for name in names:
            with suppress(ValueError):
                if text := self.tables.get(short_hash(name)):
                    states[name] = TableCursor.parse(text)
        return states

    @staticmethod
    def of(states: dict[str, TableCursor], checked_at: int) -> Cursor:
        tables = {short_hash(name): str(state) for name, state in states.items()}
        return Cursor(tables=tables, checked_at=checked_at)
