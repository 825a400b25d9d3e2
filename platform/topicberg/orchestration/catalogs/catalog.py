"""What a catalog is to the graph: its assets ``<name>/<table>``, and their checks.

Glue and Snowflake are two. A package adds one by an entry point of ``topicberg.catalogs``, which
names an object that has what :class:`Catalog` says.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, cast

from topicberg.errors import TopicbergError
from topicberg.extensions import extensions

if TYPE_CHECKING:
    import dagster as dg
    from pyiceberg.table import Table

    from topicberg.checks.check import TableCheck
    from topicberg.orchestration.assets.tables import LakeTable
    from topicberg.orchestration.resources import Lakehouse, Snowflake

ICEBERG = "iceberg"  # The first part of the keys of the tables themselves.
logger = logging.getLogger(__name__)


class Catalog(Protocol):
    """Where the tables of the lake are registered, for readers of that catalog."""

    name: str  # The first part of the keys of its assets, and the name of the entry point.
    source: str  # Whose assets its own are made from: :data:`ICEBERG`, or another catalog.
    pool: str | None  # Dagster's pool of its operations.
    modules: tuple[str, ...]
    """Libraries that it needs. Where one is not installed, the graph does not have the catalog."""

    def spec(self, table: LakeTable) -> dg.AssetSpec:
        """Return the asset of a table: its description, kinds, and what it depends on."""

    def register(
        self, table: LakeTable, lakehouse: Lakehouse, snowflake: Snowflake
    ) -> dg.MaterializeResult:
        """Bring the catalog to the table's current state. To do it again changes nothing."""

    def is_current(self, table: LakeTable, iceberg: Table, lakehouse: Lakehouse) -> bool:
        """Return whether the catalog has the state of a table, if it is not left to its source."""

    def checks(self, dropped: str | None) -> Sequence[TableCheck]:
        """Return its checks; ``dropped`` is one that fails already when the table was dropped."""


@cache
def catalogs() -> dict[str, Catalog]:
    """Return the catalogs whose libraries are installed, each after that of its assets' source."""
    waiting: list[Catalog] = []
    for name, catalog in extensions("topicberg.catalogs", _complete):
        missing = [module for module in catalog.modules if find_spec(module) is None]
        if missing:
            logger.info("catalog %s is left out: %s is not installed", name, missing[0])
        else:
            waiting.append(catalog)
    ordered: dict[str, Catalog] = {}
    while ready := [catalog for catalog in waiting if catalog.source in (ICEBERG, *ordered)]:
        ordered |= {catalog.name: catalog for catalog in ready}
        waiting = [catalog for catalog in waiting if catalog.name not in ordered]
    for catalog in waiting:
        message = "catalog %s is left out: its source %s is none of %s"
        logger.warning(message, catalog.name, catalog.source, ", ".join((ICEBERG, *ordered)))
    return ordered


def _complete(catalog: object) -> Catalog:
    """Return a catalog that has every attribute and method of :class:`Catalog`."""
    stated = {*Catalog.__annotations__, *vars(Catalog)}
    if lacks := [name for name in stated if name[0] != "_" and not hasattr(catalog, name)]:
        raise TopicbergError(f"it is not a catalog: it lacks {', '.join(sorted(lacks))}")
    return cast("Catalog", catalog)


def systems() -> tuple[str, ...]:
    """Return the first parts of the keys of a table's assets, parents first."""
    return ICEBERG, *catalogs()


def pool_of(system: str) -> str | None:
    """Return the pool of the operations of a system."""
    return None if system == ICEBERG else catalogs()[system].pool
