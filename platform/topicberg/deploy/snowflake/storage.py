"""Warehouse, database, schema, and what Iceberg tables need: volume, integration, the tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topicberg import glue
from topicberg.deploy.aws import iam
from topicberg.deploy.resource import Changes, Fields, Live, Resource
from topicberg.deploy.snowflake.principals import _pattern
from topicberg.deploy.wait import until
from topicberg.errors import TopicbergError
from topicberg.snowflake import (
    Names,
    create_integration,
    create_table,
    create_volume,
    quote,
    role_arn,
    text,
)

if TYPE_CHECKING:
    from topicberg.deploy.world import World
    from topicberg.topics import TopicSpec

OWNER = "SYSADMIN"
INTEGRATOR = "ACCOUNTADMIN"
SUSPEND_SECONDS = 60
ACCESS_SECONDS = 600.0
GLUE_SECONDS = 30 * 60.0


@dataclass(frozen=True)
class Warehouse(Resource):
    kind = "Snowflake warehouse"

    def find(self, world: World) -> Live | None:
        with world.snowflake() as session:
            rows = session.run(f"SHOW WAREHOUSES LIKE {text(_pattern(self.name))}", OWNER)
        found = next((row for row in rows if row["name"] == self.name), None)
        if found is None:
            return None
        size = str(found["size"]).upper().replace("-", "")
        return Live(self.name, {"size": size, "auto_suspend": int(found["auto_suspend"] or 0)})

    def desired(self, world: World) -> Fields:
        return {"size": "XSMALL", "auto_suspend": SUSPEND_SECONDS}

    def _properties(self) -> str:
        return f"WAREHOUSE_SIZE = 'XSMALL' AUTO_SUSPEND = {SUSPEND_SECONDS}"

    def create(self, world: World) -> None:
        name = quote(self.name)
        with world.snowflake() as session:
            session.run(f"CREATE WAREHOUSE IF NOT EXISTS {name} {self._properties()}", OWNER)

    def update(self, world: World, live: Live, changes: Changes) -> None:
        with world.snowflake() as session:
            session.run(f"ALTER WAREHOUSE {quote(self.name)} SET {self._properties()}", OWNER)

    def delete(self, world: World, live: Live) -> None:
        with world.snowflake() as session:
            session.run(f"DROP WAREHOUSE IF EXISTS {quote(self.name)}", OWNER)


@dataclass(frozen=True)
class Container(Resource):
    """A database or a schema.

    :param of: ``DATABASE`` or ``SCHEMA``
    :param path: its name, in parts
    """

    of: str = "DATABASE"
    path: tuple[str, ...] = ()
    comment: str = ""

    kind = "Snowflake"

    def find(self, world: World) -> Live | None:
        scope = f" IN DATABASE {quote(self.path[0])}" if self.of == "SCHEMA" else ""
        statement = f"SHOW {self.of}S LIKE {text(_pattern(self.path[-1]))}{scope}"
        with world.snowflake() as session:
            rows = session.find(statement, OWNER)
        found = any(row["name"] == self.path[-1] for row in rows or [])
        return Live(".".join(self.path)) if found else None

    def create(self, world: World) -> None:
        comment = f"COMMENT = {text(self.comment)}"
        statement = f"CREATE {self.of} IF NOT EXISTS {quote(*self.path)} {comment}"
        with world.snowflake() as session:
            session.run(statement, OWNER)

    def delete(self, world: World, live: Live) -> None:
        with world.snowflake() as session:
            session.run(f"DROP {self.of} IF EXISTS {quote(*self.path)}", OWNER)


def _properties(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["property"]: row["property_value"] for row in rows}


def _tables(world: World, column: str, used: str) -> list[tuple[str, str, str]]:
    """Iceberg tables in our database by what they use, whoever made them.

    :param column: of ``SHOW ICEBERG TABLES``: ``catalog_name`` or ``external_volume_name``
    """
    database = quote(Names.of(world.config).database)
    with world.snowflake() as session:
        rows = session.find(f"SHOW ICEBERG TABLES IN DATABASE {database}", INTEGRATOR)
    return [
        (row["database_name"], row["schema_name"], row["name"])
        for row in rows or []
        if row[column] == used
    ]


def _drop_tables(world: World, column: str, used: str) -> None:
    """Snowflake drops no volume and no integration that a table uses."""
    for table in _tables(world, column, used):
        with world.snowflake() as session:
            session.run(f"DROP ICEBERG TABLE IF EXISTS {quote(*table)}", INTEGRATOR)


@dataclass(frozen=True)
class Volume(Resource):
    """The bucket, read-only. Its external id is ours: Snowflake's own would change each time."""

    kind = "external volume"
    replaced_for = frozenset({"base_url", "role", "external_id"})

    def find(self, world: World) -> Live | None:
        with world.snowflake() as session:
            rows = session.find(f"DESC EXTERNAL VOLUME {quote(self.name)}", INTEGRATOR)
        if rows is None:
            return None
        properties = _properties(rows)
        location = json.loads(properties["STORAGE_LOCATION_1"])
        return Live(
            self.name,
            {
                "base_url": location["STORAGE_BASE_URL"],
                "role": location["STORAGE_AWS_ROLE_ARN"],
                "external_id": location["STORAGE_AWS_EXTERNAL_ID"],
                "allow_writes": properties["ALLOW_WRITES"].lower(),
            },
            {
                "principal": location["STORAGE_AWS_IAM_USER_ARN"],
                "external_id": location["STORAGE_AWS_EXTERNAL_ID"],
            },
        )

    def desired(self, world: World) -> Fields:
        return {
            "base_url": world.seen.warehouse,
            "role": role_arn(world.seen),
            "external_id": world.config.prefix,
            "allow_writes": "false",
        }

    def create(self, world: World) -> None:
        with world.snowflake() as session:
            session.run(create_volume(world.seen), INTEGRATOR)

    def update(self, world: World, live: Live, changes: Changes) -> None:
        statement = f"ALTER EXTERNAL VOLUME {quote(self.name)} SET ALLOW_WRITES = FALSE"
        with world.snowflake() as session:
            session.run(statement, INTEGRATOR)

    def contents(self, world: World) -> list[str]:
        return [".".join(table) for table in _tables(world, "external_volume_name", self.name)]

    def delete(self, world: World, live: Live) -> None:
        """With the tables in our database that derived assets made on it."""
        _drop_tables(world, "external_volume_name", self.name)
        with world.snowflake() as session:
            session.run(f"DROP EXTERNAL VOLUME IF EXISTS {quote(self.name)}", INTEGRATOR)


