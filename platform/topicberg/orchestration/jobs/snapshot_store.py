"""Where the snapshot sensor keeps a :class:`.jobs.snapshot_cursor.TableCursor` for each table.

Dagster stores a sensor's cursor with every tick, so the sensor's own has only what its last tick
changed; the next tick moves that to Dagster's key-value store. A tick that fails, or whose daemon
ends, has changed nothing. Resetting the cursor in the UI begins another ``life``: what was stored
for the one before is ignored.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress

import dagster as dg
from pydantic import BaseModel, Field, ValidationError

from topicberg.orchestration.jobs.snapshot_cursor import TableCursor

SENSOR = "snapshots"
_KEY = "topicberg/snapshots/{}/{}"
"""Of a code location and one of its tables."""


class Position(BaseModel):
    """The sensor's own cursor."""

    life: str = Field(description="of this cursor, which another one after a reset has not")
    changed: dict[str, TableCursor] = Field(default_factory=dict, description="by the last tick")
    looked_back_at: float = Field(default=0, description="when sources of lookbacks were watched")
    registrations: int = Field(default=0, description="runs so far; makes their keys unique")
    checks_key: str | None = Field(default=None, description="of the last run of checks")
    checked_at: float = Field(default=0, description="when that was requested")

    @staticmethod
    def parse(text: str | None) -> Position:
        """Return the position; a new one if there is none, or one this version cannot read."""
        with suppress(ValidationError):
            if text:
                return Position.model_validate_json(text)
        return Position(life=uuid.uuid4().hex[:8])


class Cursors(dict[str, TableCursor]):
    """The cursors of the tables by name, and those of them that a tick has changed."""

    def __init__(self, cursors: Mapping[str, TableCursor]) -> None:
        super().__init__(cursors)
        self.changed: dict[str, TableCursor] = {}

    def note(self, name: str, cursor: TableCursor) -> None:
        """Replace the cursor of a table."""
        if cursor != self.get(name):
            self[name] = self.changed[name] = cursor


def load(
    instance: dg.DagsterInstance, position: Position, names: Iterable[str], location: str | None
) -> dict[str, TableCursor]:
    """Return the cursor of each table that has one, and store what the last tick changed.

    :param location: the code location; None: no daemon evaluates the sensor
    """
    stored = _read(instance, names, location)
    newer = {name: cursor.model_dump_json() for name, cursor in position.changed.items()}
    newer = {name: text for name, text in newer.items() if stored.get(name) != text}
    # One statement inserts or updates, and never does both: Dagster's for SQLite.
    for known in (True, False):
        values = {
            _KEY.format(location, name): text
            for name, text in newer.items()
            if (name in stored) is known
        }
        if values:
            instance.daemon_cursor_storage.set_cursor_values(values)
    cursors = {name: TableCursor.parse(text) for name, text in (stored | newer).items()}
    return {name: cursor for name, cursor in cursors.items() if cursor.life == position.life}


def known_names(
    instance: dg.DagsterInstance, names: Iterable[str], location: str
) -> frozenset[str]:
    """Return those of the names that the sensor of a code location has stored a cursor for."""
    return frozenset(_read(instance, names, location))


def _read(
    instance: dg.DagsterInstance, names: Iterable[str], location: str | None
) -> dict[str, str]:
    keys = {_KEY.format(location, name): name for name in names}
    found = instance.daemon_cursor_storage.get_cursor_values(set(keys))
    return {keys[key]: text for key, text in found.items()}
