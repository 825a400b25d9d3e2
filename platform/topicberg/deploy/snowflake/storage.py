"""Warehouse, database, schema, and what Iceberg tables need: volume, integration, the tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import SecretStr

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake import (
    RestLogin,
    SnowflakeNames,
    TablePath,
    create_integration,
    create_linked_database,
    create_rest_integration,
    create_table,
    create_volume,
    delegation,
    link_status,
    parsed,
    quote,
    role_arn,
    set_polling,
    set_rest_secret,
    text,
    topic_integration,
)
from topicberg.clients.answers import VendorAnswer
from topicberg.deploy.aws import iam
from topicberg.deploy.aws.glue import tables
from topicberg.deploy.confluent.tableflow import FAILED_POLLS
from topicberg.deploy.context import DeployContext
from topicberg.deploy.costs import FREE_CLOUD_SERVICES, PRICES, WAREHOUSE_HOURS, Cost, poll_credits
from topicberg.deploy.polling import DeadlineExceededError, poll
from topicberg.deploy.resource import Changes, Fields, Live, Resource
from topicberg.deploy.snowflake.session import SqlObject, find, run, show
from topicberg.endpoints import glue_rest_uri
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.tableflow.confluent import catalog_problems, read_topic
from topicberg.topics import TopicSpec

Parts = dict[str, str]
OWNER = "SYSADMIN"
INTEGRATOR = "ACCOUNTADMIN"
SUSPEND_SECONDS = 60
ACCESS_SECONDS = 600.0
VERIFY_SECONDS = 300.0
CATALOG_SECONDS = 30 * 60.0
REFRESHING = ("RUNNING", "STALLED")
"""States of automated refresh that need nothing: one that stalled recovers by itself."""
STOPPED = "STOPPED"
"""It does not recover by itself."""


@dataclass(frozen=True)
class Warehouse(SqlObject):
    kind = "Snowflake warehouse"
    of = "WAREHOUSE"
    owner = OWNER

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        return Cost(self, PRICES["credit"].usd * WAREHOUSE_HOURS, "an hour a day")

    def find(self, context: DeployContext) -> Live | None:
        found = self.shown(context)
        if found is None:
            return None
        size = str(found["size"]).upper().replace("-", "")
        return Live(self.name, {"size": size, "auto_suspend": int(found["auto_suspend"] or 0)})

    def desired(self, context: DeployContext) -> Fields:
        return {"size": "XSMALL", "auto_suspend": SUSPEND_SECONDS}

    def definition(self, context: DeployContext) -> str:
        return f"WAREHOUSE_SIZE = 'XSMALL' AUTO_SUSPEND = {SUSPEND_SECONDS}"


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

    @property
    def parents(self) -> tuple[str, ...]:
        return self.within

    def find(self, context: DeployContext) -> Live | None:
        within = f" IN DATABASE {quote(self.path[0])}" if self.of == "SCHEMA" else ""
        found = show(context, f"{self.of}S", self.path[-1], OWNER, within)
        return Live(".".join(self.path)) if found else None

    def create(self, context: DeployContext) -> None:
        comment = f"COMMENT = {text(self.comment)}"
        run(context, f"CREATE {self.of} IF NOT EXISTS {quote(*self.path)} {comment}", OWNER)

    def delete(self, context: DeployContext, live: Live) -> None:
        """With the tables in it, whoever created them."""
        run(context, f"DROP {self.of} IF EXISTS {quote(*self.path)}", INTEGRATOR)


@dataclass(frozen=True)
class _UsedByTables(SqlObject):
    """What tables in our database use, whoever created them, and what is deleted with them:
    Snowflake drops no volume and no integration that a table uses.
    """

    owner = INTEGRATOR
    column: ClassVar[str]
    """Of ``SHOW ICEBERG TABLES``: the one that names what a table uses."""

    def _tables(self, context: DeployContext) -> list[tuple[str, str, str]]:
        database = quote(SnowflakeNames.of(context.config).database)
        rows = find(context, f"SHOW ICEBERG TABLES IN DATABASE {database}", INTEGRATOR)
        return [
            (row["database_name"], row["schema_name"], row["name"])
            for row in rows or []
            if row[self.column] == self.name
        ]

    def contents(self, context: DeployContext) -> list[str]:
        """Without the topics' own tables, which are resources by themselves."""
        names, specs = SnowflakeNames.of(context.config), context.specs
        if context.config.snowflake_linked_database:  # which has them; those here are from before
            specs = []
        topics = {(names.database, names.schema, one.snowflake_name) for one in specs}
        return [".".join(table) for table in self._tables(context) if table not in topics]

    def delete(self, context: DeployContext, live: Live) -> None:
        """With the tables in our database that derived assets created with it."""
        for table in self._tables(context):
            run(context, f"DROP ICEBERG TABLE IF EXISTS {quote(*table)}", INTEGRATOR)
        super().delete(context, live)