@dataclass(frozen=True)
class Integration(Resource):
    """The catalog integration with AWS Glue."""

    kind = "Snowflake catalog integration"
    replaced_for = frozenset({"role", "catalog", "region", "namespace"})

    def find(self, world: World) -> Live | None:
        with world.snowflake() as session:
            rows = session.find(f"DESC CATALOG INTEGRATION {quote(self.name)}", INTEGRATOR)
        if rows is None:
            return None
        properties = _properties(rows)
        return Live(
            self.name,
            {
                "role": properties["GLUE_AWS_ROLE_ARN"],
                "catalog": properties["GLUE_CATALOG_ID"],
                "region": properties["GLUE_REGION"],
                "namespace": properties["CATALOG_NAMESPACE"],
                "enabled": properties["ENABLED"].lower(),
            },
            {
                "principal": properties["GLUE_AWS_IAM_USER_ARN"],
                "external_id": properties["GLUE_AWS_EXTERNAL_ID"],
            },
        )

    def desired(self, world: World) -> Fields:
        return {
            "role": role_arn(world.seen),
            "catalog": world.account,
            "region": world.region,
            "namespace": world.cluster,
            "enabled": "true",
        }

    def create(self, world: World) -> None:
        with world.snowflake() as session:
            session.run(create_integration(world.seen), INTEGRATOR)

    def update(self, world: World, live: Live, changes: Changes) -> None:
        statement = f"ALTER CATALOG INTEGRATION {quote(self.name)} SET ENABLED = TRUE"
        with world.snowflake() as session:
            session.run(statement, INTEGRATOR)

    def contents(self, world: World) -> list[str]:
        return [".".join(table) for table in _tables(world, "catalog_name", self.name)]

    def delete(self, world: World, live: Live) -> None:
        """With the tables in our database that derived assets made with it."""
        _drop_tables(world, "catalog_name", self.name)
        with world.snowflake() as session:
            session.run(f"DROP CATALOG INTEGRATION IF EXISTS {quote(self.name)}", INTEGRATOR)


