"""The tables of a catalog."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from topicberg.endpoints import CATALOG, TOPICS_CATALOG


def find_table(catalog: Catalog, identifier: tuple[str, str]) -> Table | None:
    """Return a table as it is now; None: there is none."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def attached_catalog(table: Table) -> str:
    """Return the name that the table's catalog has in Spark and in DuckDB."""
    return TOPICS_CATALOG if table.catalog.name == TOPICS_CATALOG else CATALOG