@dataclass(frozen=True)
class Volume(_UsedByTables):
    """A bucket, read-only. Its external id is ours: Snowflake's own would change each time.

    :param derived: the bucket of the derived tables
    """

    derived: bool = False

    kind = "external volume"
    of = "EXTERNAL VOLUME"
    column = "external_volume_name"
    replaced_for = frozenset({"base_url", "role", "external_id"})

    def find(self, context: DeployContext) -> Live | None:
        properties = self.described(context)
        if properties is None:
            return None
        location = parsed(properties["STORAGE_LOCATION_1"], f"DESC {self.title}")
        external_id = location["STORAGE_AWS_EXTERNAL_ID"]
        fields = {
            "base_url": location["STORAGE_BASE_URL"],
            "role": location["STORAGE_AWS_ROLE_ARN"],
            "external_id": external_id,
            "allow_writes": properties["ALLOW_WRITES"].lower(),
        }
        principal = location["STORAGE_AWS_IAM_USER_ARN"]
        return Live(self.name, fields, {"principal": principal, "external_id": external_id})

    def desired(self, context: DeployContext) -> Fields:
        return {
            "base_url": context.seen.derived_warehouse if self.derived else context.seen.warehouse,
            "role": role_arn(context.seen),
            "external_id": context.config.prefix,
            "allow_writes": "false",
        }

    def create(self, context: DeployContext) -> None:
        run(context, create_volume(context.seen, derived=self.derived), INTEGRATOR)

    def definition(self, context: DeployContext) -> str:
        return "ALLOW_WRITES = FALSE"


@dataclass(frozen=True)
class _CatalogIntegration(_UsedByTables):
    """:param linked: of the catalog-linked database"""

    linked: bool = False

    kind = "Snowflake catalog integration"
    of = "CATALOG INTEGRATION"
    column = "catalog_name"

    def read(
        self, properties: VendorAnswer, config: VendorAnswer, login: VendorAnswer
    ) -> tuple[Fields, Parts]:
        """Return the fields and the facts that only this kind of integration has.

        :param config: ``REST_CONFIG``
        :param login: ``REST_AUTHENTICATION``
        """
        raise NotImplementedError

    def wanted_of(self, context: DeployContext) -> Fields:
        """Return the desired values of these fields."""
        raise NotImplementedError

    def find(self, context: DeployContext) -> Live | None:
        properties = self.described(context)
        if properties is None:
            return None
        config, login = (
            VendorAnswer(
                parts(properties.get(name) or ""),
                f"Snowflake ({name} of {self.name})",
                is_certain=True,
            )
            for name in ("REST_CONFIG", "REST_AUTHENTICATION")
        )
        fields, facts = self.read(properties, config, login)
        fields |= {
            "namespace": properties["CATALOG_NAMESPACE"],
            "delegation": config.get("ACCESS_DELEGATION_MODE"),
            "enabled": properties["ENABLED"].lower(),
            "refresh_seconds": int(properties["REFRESH_INTERVAL_SECONDS"]),
        }
        return Live(self.name, fields, facts)

    def desired(self, context: DeployContext) -> Fields:
        # Of the linked database's integration only: others have an older default.
        delegated = {"delegation": delegation(context.config)} if self.linked else {}
        return {
            **delegated,
            **self.wanted_of(context),
            "namespace": context.seen.snowflake_namespace,
            "enabled": "true",
            "refresh_seconds": context.config.snowflake_refresh_seconds,
        }

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        run(context, set_polling(context.config, self.name), INTEGRATOR)

    def delete(self, context: DeployContext, live: Live) -> None:
        """Also with the linked database, which holds no data."""
        if self.linked:
            database = quote(SnowflakeNames.of(context.config).linked_database)
            run(context, f"DROP DATABASE IF EXISTS {database}", INTEGRATOR)
        super().delete(context, live)