@dataclass(frozen=True)
class ReadingRole(iam.Role):
    """The IAM role by which Snowflake reads: it is there when Snowflake can take it."""

    volume: str = ""

    def settle(self, world: World, live: Live) -> None:
        iam.Role.settle(self, world, live)
        statement = f"SELECT SYSTEM$VERIFY_EXTERNAL_VOLUME({text(self.volume)}) AS answer"
        answer: dict[str, Any] = {}

        def verified() -> bool:
            with world.snowflake() as session:
                answer.update(json.loads(session.run(statement, INTEGRATOR)[0]["answer"]))
            return str(answer["success"]).lower() == "true"

        try:
            until(verified, f"Snowflake takes {self.name}", ACCESS_SECONDS, sleep=world.sleep)
        except TopicbergError as error:
            bad = {k: v for k, v in answer.items() if k.endswith("Result") and v != "PASSED"}
            raise TopicbergError(f"external volume {self.volume}: {bad}") from error


@dataclass(frozen=True)
class IcebergTable(Resource):
    """A topic's table in Snowflake, which follows Glue by itself."""

    spec: TopicSpec | None = None

    kind = "Snowflake Iceberg table"
    replaced_for = frozenset({"catalog", "volume", "glue_table"})

    def _topic(self) -> TopicSpec:
        assert self.spec is not None  # noqa: S101  every table is made with one
        return self.spec

    def find(self, world: World) -> Live | None:
        names = Names.of(world.config)
        scope = quote(names.database, names.schema)
        statement = f"SHOW ICEBERG TABLES LIKE {text(_pattern(self.name))} IN SCHEMA {scope}"
        with world.snowflake() as session:
            rows = session.find(statement, OWNER)
        found = next((row for row in rows or [] if row["name"] == self.name), None)
        if found is None:
            return None
        return Live(
            self.name,
            {
                "catalog": found["catalog_name"],
                "volume": found["external_volume_name"],
                "glue_table": [found["catalog_namespace"], found["catalog_table_name"]],
                "auto_refresh": bool(found["auto_refresh_status"]),
            },
        )

    def desired(self, world: World) -> Fields:
        names = Names.of(world.config)
        return {
            "catalog": names.integration,
            "volume": names.volume,
            "glue_table": [world.cluster, self._topic().glue_name],
            "auto_refresh": True,
        }

    def create(self, world: World) -> None:
        """Once Glue has the table: Snowflake refuses to make one of nothing."""
        names = Names.of(world.config)
        client, name = world.aws("glue"), self._topic().glue_name

        def registered() -> bool:
            table = glue.get_table(client, world.cluster, name)
            return table is not None and glue.metadata_location(table) is not None

        until(
            registered,
            f"Glue has {world.cluster}.{name}",
            GLUE_SECONDS,
            sleep=world.sleep,
        )
        statement = create_table(names, self.name, world.cluster, name, auto_refresh=True)
        with world.snowflake() as session:
            session.run(f"USE WAREHOUSE {quote(names.warehouse)}", OWNER)
            session.run(statement, OWNER)

    def update(self, world: World, live: Live, changes: Changes) -> None:
        table = Names.of(world.config).table(self.name)
        with world.snowflake() as session:
            session.run(f"ALTER ICEBERG TABLE {table} SET AUTO_REFRESH = TRUE", OWNER)

    def delete(self, world: World, live: Live) -> None:
        table = Names.of(world.config).table(self.name)
        with world.snowflake() as session:
            session.run(f"DROP ICEBERG TABLE IF EXISTS {table}", OWNER)
