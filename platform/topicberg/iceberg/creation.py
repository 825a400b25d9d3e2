"""The creation of tables in catalogs that do not accept every property.

Managed catalogs decide some things themselves, and refuse a table whose properties say otherwise
(AutoMQ/automq#3197). What only makes a table faster or smaller is skipped then.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import RESTError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from topicberg.errors import TableflowError, first_line
from topicberg.iceberg.summaries import OWN
from topicberg.logins.catalog import PREFIX, SETTINGS

logger = logging.getLogger(__name__)

SKIPPED = f"{OWN}skipped-properties"
"""Table property: the names of the properties that the catalog refused, with spaces between."""
_OF_PROPERTIES = re.compile(r"propert", re.IGNORECASE)
_OF_LOCATION = re.compile(r"\blocation\b", re.IGNORECASE)


def create_table(
    catalog: Catalog,
    identifier: tuple[str, str],
    schema: Schema,
    partition_spec: PartitionSpec,
    location: str | None,
    needed: Mapping[str, str],
    optional: Mapping[str, str],
) -> Table:
    """Create a table, without the optional properties that the catalog refuses.

    :param needed: without which topicberg cannot continue the table
    :raises TableflowError: the catalog refuses the location or a needed property
    :raises TableAlreadyExistsError: another process was faster
    """
    left = dict(optional)
    while True:
        skipped = " ".join(optional.keys() - left.keys())
        properties = {**needed, **left, **({SKIPPED: skipped} if skipped else {})}
        try:
            return catalog.create_table(
                identifier,
                schema=schema,
                location=location,
                partition_spec=partition_spec,
                properties=properties,
            )
        except RESTError as error:
            if not (refused := refused_properties(error, left)):
                raise _needed(catalog, ".".join(identifier), location, needed, error) from error
        logger.warning(
            "table %s: the catalog refuses %s, which the table does not have then",
            *(".".join(identifier), ", ".join(sorted(refused))),
        )
        left = {key: value for key, value in left.items() if key not in refused}


def set_optional(table: Table, properties: Mapping[str, str]) -> None:
    """Set the properties that a table does not have, unless the catalog refuses them."""
    skipped = table.properties.get(SKIPPED, "").split()
    missing = {
        key: value
        for key, value in properties.items()
        if key not in table.properties and key not in skipped
    }
    if not missing:
        return
    try:
        with table.transaction() as transaction:
            transaction.set_properties(missing)
    except RESTError as error:
        if not refused_properties(error, missing):
            raise
        logger.warning(
            "table %s: the catalog refuses properties: %s",
            *(".".join(table.name()), first_line(error)),
        )


def refused_properties(error: RESTError, properties: Mapping[str, str]) -> set[str]:
    """Return those of the properties that an error names, or all if it is about properties."""
    text = str(error)
    named = {key for key in properties if key in text}
    is_of_others = _OF_PROPERTIES.search(text) is None or OWN in text or "format-version" in text
    return named or (set() if is_of_others else set(properties))


def _needed(
    catalog: Catalog,
    name: str,
    location: str | None,
    needed: Mapping[str, str],
    error: RESTError,
) -> Exception:
    """Return the error of a table that cannot be created, with what to set; or the catalog's."""
    reason, prefix = first_line(error), catalog.properties.get(SETTINGS, PREFIX)
    refused = refused_properties(error, needed)
    if "format-version" in refused and len(refused) == 1:
        return TableflowError(
            f"table {name}: the catalog refuses format version {needed['format-version']}: "
            f"{reason}",
            hint="set `table.format_version` to a version that the catalog supports",
        )
    if refused:
        return TableflowError(
            f"table {name}: the catalog refuses properties that the table cannot do without, "
            f"{', '.join(sorted(refused))}: {reason}",
            hint=f"let the catalog accept properties that begin with {OWN}, or set {prefix}_URI to "
            "another catalog",
        )
    if not _OF_LOCATION.search(str(error)):
        return error
    if location is None:
        return TableflowError(
            f"table {name}: the catalog has no location for it: {reason}",
            hint="set the location of the catalog's warehouse or of the namespace, or "
            f"{prefix}_LOCATIONS=topicberg",
        )
    return TableflowError(
        f"table {name}: the catalog refuses the location {location}: {reason}",
        hint=f"set {prefix}_LOCATIONS=catalog to let the catalog choose locations, or "
        "allow this location in the catalog",
    )
