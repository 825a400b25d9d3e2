"""What Snowflake reads the buckets and the catalogs with: volumes, integrations, their role."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from pydantic import SecretStr

from topicberg.catalogs.snowflake.names import SnowflakeNames, quote, text
from topicberg.catalogs.snowflake.session import parsed
from topicberg.catalogs.snowflake.statements import (
    create_integration,
    create_volume,
    delegation,
    glue_api,
    polling,
    role_arn,
    vending,
)
from topicberg.clients.answers import VendorAnswer
from topicberg.endpoints import glue_rest_uri
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.aws import iam
from topicberg_deploy.record import CURRENT
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live
from topicberg_deploy.snowflake.session import SqlObject, find, run

Parts = dict[str, str]
INTEGRATOR = "ACCOUNTADMIN"
ACCESS_SECONDS = 600.0
VERIFY_SECONDS = 300.0


@dataclass(frozen=True)
class _UsedByTables(SqlObject):
    """It is deleted with our database's tables that use it: Snowflake drops nothing in use."""

    owner = INTEGRATOR
    column: ClassVar[str]
    """Of ``SHOW ICEBERG TABLES``: the one that names what a table uses."""

    def read(self, context: DeployContext) -> VendorAnswer | None:
        return self.described(context)

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
        names, config = SnowflakeNames.of(context.config), context.config
        # A linked database has the topics' tables; those here are from before.
        specs = [] if config.snowflake_linked_database else context.specs
        topics = {(names.database, names.schema, spec.snowflake_name) for spec in specs}
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
    replaced_for = frozenset({"base_url", "role", "external_id", "private"})

    def as_live(self, context: DeployContext, shown: VendorAnswer) -> Live:
        location = parsed(shown["STORAGE_LOCATION_1"], f"DESC {self.title}")
        external_id = location["STORAGE_AWS_EXTERNAL_ID"]
        fields = {
            "base_url": location["STORAGE_BASE_URL"],
            "role": location["STORAGE_AWS_ROLE_ARN"],
            "external_id": external_id,
            "allow_writes": shown["ALLOW_WRITES"].lower(),
            "private": str(location.get("USE_PRIVATELINK_ENDPOINT") or False).lower(),
        }
        principal = location["STORAGE_AWS_IAM_USER_ARN"]
        return Live(self.name, fields, {"principal": principal, "external_id": external_id})

    def desired(self, context: DeployContext) -> Fields:
        return {
            "base_url": context.seen.derived_warehouse if self.derived else context.seen.warehouse,
            "role": role_arn(context.seen),
            "external_id": context.config.prefix,
            "allow_writes": "false",
            "private": str(context.config.snowflake_privatelink).lower(),
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

    def parts(
        self, shown: VendorAnswer, config: VendorAnswer, login: VendorAnswer
    ) -> tuple[Fields, Parts]:
        """Return the fields and the facts that only this kind of integration has.

        :param config: ``REST_CONFIG``
        :param login: ``REST_AUTHENTICATION``
        """
        raise NotImplementedError

    def wanted_of(self, context: DeployContext) -> Fields:
        """Return the desired values of these fields."""
        raise NotImplementedError

    def as_live(self, context: DeployContext, shown: VendorAnswer) -> Live:
        config, login = (
            VendorAnswer(
                parts(shown.get(name) or ""), f"Snowflake ({name} of {self.name})", is_certain=True
            )
            for name in ("REST_CONFIG", "REST_AUTHENTICATION")
        )
        fields, facts = self.parts(shown, config, login)
        fields |= {
            "namespace": shown["CATALOG_NAMESPACE"],
            "delegation": config.get("ACCESS_DELEGATION_MODE"),
            "enabled": shown["ENABLED"].lower(),
            "refresh_seconds": int(shown["REFRESH_INTERVAL_SECONDS"]),
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

    replaced_for = frozenset(
        {"source", "api", "role", "catalog", "region", "namespace", "delegation"}
    )

    def parts(
        self, shown: VendorAnswer, config: VendorAnswer, login: VendorAnswer
    ) -> tuple[Fields, Parts]:
        source = shown["CATALOG_SOURCE"]
        rest = source == "ICEBERG_REST"
        return {
            "source": config["CATALOG_URI"] if rest else source,
            "api": config.get("CATALOG_API_TYPE", "AWS_GLUE") if rest else None,
            "role": login["SIGV4_IAM_ROLE"] if rest else shown["GLUE_AWS_ROLE_ARN"],
            "catalog": config["CATALOG_NAME"] if rest else shown["GLUE_CATALOG_ID"],
            "region": login["SIGV4_SIGNING_REGION"] if rest else shown["GLUE_REGION"],
        }, {
            "principal": _aws_property(shown, "IAM_USER_ARN"),
            "external_id": _aws_property(shown, "EXTERNAL_ID"),
        }

    def wanted_of(self, context: DeployContext) -> Fields:
        rest = self.linked or context.config.snowflake_catalog == "glue_rest"
        return {
            "source": glue_rest_uri(context.seen) if rest else "GLUE",
            "api": glue_api(context.config) if rest else None,
            "role": role_arn(context.seen),
            "catalog": context.aws.account,
            "region": context.config.aws_region,
        }

    def create(self, context: DeployContext) -> None:
        run(context, create_integration(context.seen, linked=self.linked), INTEGRATOR)


@dataclass(frozen=True)
class RestIntegration(_CatalogIntegration):
    """The catalog integration with Open Catalog or another REST catalog, by OAuth.

    Snowflake never returns the secret. It is set when another one than the settings' was sent, and
    again when the integration cannot be verified.
    """

    replaced_for = frozenset(
        {"source", "uri", "api", "catalog", "client", "scopes", "namespace", "delegation"}
    )

    def parts(
        self, shown: VendorAnswer, config: VendorAnswer, login: VendorAnswer
    ) -> tuple[Fields, Parts]:
        return {
            "source": shown["CATALOG_SOURCE"],
            "uri": config["CATALOG_URI"],
            "api": config.get("CATALOG_API_TYPE", "PUBLIC"),
            "catalog": config.get("CATALOG_NAME", ""),
            "client": login.get("OAUTH_CLIENT_ID", ""),
            "scopes": login.get("OAUTH_ALLOWED_SCOPES", ""),
        }, {}

    def as_live(self, context: DeployContext, shown: VendorAnswer) -> Live:
        live = super().as_live(context, shown)
        live.fields["login"] = context.record.login_state(self.key, context.catalog_client)
        return live

    def wanted_of(self, context: DeployContext) -> Fields:
        login = rest_login(context)
        open_catalog = context.config.snowflake_catalog == "open_catalog"
        return {
            "source": "POLARIS" if open_catalog else "ICEBERG_REST",
            "uri": login.uri,
            "api": _rest_api(context.config),
            "catalog": login.catalog or "",
            "client": login.client_id,
            "scopes": f"[{login.scope}]",
            "login": CURRENT,
        }

    def create(self, context: DeployContext) -> None:
        login = rest_login(context)
        self._send(context, create_rest_integration(context.seen, login, linked=self.linked))

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        if "login" in changes:
            self._set_secret(context)
        if set(changes) != {"login"}:
            super().update(context, live, changes)

    def settle(self, context: DeployContext, live: Live) -> None:
        if _verify(context, self.name):
            self._set_secret(context)
            wait_until_verified(context, self.name)

    def _set_secret(self, context: DeployContext) -> None:
        self._send(context, set_rest_secret(self.name, rest_login(context)))

    def _send(self, context: DeployContext, statement: str) -> None:
        """Run a statement that has the login, and record that Snowflake has it.

        :raises TopicbergError: Snowflake refuses it; without the secret in the message
        """
        from snowflake.connector.errors import ProgrammingError

        client = context.catalog_client
        secret = client.fields()["client_secret"]
        try:
            run(context, statement, INTEGRATOR)
        except ProgrammingError as error:
            message = str(error.msg).replace(secret, "***").replace(text(secret), "***")
            raise TopicbergError(f"catalog {context.deploy.catalog.uri}: {message}") from None
        context.record.put_login(self.key, client)


def _aws_property(properties: VendorAnswer, name: str) -> str:
    """Return what Snowflake is to AWS. DESC calls it either way for Glue's REST API.

    ``GLUE_AWS_…``: docs.snowflake.com, "Configure a catalog integration for AWS Glue Iceberg REST".
    ``API_AWS_…``: "Configure a catalog integration for Apache Iceberg REST catalogs" (SigV4), and
    what accounts have been seen to return.
    """
    return str(properties.first(f"GLUE_AWS_{name}", f"API_AWS_{name}"))


def rest_login(context: DeployContext) -> RestLogin:
    """The settings have been checked: none that is needed is missing."""
    catalog = context.deploy.catalog
    return RestLogin(
        catalog.uri or "",
        catalog.name,
        catalog.client_id or "",
        catalog.client_secret or SecretStr(""),
        catalog.scope or "",
        catalog.token_uri,
    )


def parts(value: str) -> Parts:
    """``{A=x, B=[y, z], C=null}``, as DESC CATALOG INTEGRATION has it, without what is null."""
    shown = dict(
        part.split("=", 1)
        for part in re.split(r",\s*(?![^\[]*\])", value.strip("{}"))
        if "=" in part
    )
    return {name: given for name, given in shown.items() if given not in ("null", "")}


def verification(context: DeployContext, function: str, name: str) -> VendorAnswer:
    """Return the answer of a system function about an object."""
    statement = f"SELECT SYSTEM${function}({text(name)}) AS answer"
    rows = run(context, statement, INTEGRATOR)
    return parsed(rows[0].get("answer") if rows else None, statement)


def _verify(context: DeployContext, integration: str) -> str:
    """Why a REST catalog cannot be reached; empty: it can."""
    answer = verification(context, "VERIFY_CATALOG_INTEGRATION", integration)
    reason = answer.get("errorMessage") or "no reason is given"
    is_reached = str(answer["success"]).lower() == "true"
    return "" if is_reached else f"{reason} ({answer.get('errorCode')})"


def wait_until_verified(context: DeployContext, integration: str) -> None:
    """:raises TopicbergError: the catalog cannot be reached, with Snowflake's reason"""
    if problem := context.poll_problem(lambda: _verify(context, integration), VERIFY_SECONDS):
        raise TopicbergError(f"catalog integration {integration}: {problem}")


@dataclass(frozen=True)
class ReadingRole(iam.Role):
    """The IAM role by which Snowflake reads: it is there when Snowflake can take it.

    :param integrations: with Glue's REST API
    """

    volumes: tuple[str, ...] = ()
    integrations: tuple[str, ...] = ()

    def settle(self, context: DeployContext, live: Live) -> None:
        for volume in () if context.wait_of("aws/bucket", "aws/derived_bucket") else self.volumes:
            self._verify(context, volume)
        for integration in self.integrations:
            wait_until_verified(context, integration)

    def _verify(self, context: DeployContext, volume: str) -> None:
        """:raises TopicbergError: Snowflake cannot take the role to read the volume"""

        def ask() -> str:
            answer = verification(context, "VERIFY_EXTERNAL_VOLUME", volume)
            good = ("PASSED", "SKIPPED")
            bad = {k: v for k, v in answer.items() if k.endswith("Result") and v not in good}
            is_verified = str(answer["success"]).lower() == "true"
            return "" if is_verified else f"external volume {volume}: {bad}"

        if problem := context.poll_problem(ask, ACCESS_SECONDS):
            raise TopicbergError(problem)


def set_polling(config: Settings, integration: str) -> str:
    """Return the statement that enables an integration with the interval of the settings."""
    return f"ALTER CATALOG INTEGRATION {quote(integration)} SET {polling(config)}"


@dataclass(frozen=True)
class RestLogin:
    """How Snowflake logs in to a REST catalog, by OAuth.

    :param catalog: its name there
    :param token_uri: where tokens are from; None: the catalog's own
    """

    uri: str
    catalog: str | None
    client_id: str
    client_secret: SecretStr
    scope: str
    token_uri: str | None = None


def create_rest_integration(config: Settings, login: RestLogin, *, linked: bool = False) -> str:
    """With another REST catalog, or Open Catalog; ``linked``: for the linked database."""
    names = SnowflakeNames.of(config)
    source = "POLARIS" if config.snowflake_catalog == "open_catalog" else "ICEBERG_REST"
    catalog = f" CATALOG_NAME = {text(login.catalog)}" if login.catalog else ""
    if config.snowflake_privatelink:
        catalog += f" CATALOG_API_TYPE = {_rest_api(config)}"
    token = f"OAUTH_TOKEN_URI = {text(login.token_uri)} " if login.token_uri else ""
    return (
        "CREATE CATALOG INTEGRATION "
        f"{quote(names.linked_integration if linked else names.rest_integration)} "
        f"CATALOG_SOURCE = {source} TABLE_FORMAT = ICEBERG "
        f"CATALOG_NAMESPACE = {text(config.snowflake_namespace)} "
        f"REST_CONFIG = (CATALOG_URI = {text(login.uri)}{catalog}"
        f"{vending(config) if linked else ''}) "
        f"REST_AUTHENTICATION = (TYPE = OAUTH {token}"
        f"OAUTH_CLIENT_ID = {text(login.client_id)} "
        f"OAUTH_CLIENT_SECRET = {text(login.client_secret.get_secret_value())} "
        f"OAUTH_ALLOWED_SCOPES = ({text(login.scope)})) {polling(config)}"
    )


def set_rest_secret(integration: str, login: RestLogin) -> str:
    return (
        f"ALTER CATALOG INTEGRATION {quote(integration)} SET "
        "REST_AUTHENTICATION = "
        f"(OAUTH_CLIENT_SECRET = {text(login.client_secret.get_secret_value())})"
    )


def _rest_api(config: Settings) -> str:
    """Return the type of another REST catalog."""
    return "PRIVATE" if config.snowflake_privatelink else "PUBLIC"
