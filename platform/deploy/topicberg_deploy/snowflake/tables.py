"""The topics' tables in Snowflake: created one by one, or in a catalog-linked database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.names import SnowflakeNames, TablePath, quote, text
from topicberg.catalogs.snowflake.session import parsed
from topicberg.catalogs.snowflake.statements import create_linked_database, create_table
from topicberg.catalogs.snowflake.tables import LinkStatus, link_status
from topicberg.clients.answers import VendorAnswer
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.tableflow.service.confluent import catalog_problems, read_topic, syncs
from topicberg.topics import TopicSpec
from topicberg_deploy.aws.glue import tables
from topicberg_deploy.confluent.tableflow import FAILED_POLLS
from topicberg_deploy.costs import FREE_CLOUD_SERVICES, PRICES, WAREHOUSE_HOURS, Cost, poll_credits
from topicberg_deploy.polling import DeadlineExceededError
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, Resource
from topicberg_deploy.snowflake.integrations import INTEGRATOR, VERIFY_SECONDS, verification
from topicberg_deploy.snowflake.session import SqlObject, run, show
from topicberg_deploy.snowflake.storage import OWNER

CATALOG_SECONDS = 30 * 60.0
REFRESHING = ("RUNNING", "STALLED")
"""States of automated refresh that need nothing: one that stalled recovers by itself."""
STOPPED = "STOPPED"
"""It does not recover by itself."""


@dataclass(frozen=True)
class LinkedDatabase(SqlObject):
    """A database of what the catalog has of the cluster; Snowflake looks by itself.

    https://docs.snowflake.com/en/user-guide/tables-iceberg-catalog-linked-database
    """

    kind = "Snowflake catalog-linked database"
    of = "DATABASE"
    owner = INTEGRATOR

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        free = FREE_CLOUD_SERVICES * WAREHOUSE_HOURS
        usd = max(0.0, poll_credits(config) - free) * PRICES["credit"]
        basis = f"discovery every {config.snowflake_refresh_seconds} s, beyond what is free"
        return Cost(usd, basis)

    def as_live(self, context: DeployContext, shown: VendorAnswer) -> Live:
        response = verification(context, "GET_CATALOG_LINKED_DATABASE_CONFIG", self.name)
        namespaces = response["allowed_namespaces"] or []  # null means all namespaces
        fields = {
            "namespaces": [str(namespace).strip("'") for namespace in namespaces],
            "write_operations": str(response["allowed_write_operations"]),
            "sync_interval_seconds": int(response["sync_interval_seconds"]),
            "suspended": str(response["is_suspended"]).lower(),
        }
        return Live(self.name, fields)

    def desired(self, context: DeployContext) -> Fields:
        return {
            "namespaces": [context.seen.snowflake_namespace],
            "write_operations": "NONE",
            "sync_interval_seconds": context.config.snowflake_refresh_seconds,
            "suspended": "false",
        }

    def waits(self, context: DeployContext) -> str:
        """For a given role, by which Snowflake reads."""
        return context.wait_of("aws/role/snowflake")

    def create(self, context: DeployContext) -> None:
        run(context, create_linked_database(context.seen), INTEGRATOR)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        link, interval = "UPDATE LINKED_CATALOG", context.config.snowflake_refresh_seconds
        before, after = map(set, changes.get("namespaces", ((), ())))
        added = ", ".join(map(text, sorted(after - before)))
        removed = ", ".join(map(text, sorted(before - after)))
        steps = {
            f"{link} SET SYNC_INTERVAL_SECONDS = {interval}": "sync_interval_seconds" in changes,
            f"{link} SET ALLOWED_WRITE_OPERATIONS = NONE": "write_operations" in changes,
            # First the new ones: an empty list would allow all.
            f"{link} ADD ({added}) TO ALLOWED_NAMESPACES": added,
            f"{link} REMOVE ({removed}) FROM ALLOWED_NAMESPACES": removed,
            "RESUME DISCOVERY": "suspended" in changes,
        }
        for step in (step for step, is_needed in steps.items() if is_needed):
            run(context, f"ALTER DATABASE {quote(self.name)} {step}", INTEGRATOR)

    def settle(self, context: DeployContext, live: Live) -> None:
        """:raises TopicbergError: discovery fails, with Snowflake's reason"""

        def ask() -> str:
            status = _link_status(context)
            return (status.failure or "no reason") if status.state == "FAILED" else ""

        if problem := context.poll_problem(ask, VERIFY_SECONDS):
            raise TopicbergError(f"{self.title} does not follow its catalog: {problem}")


