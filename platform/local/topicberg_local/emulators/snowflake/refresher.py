"""Automated refresh: tables with AUTO_REFRESH follow their catalog, as linked databases do.

https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh: Snowflake polls the catalog
every ``REFRESH_INTERVAL_SECONDS`` of the integration, only while a table wants it; what fails makes
the table STALLED, and it recovers by itself.
"""

from __future__ import annotations

import logging
import time

from topicberg_local.emulators.process import Worker
from topicberg_local.emulators.snowflake.account import DATABASE, INTEGRATION, TABLE, Account
from topicberg_local.emulators.snowflake.linked import discover, is_due
from topicberg_local.emulators.snowflake.sql import display
from topicberg_local.emulators.snowflake.tables import note_refresh, refresh
from topicberg_local.emulators.store import Stored

logger = logging.getLogger(__name__)


class Refresher(Worker):
    """Refreshes what is due."""

    def __init__(self, account: Account) -> None:
        super().__init__("refresher")
        self._account = account
        self._polled: dict[tuple[str, ...], float] = {}

    def look(self) -> None:
        for database in self._account.store.all(DATABASE):
            if "LINKED_CATALOG" in database.properties and is_due(database):
                try:
                    discover(self._account, database.name[0])
                except Exception:
                    logger.exception("discovery of %s", display(database.name))
        for table in self._account.store.all(TABLE, lambda t: t.properties["AUTO_REFRESH"]):
            if time.monotonic() >= self._polled.get(table.name, 0.0) + self._interval(table):
                self._poll(table)
                self._polled[table.name] = time.monotonic()

    def _interval(self, table: Stored) -> float:
        integration = self._account.store.get(INTEGRATION, (table.properties["CATALOG"],))
        return float(integration.properties["REFRESH_INTERVAL_SECONDS"]) if integration else 30.0

    def _poll(self, table: Stored) -> None:
        try:
            refresh(self._account, table.name)
        except Exception as error:
            logger.warning("automated refresh of %s: %s", display(table.name), error)
            note_refresh(self._account, table.name, str(error))
