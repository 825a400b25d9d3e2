"""An emulator's objects, in one SQLite file: what a restart or a kill -9 must not lose.

An object is its kind, its name and a JSON document of its properties. Every change is one
transaction, on disk when the method returns.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topicberg.errors import StackError

Name = tuple[str, ...]
"""What tells an object from others of its kind."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  created REAL NOT NULL,
  properties TEXT NOT NULL,
  PRIMARY KEY (kind, name)
) WITHOUT ROWID
"""


@dataclass
class Stored:
    """One object. ``created`` is in seconds since 1970."""

    kind: str
    name: Name
    properties: dict[str, Any] = field(default_factory=dict)
    created: float = field(default_factory=time.time)


class Store:
    """All objects, by kind and name. ``lock`` is for whoever reads and then writes."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        path.touch(mode=0o600)
        path.chmod(0o600)
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _SCHEMA):
                self._connection.execute(statement)
        except sqlite3.OperationalError as error:  # such as a full disk
            raise StackError(f"{path} cannot be used: {error}") from None
        except sqlite3.DatabaseError as error:
            raise StackError(
                f"{path} is damaged: {error}",
                hint="restore it from a backup, or move the folder away to start empty",
            ) from None

    def get(self, kind: str, name: Name) -> Stored | None:
        with self.lock:
            row = self._connection.execute(
                "SELECT created, properties FROM objects WHERE kind = ? AND name = ?",
                (kind, json.dumps(name)),
            ).fetchone()
        return Stored(kind, name, json.loads(row[1]), row[0]) if row else None

    def put(self, stored: Stored) -> None:
        with self.lock:
            name, properties = json.dumps(stored.name), json.dumps(stored.properties)
            self._connection.execute(
                "INSERT OR REPLACE INTO objects (kind, name, created, properties) "
                "VALUES (?, ?, ?, ?)",
                (stored.kind, name, stored.created, properties),
            )

    def delete(self, kind: str, names: list[Name]) -> None:
        """Delete objects, all in one transaction."""
        with self.lock, self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany(
                "DELETE FROM objects WHERE kind = ? AND name = ?",
                [(kind, json.dumps(name)) for name in names],
            )

    def all(self, kind: str, where: Callable[[Stored], bool] = lambda _: True) -> list[Stored]:
        """The objects of a kind, in the order of their names."""
        with self.lock:
            rows = self._connection.execute(
                "SELECT name, properties, created FROM objects WHERE kind = ?", (kind,)
            ).fetchall()
        objects = [
            Stored(kind, tuple(json.loads(name)), json.loads(properties), created)
            for name, properties, created in rows
        ]
        return sorted(filter(where, objects), key=lambda stored: stored.name)

    def close(self) -> None:
        with self.lock:
            self._connection.close()
