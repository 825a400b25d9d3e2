"""An Iceberg table's metadata, as Snowflake sees it: names, types, and how DuckDB reads it.

Types as in https://docs.snowflake.com/en/user-guide/tables-iceberg-data-types. Column names become
upper case, as Snowflake stores them for a table of an external catalog in a standard database, and
stay as they are in a catalog-linked one;
DuckDB finds a column in any case, so ``"$$offset"`` and ``"$$OFFSET"`` are both answered.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from typing import Any

from topicberg.catalogs.snowflake.names import quote
from topicberg_local.emulators.snowflake.errors import catalog_failure, invalid_request

IcebergType = str | dict[str, Any]

_SCALARS = {
    "boolean": ("BOOLEAN", "BOOLEAN"),
    "int": ("NUMBER(10,0)", "INTEGER"),
    "long": ("NUMBER(19,0)", "BIGINT"),
    "float": ("FLOAT", "DOUBLE"),
    "double": ("FLOAT", "DOUBLE"),
    "date": ("DATE", "DATE"),
    "time": ("TIME(6)", "TIME"),
    "timestamp": ("TIMESTAMP_NTZ(6)", "TIMESTAMP"),
    "timestamptz": ("TIMESTAMP_LTZ(6)", "TIMESTAMPTZ"),
    "timestamp_ns": ("TIMESTAMP_NTZ(9)", "TIMESTAMP_NS"),
    "string": ("VARCHAR(134217728)", "VARCHAR"),
    "binary": ("BINARY(67108864)", "BLOB"),
    "uuid": ("BINARY(16)", "BLOB"),
}
"""Iceberg type → type in Snowflake, type of the view's column in DuckDB."""


@dataclass(frozen=True)
class Column:
    name: str
    type: IcebergType
    required: bool
    comment: str | None
    snowflake_name: str


