"""Updates of a commit of the catalog."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

if TYPE_CHECKING:
    from pyiceberg.table import Table


def property_updates(
    table: Table, properties: Mapping[str, str] | None, dropped: Collection[str]
) -> list[TableUpdate]:
    """Return the updates that change and remove table properties."""
    updates: list[TableUpdate] = []
    if properties:
        updates.append(SetPropertiesUpdate(updates=dict(properties)))
    if removals := sorted(set(dropped) & table.properties.keys()):
        updates.append(RemovePropertiesUpdate(removals=removals))
    return updates