def _link_status(context: DeployContext) -> LinkStatus:
    with context.snowflake.session() as session:
        session.take(INTEGRATOR)
        return link_status(session.connection, context.config)


@dataclass(frozen=True)
class IcebergTable(Resource):
    """A topic's table in Snowflake, which follows its catalog by itself.

    :param has_source: something of this deployment writes records to the topic
    """

    spec: TopicSpec = field(kw_only=True)
    has_source: bool = True

    kind = "Snowflake Iceberg table"
    replaced_for = frozenset({"catalog", "volume", "glue_table"})

    @property
    def parents(self) -> tuple[str, ...]:
        return ("snowflake/schema",)

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        usd = poll_credits(config) * PRICES["credit"]
        every = config.snowflake_refresh_seconds
        return Cost(usd, f"automated refresh every {every} s, a second each")

    def find(self, context: DeployContext) -> Live | None:
        names = SnowflakeNames.of(context.config)
        within = f" IN SCHEMA {quote(names.database, names.schema)}"
        row = show(context, "ICEBERG TABLES", self.name, OWNER, within)
        if row is None:
            return None
        state = _refresh_state(row)
        fields = {
            "catalog": row["catalog_name"],
            "volume": row["external_volume_name"],
            "glue_table": [row["catalog_namespace"], row["catalog_table_name"]],
            "auto_refresh": state in REFRESHING,
        }
        return Live(self.name, fields, {"refresh": state})

    def desired(self, context: DeployContext) -> Fields:
        return {
            "catalog": _topic_integration(context.config),
            "volume": SnowflakeNames.of(context.config).volume,
            "glue_table": [context.seen.snowflake_namespace, self._catalog_name(context)],
            "auto_refresh": True,
        }

    def _catalog_name(self, context: DeployContext) -> str:
        """In Glue, names are in lower case; another catalog has the topic's name."""
        return self.spec.glue_name if context.config.topics_in_glue else self.spec.name

    def waits(self, context: DeployContext) -> str:
        """For what Tableflow and Snowflake's role wait for; and for the topic's first record, if
        nothing of ours writes any: until then no catalog has the table, and Snowflake refuses to
        create one of nothing.
        """
        tableflow = f"confluent/tableflow/{self.spec.asset_name}"
        if reason := context.wait_of("aws/role/snowflake", tableflow):
            return reason
        has_table = self.has_source or self._in_catalog(context)
        return "" if has_table else f"for the first records of topic {self.spec.name}"

    def create(self, context: DeployContext) -> None:
        """Once the catalog has the table, up to a quarter of an hour after its first record."""
        names = SnowflakeNames.of(context.config)
        self._wait_for_catalog(context)
        statement = create_table(
            names,
            self.name,
            context.seen.snowflake_namespace,
            self._catalog_name(context),
            integration=_topic_integration(context.config),
            auto_refresh=True,
        )
        with context.snowflake.session() as session:
            session.run(f"USE WAREHOUSE {quote(names.warehouse)}", OWNER)
            session.run(statement, OWNER)

    def _status(self, context: DeployContext) -> dict[str, Any]:
        """What Tableflow says of the topic."""
        topic = read_topic(
            context.confluent.tableflow, self.spec.name, context.environment, context.cluster
        )
        return (topic or {}).get("status") or {}

    def _in_catalog(self, context: DeployContext) -> bool:
        """Read Glue itself; for another catalog, read the state of Tableflow."""
        if _topic_integration(context.config) != SnowflakeNames.of(context.config).integration:
            states = syncs(self._status(context), of_delta=False)
            return {state.get("sync_status") for state in states} == {"SYNCED"}
        table = glue.get_table(context.aws.client("glue"), context.namespace, self.spec.glue_name)
        return table is not None and glue.metadata_location(table) is not None

    def _wait_for_catalog(self, context: DeployContext) -> None:
        """:raises TopicbergError: the catalog does not get the table, with Tableflow's reason"""
        failures = 0

        def there() -> bool:
            nonlocal failures
            if self._in_catalog(context):
                return True
            problems = catalog_problems(syncs(self._status(context), of_delta=False))
            failures = failures + 1 if problems else 0
            if failures >= FAILED_POLLS:
                raise TopicbergError(
                    f"{self.title}: Tableflow cannot sync its catalog: {'; '.join(problems)}",
                    hint="`topicberg deploy create` again replaces a catalog integration that "
                    "failed",
                )
            return False

        name = f"{context.namespace}.{self.spec.glue_name}"
        try:
            context.poll(there, f"the catalog has {name}", CATALOG_SECONDS)
        except DeadlineExceededError as error:
            listed = ", ".join(sorted(tables(context, context.namespace))) or "no table"
            raise TopicbergError(
                f"{self.title}: {error.message}; Glue database {context.namespace} has {listed}",
                hint=error.hint,
            ) from error

    def _sql(self, context: DeployContext) -> str:
        return SnowflakeNames.of(context.config).table(self.name)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        """Let it follow its catalog; one that has stopped is first refreshed.

        https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh
        """
        warehouse = SnowflakeNames.of(context.config).warehouse
        alter = f"ALTER ICEBERG TABLE {self._sql(context)}"
        with context.snowflake.session() as session:
            if live.facts["refresh"] == STOPPED:
                session.run(f"{alter} SET AUTO_REFRESH = FALSE", INTEGRATOR)
                session.run(f"USE WAREHOUSE {quote(warehouse)}", INTEGRATOR)
                session.run(f"{alter} REFRESH", INTEGRATOR)
            session.run(f"{alter} SET AUTO_REFRESH = TRUE", INTEGRATOR)

    def delete(self, context: DeployContext, live: Live) -> None:
        """Never in a linked database, where Snowflake would drop it in the catalog, too."""
        table = SnowflakeNames.of(context.config).table(self.name)
        run(context, f"DROP ICEBERG TABLE IF EXISTS {table}", INTEGRATOR)