@dataclass(frozen=True)
class Integration(_CatalogIntegration):
    """The catalog integration with AWS Glue, or with its Iceberg REST API."""

    replaced_for = frozenset({"source", "role", "catalog", "region", "namespace", "delegation"})

    def read(
        self, properties: VendorAnswer, config: VendorAnswer, login: VendorAnswer
    ) -> tuple[Fields, Parts]:
        source = properties["CATALOG_SOURCE"]
        rest = source == "ICEBERG_REST"
        fields = {
            "source": config["CATALOG_URI"] if rest else source,
            "role": login["SIGV4_IAM_ROLE"] if rest else properties["GLUE_AWS_ROLE_ARN"],
            "catalog": config["CATALOG_NAME"] if rest else properties["GLUE_CATALOG_ID"],
            "region": login["SIGV4_SIGNING_REGION"] if rest else properties["GLUE_REGION"],
        }
        return fields, {
            "principal": _aws_property(properties, "IAM_USER_ARN"),
            "external_id": _aws_property(properties, "EXTERNAL_ID"),
        }

    def wanted_of(self, context: DeployContext) -> Fields:
        rest = self.linked or context.config.snowflake_catalog == "glue_rest"
        return {
            "source": glue_rest_uri(context.seen) if rest else "GLUE",
            "role": role_arn(context.seen),
            "catalog": context.account,
            "region": context.region,
        }

    def create(self, context: DeployContext) -> None:
        run(context, create_integration(context.seen, linked=self.linked), INTEGRATOR)


@dataclass(frozen=True)
class RestIntegration(_CatalogIntegration):
    """The catalog integration with Open Catalog or another REST catalog, by OAuth.

    Snowflake never returns the secret. A wrong one is found when the integration is verified, and
    is then set again.
    """

    replaced_for = frozenset(
        {"source", "uri", "catalog", "client", "scopes", "namespace", "delegation"}
    )

    def read(
        self, properties: VendorAnswer, config: VendorAnswer, login: VendorAnswer
    ) -> tuple[Fields, Parts]:
        return {
            "source": properties["CATALOG_SOURCE"],
            "uri": config["CATALOG_URI"],
            "catalog": config.get("CATALOG_NAME", ""),
            "client": login.get("OAUTH_CLIENT_ID", ""),
            "scopes": login.get("OAUTH_ALLOWED_SCOPES", ""),
        }, {}

    def wanted_of(self, context: DeployContext) -> Fields:
        login = rest_login(context)
        open_catalog = context.config.snowflake_catalog == "open_catalog"
        return {
            "source": "POLARIS" if open_catalog else "ICEBERG_REST",
            "uri": login.uri,
            "catalog": login.catalog or "",
            "client": login.client_id,
            "scopes": f"[{login.scope}]",
        }

    def create(self, context: DeployContext) -> None:
        login = rest_login(context)
        statement = create_rest_integration(context.seen, login, linked=self.linked)
        _run_with_secret(context, statement, login)

    def settle(self, context: DeployContext, live: Live) -> None:
        if not _verify(context, self.name):
            return
        login = rest_login(context)
        _run_with_secret(context, set_rest_secret(self.name, login), login)
        wait_until_verified(context, self.name)


