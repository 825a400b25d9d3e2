"""The names of Snowflake's objects, quoted and escaped here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, fields

from topicberg.settings import Settings

QUERY_ROLE = "query_role"
"""The role that can only read, as ``topicberg deploy`` creates it for ``topicberg query``."""


def quote(*names: str) -> str:
    """A (qualified) identifier: ``quote("DB", "T")`` → ``"DB"."T"``."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def text(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


@dataclass(frozen=True)
class SnowflakeNames:
    """What topicberg's objects are called in Snowflake."""

    database: str
    schema: str
    warehouse: str
    volume: str
    location: str
    derived_volume: str
    derived_location: str
    integration: str  # Of Glue.
    rest_integration: str  # Of another REST catalog, where the topics' tables are in one.
    linked_integration: str  # Of the REST catalog that the linked database follows.
    linked_database: str

    @staticmethod
    def of(config: Settings) -> SnowflakeNames:
        kinds = {field.name: field.name for field in fields(SnowflakeNames)} | {
            "integration": "catalog_integration",
            "rest_integration": "rest_catalog_integration",
            "linked_integration": "linked_catalog_integration",
        }
        return SnowflakeNames(**{name: config.snowflake_name(kind) for name, kind in kinds.items()})

    def table(self, name: str) -> str:
        return quote(self.database, self.schema, name)


@dataclass(frozen=True)
class TablePath:
    """Where Snowflake has a table; ``is_linked``: in a database that finds it by itself."""

    database: str
    schema: str
    table: str
    is_linked: bool = False

    @property
    def sql(self) -> str:
        return quote(self.database, self.schema, self.table)

    @property
    def within(self) -> str:
        """Its schema, in SQL."""
        return quote(self.database, self.schema)

    def __str__(self) -> str:
        return f"{self.database}.{self.schema}.{self.table}"


def table_path(config: Settings, table: str, glue: tuple[str, str]) -> TablePath:
    """Return where Snowflake has a table of the lake.

    Names in the linked database are the catalog's, whose case they keep: quote them.

    :param table: its name in Snowflake where it is created
    :param glue: database and table in Glue
    """
    names = SnowflakeNames.of(config)
    if config.snowflake_linked_database and glue[0] == config.topics_namespace:
        return TablePath(names.linked_database, config.snowflake_namespace, glue[1], is_linked=True)
    return TablePath(names.database, names.schema, table)


def like(name: str) -> str:
    """Return the pattern of exactly this name, in any case."""
    return text(name.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%"))