def _refresh_state(row: dict[str, Any]) -> str:
    """Return the state of automated refresh in a row of SHOW ICEBERG TABLES; empty: it has none."""
    status = row["auto_refresh_status"]
    return str(parsed(status, "SHOW ICEBERG TABLES")["executionState"]) if status else ""


@dataclass(frozen=True)
class LinkedTable(IcebergTable):
    """A topic's table in the catalog-linked database: it is created by Snowflake's discovery.

    Automated refresh is on by default, and may have no state for a table that needs nothing. It is
    off if Snowflake could not read the table when it was discovered.

    https://docs.snowflake.com/en/sql-reference/functions/system_auto_refresh_status
    """

    kind = "Snowflake table, discovered,"
    replaced_for = frozenset()

    def _path(self, context: DeployContext) -> TablePath:
        database = SnowflakeNames.of(context.config).linked_database
        schema, name = context.seen.snowflake_namespace, self._catalog_name(context)
        return TablePath(database, schema, name, is_linked=True)

    def _sql(self, context: DeployContext) -> str:
        return self._path(context).sql

    def find(self, context: DeployContext) -> Live | None:
        path = self._path(context)
        within = f" IN SCHEMA {path.within}"
        table = show(context, "ICEBERG TABLES", path.table, INTEGRATOR, within)
        if table is None:
            return None
        state = _refresh_state(table)
        return Live(str(path), {"auto_refresh": state in ("", *REFRESHING)}, {"refresh": state})

    def desired(self, context: DeployContext) -> Fields:
        return {"auto_refresh": True}

    def create(self, context: DeployContext) -> None:
        """Wait until the catalog has the table, and then until Snowflake has discovered it."""
        self._wait_for_catalog(context)
        path = self._path(context)
        patience = 3.0 * context.config.snowflake_refresh_seconds + VERIFY_SECONDS
        try:
            context.poll(lambda: self.find(context), f"Snowflake discovers {path}", patience)
        except DeadlineExceededError as error:
            status = _link_status(context)
            raise TopicbergError(
                f"{error.message}: discovery is {status.state}{status.reason(path)}",
                hint=error.hint,
            ) from error

    def is_ours(self, context: DeployContext) -> bool:
        """It goes with its database."""
        return False


def _topic_integration(config: Settings) -> str:
    """The integration by which Snowflake finds the topics' tables."""
    names = SnowflakeNames.of(config)
    return names.integration if config.topics_in_glue else names.rest_integration