def _aws_property(properties: VendorAnswer, name: str) -> str:
    """Return what Snowflake is to AWS. DESC calls it either way for Glue's REST API.

    ``GLUE_AWS_…``: docs.snowflake.com, "Configure a catalog integration for AWS Glue Iceberg REST".
    ``API_AWS_…``: "Configure a catalog integration for Apache Iceberg REST catalogs" (SigV4), and
    what accounts have been seen to return.
    """
    return str(properties.first(f"GLUE_AWS_{name}", f"API_AWS_{name}"))


def rest_login(context: DeployContext) -> RestLogin:
    """The settings have been checked: none that is needed is missing."""
    deploy = context.deploy
    return RestLogin(
        deploy.catalog_uri or "",
        deploy.catalog_name,
        deploy.catalog_client_id or "",
        deploy.catalog_client_secret or SecretStr(""),
        deploy.catalog_scope or "",
        deploy.catalog_token_uri,
    )


def _run_with_secret(context: DeployContext, statement: str, login: RestLogin) -> None:
    """:raises TopicbergError: Snowflake refuses it; without the secret in the message"""
    from snowflake.connector.errors import ProgrammingError

    try:
        run(context, statement, INTEGRATOR)
    except ProgrammingError as error:
        secret = login.client_secret.get_secret_value()
        message = str(error.msg).replace(secret, "***").replace(text(secret), "***")
        raise TopicbergError(f"catalog {login.uri}: {message}") from None


def parts(value: str) -> Parts:
    """``{A=x, B=[y, z], C=null}``, as DESC CATALOG INTEGRATION has it, without what is null."""
    found = dict(
        part.split("=", 1)
        for part in re.split(r",\s*(?![^\[]*\])", value.strip("{}"))
        if "=" in part
    )
    return {name: given for name, given in found.items() if given not in ("null", "")}


def _answer(context: DeployContext, function: str, name: str) -> VendorAnswer:
    """Return the answer of a system function about an object."""
    statement = f"SELECT SYSTEM${function}({text(name)}) AS answer"
    rows = run(context, statement, INTEGRATOR)
    return parsed(rows[0].get("answer") if rows else None, statement)


def _verify(context: DeployContext, integration: str) -> str:
    """Why a REST catalog cannot be reached; empty: it can."""
    answer = _answer(context, "VERIFY_CATALOG_INTEGRATION", integration)
    if str(answer["success"]).lower() == "true":
        return ""
    return f"{answer.get('errorMessage') or 'no reason is given'} ({answer.get('errorCode')})"


