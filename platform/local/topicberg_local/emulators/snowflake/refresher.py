"""Automated refresh: tables with AUTO_REFRESH follow their catalog, as linked databases do.

https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh: Snowflake polls the catalog
every ``REFRESH_INTERVAL_SECONDS`` of the integration, only while a table wants it; what fails makes
the table STALLED, and it recovers by itself.
"""

from __future__ import annotations

import logging
import threading
import time

from topicberg_local.emulators.snowflake.account import DATABASE, INTEGRATION, TABLE, Account
from topicberg_local.emulators.snowflake.linked import discover, is_due
from topicberg_local.emulators.snowflake.sql import display
from topicberg_local.emulators.snowflake.tables import refresh
from topicberg_local.emulators.store import Stored

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""How often it is looked whether a table is due."""


class Refresher:
    """A thread that refreshes what is due."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refresher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        polled: dict[tuple[str, ...], float] = {}
        while not self._stop.wait(_LOOK_SECONDS):
            self._discover()
            for table in self._account.store.all(TABLE, lambda t: t.properties["AUTO_REFRESH"]):
                due = polled.get(table.name, 0.0) + self._interval(table)
                if time.monotonic() >= due:
                    self._poll(table)
                    polled[table.name] = time.monotonic()

    def _discover(self) -> None:
        for database in self._account.store.all(DATABASE):
            if "LINKED_CATALOG" in database.properties and is_due(database):
                try:
                    discover(self._account, database.name[0])
                except Exception:
                    logger.exception("discovery of %s", display(database.name))

    def _interval(self, table: Stored) -> float:
        integration = self._account.store.get(INTEGRATION, (table.properties["CATALOG"],))
        return float(integration.properties["REFRESH_INTERVAL_SECONDS"]) if integration else 30.0

    def _poll(self, table: Stored) -> None:
        try:
            refresh(self._account, table.name)
        except Exception as error:
            logger.warning("automated refresh of %s: %s", display(table.name), error)
            self._mark(table, str(error))

    def _mark(self, table: Stored, reason: str) -> None:
        with self._account.store.lock:
            current = self._account.store.get(TABLE, table.name)
            if current is not None:
                current.properties["REFRESH_ERROR"] = reason
                self._account.store.put(current)
