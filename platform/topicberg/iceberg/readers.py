"""Which readers of a deployment can read a table: by its format version, types and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import index_by_id
from pyiceberg.table import Table

from topicberg.errors import TableFormatError
from topicberg.iceberg import files, names
from topicberg.settings import Settings

DOUBLES, NAN = "doubles that are no floats", "NaN"
IN_ORDER = "0.0 (where x = -0.0) and NaN (where x > infinity)"
BEFORE_1970, DECIMALS, CLUSTERS = "times before 1970", "decimals", "letters of several code points"
_TIMES = dict.fromkeys(("timestamp", "timestamptz"), BEFORE_1970)


@dataclass(frozen=True)
class TableReader:
    """What a reader supports."""

    name: str
    newest_version: int  # The newest format version that it reads.
    unreadable: frozenset[str] = frozenset()  # Types of columns for which it cannot read a table.

    ascii_partitions: bool = False
    """It cannot read manifests that name a partition field with a letter outside of ASCII."""
    missed: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """Transform → type of a column → the values whose rows a query with a condition on the column
    misses, as the reader skips their partitions."""
    tried: str = ""  # The newest version of which that is known.

    def reason(self, table: Table, version: int | None = None) -> str | None:
        """Return why it cannot read a table; None: it can.

        :param version: the format version that the table would have; None: the one that it has
        """
        schema, version = table.schema(), version or table.format_version
        if version > self.newest_version:
            return f"it reads format versions up to {self.newest_version}"
        for number, column in index_by_id(schema).items():
            if (kind := str(column.field_type)) in self.unreadable:
                return f"column {schema.find_column_name(number)} is of type {kind}"
        if self.ascii_partitions and (
            name := names.find_unreadable_partition(table.specs().values())
        ):
            return f"the name of its partition field {name} is not an Avro name"
        return None

    def misses(self, table: Table) -> str | None:
        """Return which rows its queries may miss, and why; None: none."""
        columns = [
            (column, values)
            for column in files.partition_columns(table)
            if (values := self.missed.get(column.transform, {}).get(column.kind))
        ]
        for manifest, (column, values) in product(
            files.head_manifests(table) if columns else (), columns
        ):
            is_its = column.spec_id == manifest.partition_spec_id
            if is_its and _may_have(manifest, column.place, values):
                return (
                    f"up to {self.tried}, its conditions miss rows with {values}: the table is "
                    f"partitioned by {column.transform} of a {column.kind}"
                )
        return None


def _may_have(manifest: ManifestFile, place: int, values: str) -> bool:
    """Return whether partitions of a manifest may have such values, as far as it is known."""
    if values == NAN and manifest.partitions:
        return manifest.partitions[place].contains_nan is not False
    if values == BEFORE_1970 and manifest.partitions:
        lower = manifest.partitions[place].lower_bound
        if lower is None:  # all are null, or its writer kept none (ClickHouse/ClickHouse#118905)
            return not manifest.partitions[place].contains_null
        return int.from_bytes(lower, "little", signed=True) < 0
    return True


PYICEBERG = TableReader(
    "PyIceberg", newest_version=3, missed={"identity": {"double": DOUBLES}}, tried="0.12"
)
"""Tried with 0.12: deletion vectors are read. Types that it does not have, such as variant, fail
when the table is loaded."""
SPARK = TableReader(
    "Spark",
    newest_version=4,
    unreadable=frozenset({"time", "timestamp_ns", "timestamptz_ns"}),
    missed={"identity": dict.fromkeys(("float", "double"), IN_ORDER)},
    tried="Iceberg 1.12",
)
"""Tried with Spark 4.1 and Iceberg 1.12; the types: Iceberg's ``TypeToSparkType``. Iceberg sorts
-0.0 below 0.0, and has no range with NaN."""
DUCKDB = TableReader(
    "DuckDB",
    newest_version=3,
    unreadable=frozenset({"timestamptz_ns"}),
    ascii_partitions=True,
    missed={
        "identity": {"float": NAN, "double": NAN},
        "day": _TIMES,
        "month": _TIMES,
        "truncate": {"string": CLUSTERS, "decimal": DECIMALS},
    },
    tried="1.5.5",
)
"""Tried with 1.5.5: deletion vectors and row lineage are read. At the name of a partition field
that is not an Avro name, it ends the process. Its ``day`` and ``month`` round to 1970, its
``truncate`` counts graphemes."""
READ_ALL_FILES = "SET disabled_optimizers = 'filter_pushdown,join_filter_pushdown'"
"""With this, DuckDB skips no files, and misses no rows."""
SNOWFLAKE = TableReader("Snowflake", newest_version=3)
"""Externally managed tables, with all types of version 3.
https://docs.snowflake.com/en/user-guide/tables-iceberg-v3-specification-support"""
ATHENA = TableReader("Athena", newest_version=2)
"""https://docs.aws.amazon.com/athena/latest/ug/querying-iceberg.html, "Considerations and
limitations": "Athena only creates and operates on Iceberg v2 tables"."""

EVERY = (PYICEBERG, SPARK, DUCKDB, SNOWFLAKE, ATHENA)


def configured(config: Settings) -> tuple[TableReader, ...]:
    """Return the readers of a deployment; the local one has no Athena."""
    has_athena = config.deployment == "cloud" and config.athena
    return tuple(reader for reader in EVERY if reader is not ATHENA or has_athena)


def require_spark(table: Table) -> None:
    """Check that Spark, which writes a table, can read it; raise a TableFormatError if not."""
    if reason := SPARK.reason(table):
        raise TableFormatError(
            f"table {'.'.join(table.name())}: Spark cannot read it: {reason}",
            hint="drop what another writer added to the table, for instance with PyIceberg",
        )