@dataclass(frozen=True)
class Metadata:
    """The parts of a metadata file that Snowflake works with."""

    content: dict[str, Any]
    keeps_case: bool = False

    @staticmethod
    def parse(location: str, data: bytes, *, keeps_case: bool = False) -> Metadata:
        """
        :param keeps_case: of columns, as in a catalog-linked database
        :raises ProgrammingError: it is not Iceberg metadata that Snowflake can read
        """
        try:
            content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
            metadata, version = Metadata(content, keeps_case), content["format-version"]
            metadata.columns()
        except (ValueError, KeyError, TypeError, StopIteration, OSError) as error:
            raise catalog_failure(
                f"Metadata file '{location}' is not valid Iceberg metadata: {error!r}"
            ) from None
        if version not in (1, 2, 3):
            raise catalog_failure(f"Iceberg format version {version} is not supported: {location}")
        return metadata

    @property
    def location(self) -> str:
        return str(self.content["location"])

    @property
    def format_version(self) -> int:
        return int(self.content["format-version"])

    @property
    def recognized_version(self) -> int:
        """The format version that Snowflake recognizes: an upgrade to 3 only in a later snapshot.

        The specification requires ``first-row-id`` of the snapshots of version 3, and forbids it
        before.
        https://docs.snowflake.com/en/user-guide/tables-iceberg-v3-specification-support
        """
        snapshot = self.snapshot
        is_older = snapshot is not None and "first-row-id" not in snapshot
        return min(self.format_version, 2) if is_older else self.format_version

    @property
    def schema_id(self) -> int:
        return int(self.content.get("current-schema-id", 0))

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The current snapshot: the one that ``main`` points to."""
        current = self.content.get("current-snapshot-id")
        if current in (None, -1):
            return None
        snapshots: list[dict[str, Any]] = self.content["snapshots"]
        return next(snapshot for snapshot in snapshots if snapshot["snapshot-id"] == current)

    def columns(self) -> list[Column]:
        schemas = self.content.get("schemas") or [self.content["schema"]]
        schema = next(s for s in schemas if s.get("schema-id", 0) == self.schema_id)
        return [
            Column(
                f["name"],
                f["type"],
                f.get("required", False),
                f.get("doc"),
                snowflake_name=f["name"] if self.keeps_case else f["name"].upper(),
            )
            for f in schema["fields"]
        ]

    def check_names(self) -> None:
        """:raises ProgrammingError: two columns would have one name in Snowflake"""
        seen: dict[str, str] = {}
        for column in self.columns():
            other = seen.setdefault(column.snowflake_name.upper(), column.name)
            if other != column.name:
                raise invalid_request(
                    f"duplicate column name '{column.snowflake_name}': "
                    f"columns '{other}' and '{column.name}' differ only in case"
                )


def snowflake_type(kind: IcebergType) -> str:
    if isinstance(kind, str):
        if kind in _SCALARS:
            return _SCALARS[kind][0]
        if match := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind):
            return f"NUMBER({match[1]},{match[2]})"
        if match := re.fullmatch(r"fixed\[(\d+)\]", kind):
            return f"BINARY({match[1]})"
        raise invalid_request(f"Iceberg type '{kind}' is not supported by Snowflake")
    if kind["type"] == "list":
        return f"ARRAY({_element(kind['element'], kind.get('element-required'))})"
    if kind["type"] == "map":
        value = _element(kind["value"], kind.get("value-required"))
        return f"MAP({snowflake_type(kind['key'])}, {value})"
    fields = (f"{f['name']} {_element(f['type'], f.get('required'))}" for f in kind["fields"])
    return f"OBJECT({', '.join(fields)})"


def _element(kind: IcebergType, required: bool | None) -> str:
    return snowflake_type(kind) + (" NOT NULL" if required else "")


def source_type(kind: IcebergType) -> str:
    """The column ``source iceberg type`` of DESCRIBE."""
    return kind.upper() if isinstance(kind, str) else json.dumps(kind, separators=(",", ":"))


def select(metadata: Metadata, file: str) -> str:
    """A DuckDB query over the table, with Snowflake's names and types.

    :param file: local copy of the metadata file
    """
    columns = metadata.columns()
    if metadata.snapshot is None:
        nothing = (f"CAST(NULL AS {_duckdb_type(c.type)}) AS {_quote(c)}" for c in columns)
        return f"SELECT {', '.join(nothing)} WHERE FALSE"
    projected = (f"{_column('data.' + quote(c.name), c.type)} AS {_quote(c)}" for c in columns)
    path = file.replace("'", "''")
    return f"SELECT {', '.join(projected)} FROM iceberg_scan('{path}') AS data"  # noqa: S608


def _quote(column: Column) -> str:
    return quote(column.snowflake_name)


def _duckdb_type(kind: IcebergType) -> str:
    if not isinstance(kind, str):
        return "JSON"
    if kind in _SCALARS:
        return _SCALARS[kind][1]
    return kind if kind.startswith("decimal") else "BLOB"


def _column(expression: str, kind: IcebergType) -> str:
    if kind == "float":
        return f"CAST({expression} AS DOUBLE)"
    if kind == "uuid":
        return f"unhex(replace(CAST({expression} AS VARCHAR), '-', ''))"
    if isinstance(kind, str):
        return expression
    return f"to_json({_inner(expression, kind, 0)})"


def _inner(expression: str, kind: IcebergType, depth: int) -> str:
    """A value inside of a structured one, on its way to JSON: bytes are hexadecimal there."""
    if isinstance(kind, str):
        as_bytes = kind == "binary" or kind.startswith("fixed")
        return f"hex({expression})" if as_bytes else expression
    each = f"e{depth}"
    if kind["type"] == "list":
        element = _inner(each, kind["element"], depth + 1)
        return f"list_transform({expression}, lambda {each}: {element})"
    if kind["type"] == "map":
        key = f"CAST({_inner(f'{each}.key', kind['key'], depth + 1)} AS VARCHAR)"
        value = _inner(f"{each}.value", kind["value"], depth + 1)
        # A map in a Parquet file may repeat a key (Kafka headers do): the last one counts.
        later = f"map_keys({expression})[i{depth} + 1:]"
        last = f"lambda {each}, i{depth}: NOT list_contains({later}, {each}.key)"
        entries = f"list_filter(map_entries({expression}), {last})"
        entry = f"lambda {each}: {{'key': {key}, 'value': {value}}}"
        return f"map_from_entries(list_transform({entries}, {entry}))"
    named = {quote(field["name"]): field["type"] for field in kind["fields"]}
    fields = (f"{n} := {_inner(f'{expression}.{n}', t, depth)}" for n, t in named.items())
    return f"CASE WHEN {expression} IS NULL THEN NULL ELSE struct_pack({', '.join(fields)}) END"