def wait_until_verified(context: DeployContext, integration: str) -> None:
    """:raises TopicbergError: the catalog cannot be reached, with Snowflake's reason"""
    problem = ""

    def verified() -> bool:
        nonlocal problem
        problem = _verify(context, integration)
        return not problem

    what = f"Snowflake reaches the catalog of {integration}"
    try:
        poll(verified, what, VERIFY_SECONDS, sleep=context.sleep)
    except TopicbergError as error:
        raise TopicbergError(f"catalog integration {integration}: {problem}") from error


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
        usd = max(0.0, poll_credits(config) - free) * PRICES["credit"].usd
        basis = f"discovery every {config.snowflake_refresh_seconds} s, beyond what is free"
        return Cost(self, usd, basis)

    def find(self, context: DeployContext) -> Live | None:
        if self.shown(context) is None:
            return None
        answer = _answer(context, "GET_CATALOG_LINKED_DATABASE_CONFIG", self.name)
        namespaces = answer["allowed_namespaces"] or []  # null: all
        fields = {
            "namespaces": [str(one).strip("'") for one in namespaces],
            "write_operations": str(answer["allowed_write_operations"]),
            "sync_interval_seconds": int(answer["sync_interval_seconds"]),
            "suspended": str(answer["is_suspended"]).lower(),
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
        link = "UPDATE LINKED_CATALOG"
        interval = context.config.snowflake_refresh_seconds
        steps = []
        if "sync_interval_seconds" in changes:
            steps.append(f"{link} SET SYNC_INTERVAL_SECONDS = {interval}")
        if "write_operations" in changes:
            steps.append(f"{link} SET ALLOWED_WRITE_OPERATIONS = NONE")
        before, after = map(set, changes.get("namespaces", ((), ())))
        # First the new ones: an empty list would allow all.
        if added := ", ".join(map(text, sorted(after - before))):
            steps.append(f"{link} ADD ({added}) TO ALLOWED_NAMESPACES")
        if removed := ", ".join(map(text, sorted(before - after))):
            steps.append(f"{link} REMOVE ({removed}) FROM ALLOWED_NAMESPACES")
        if "suspended" in changes:
            steps.append("RESUME DISCOVERY")
        for step in steps:
            run(context, f"ALTER DATABASE {quote(self.name)} {step}", INTEGRATOR)

    def settle(self, context: DeployContext, live: Live) -> None:
        """:raises TopicbergError: discovery fails, with Snowflake's reason"""
        reason = ""

        def follows() -> bool:
            nonlocal reason
            with context.snowflake() as session:
                session.take(INTEGRATOR)
                status = link_status(session.connection, context.config)
            reason = status.failure
            return status.state != "FAILED"

        what = f"{self.title} follows its catalog"
        try:
            poll(follows, what, VERIFY_SECONDS, sleep=context.sleep)
        except DeadlineExceededError as error:
            raise TopicbergError(f"{error.message}: {reason}", hint=error.hint) from error


@dataclass(frozen=True)
class ReadingRole(iam.Role):
    """The IAM role by which Snowflake reads: it is there when Snowflake can take it.

    :param integrations: with Glue's REST API
    """

    volumes: tuple[str, ...] = ()
    integrations: tuple[str, ...] = ()

    def settle(self, context: DeployContext, live: Live) -> None:
        lacks_buckets = context.wait_of("aws/bucket", "aws/derived_bucket")
        for volume in () if lacks_buckets else self.volumes:
            self._verify(context, volume)
        for integration in self.integrations:
            wait_until_verified(context, integration)

    def _verify(self, context: DeployContext, volume: str) -> None:
        """:raises TopicbergError: Snowflake cannot take the role to read the volume"""
        answer: dict[str, Any] = {}

        def verified() -> bool:
            nonlocal answer
            answer = _answer(context, "VERIFY_EXTERNAL_VOLUME", volume)
            return str(answer["success"]).lower() == "true"

        try:
            poll(verified, f"Snowflake takes {self.name}", ACCESS_SECONDS, sleep=context.sleep)
        except TopicbergError as error:
            good = ("PASSED", "SKIPPED")
            bad = {k: v for k, v in answer.items() if k.endswith("Result") and v not in good}
            raise TopicbergError(f"external volume {volume}: {bad}") from error


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
        usd = poll_credits(config) * PRICES["credit"].usd
        every = config.snowflake_refresh_seconds
        return Cost(self, usd, f"automated refresh every {every} s, a second each")

    def find(self, context: DeployContext) -> Live | None:
        names = SnowflakeNames.of(context.config)
        within = f" IN SCHEMA {quote(names.database, names.schema)}"
        found = show(context, "ICEBERG TABLES", self.name, OWNER, within)
        if found is None:
            return None
        state = _refresh_state(found)
        fields = {
            "catalog": found["catalog_name"],
            "volume": found["external_volume_name"],
            "glue_table": [found["catalog_namespace"], found["catalog_table_name"]],
            "auto_refresh": state in REFRESHING,
        }
        return Live(self.name, fields, {"refresh": state})

    def desired(self, context: DeployContext) -> Fields:
        names = SnowflakeNames.of(context.config)
        return {
            "catalog": topic_integration(context.config),
            "volume": names.volume,
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
        if self.has_source or self._in_catalog(context):
            return ""
        return f"for the first records of topic {self.spec.name}"

    def create(self, context: DeployContext) -> None:
        """Once the catalog has the table, up to a quarter of an hour after its first record."""
        names, name = SnowflakeNames.of(context.config), self._catalog_name(context)
        integration = topic_integration(context.config)
        self._wait_for_catalog(context)
        namespace = context.seen.snowflake_namespace
        statement = create_table(
            names, self.name, namespace, name, integration=integration, auto_refresh=True
        )
        with context.snowflake() as session:
            session.run(f"USE WAREHOUSE {quote(names.warehouse)}", OWNER)
            session.run(statement, OWNER)

    def _status(self, context: DeployContext) -> dict[str, Any]:
        """What Tableflow says of the topic."""
        found = read_topic(context.tableflow, self.spec.name, context.environment, context.cluster)
        return (found or {}).get("status") or {}

    def _in_catalog(self, context: DeployContext) -> bool:
        """Read Glue itself; for another catalog, read the state of Tableflow."""
        if topic_integration(context.config) != SnowflakeNames.of(context.config).integration:
            syncs = self._status(context).get("catalog_sync_statuses") or []
            return {one.get("sync_status") for one in syncs} == {"SYNCED"}
        table = glue.get_table(context.aws("glue"), context.namespace, self.spec.glue_name)
        return table is not None and glue.metadata_location(table) is not None

    def _wait_for_catalog(self, context: DeployContext) -> None:
        """:raises TopicbergError: the catalog does not get the table, with Tableflow's reason"""
        failures = 0

        def there() -> bool:
            nonlocal failures
            if self._in_catalog(context):
                return True
            problems = catalog_problems(self._status(context))
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
            poll(there, f"the catalog has {name}", CATALOG_SECONDS, sleep=context.sleep)
        except DeadlineExceededError as error:
            found = ", ".join(sorted(tables(context, context.namespace))) or "no table"
            raise TopicbergError(
                f"{self.title}: {error.message}; Glue database {context.namespace} has {found}",
                hint=error.hint,
            ) from error

    def _sql(self, context: DeployContext) -> str:
        return SnowflakeNames.of(context.config).table(self.name)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        """Let it follow its catalog; one that has stopped is first refreshed.

        https://docs.snowflake.com/en/user-guide/tables-iceberg-auto-refresh
        """
        names, alter = (
            SnowflakeNames.of(context.config),
            f"ALTER ICEBERG TABLE {self._sql(context)}",
        )
        with context.snowflake() as session:
            if live.facts["refresh"] == STOPPED:
                session.run(f"{alter} SET AUTO_REFRESH = FALSE", INTEGRATOR)
                session.run(f"USE WAREHOUSE {quote(names.warehouse)}", INTEGRATOR)
                session.run(f"{alter} REFRESH", INTEGRATOR)
            session.run(f"{alter} SET AUTO_REFRESH = TRUE", INTEGRATOR)

    def delete(self, context: DeployContext, live: Live) -> None:
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
        config, name = context.config, self._catalog_name(context)
        database, schema = (
            SnowflakeNames.of(config).linked_database,
            context.seen.snowflake_namespace,
        )
        return TablePath(database, schema, name, is_linked=True)

    def _sql(self, context: DeployContext) -> str:
        return self._path(context).sql

    def find(self, context: DeployContext) -> Live | None:
        path = self._path(context)
        within = f" IN SCHEMA {path.within}"
        found = show(context, "ICEBERG TABLES", path.table, INTEGRATOR, within)
        if found is None:
            return None
        state = _refresh_state(found)
        return Live(str(path), {"auto_refresh": state in ("", *REFRESHING)}, {"refresh": state})

    def desired(self, context: DeployContext) -> Fields:
        return {"auto_refresh": True}

    def create(self, context: DeployContext) -> None:
        """Wait until the catalog has the table, and then until Snowflake has discovered it."""
        self._wait_for_catalog(context)
        path, config = self._path(context), context.config
        patience = 3.0 * config.snowflake_refresh_seconds + VERIFY_SECONDS
        try:
            poll(
                lambda: self.find(context) is not None,
                f"Snowflake discovers {path}",
                patience,
                sleep=context.sleep,
            )
        except DeadlineExceededError as error:
            with context.snowflake() as session:
                session.take(INTEGRATOR)
                status = link_status(session.connection, config)
            raise TopicbergError(
                f"{error.message}: discovery is {status.state}{status.reason(path)}",
                hint=error.hint,
            ) from error

    def is_ours(self, context: DeployContext) -> bool:
        """It goes with its database."""
        return False
