"""How Confluent reaches AWS (API pim/v1), and the catalogs that Tableflow publishes tables to (API
tableflow/v1).

A cluster can have a catalog of each kind. Each kind takes tables of one format: AWS Glue and
Snowflake Open Catalog those of Iceberg, Unity Catalog those of Delta Lake.
https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/overview.html

Snowflake Horizon is none of them: it reads Tableflow's own REST catalog, and nothing is configured
in Tableflow.
https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-snowflake-horizon-catalog.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from topicberg.clients.confluent import Api, FailedError
from topicberg.errors import TopicbergError
from topicberg.tableflow.service.confluent import where
from topicberg_deploy.confluent.organization import NamedObject
from topicberg_deploy.context import CLUSTER, ENVIRONMENT
from topicberg_deploy.record import CURRENT, ClientLogin
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, compare

PROVIDER_INTEGRATION = "confluent/provider_integration"
UNITY_INTEGRATION = "confluent/unity_integration"
CONNECTED_SECONDS = 20 * 60.0
PENDING_POLLS = 8
"""Times that PENDING must be seen: one that fails does so within seconds."""
CATALOGS = "/tableflow/v1/catalog-integrations"


def unity_steps(context: DeployContext) -> list[str]:
    """Return what the administrator of Databricks has to do, with the values; empty: Tableflow has
    published a table, so it is done.

    Tableflow registers its Delta tables as external tables, with Unity Catalog's open API, and
    Databricks reads their files with a storage credential of its own. The workspace must be
    reachable over the public internet.

    https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-unity-catalog.html
    and https://docs.databricks.com/aws/en/external-access/create-external-tables
    """
    live, unity = context.live.get(UNITY_INTEGRATION), context.config.unity
    if live is not None and live.facts["phase"] == "CONNECTED":
        return []
    client, catalog = unity.client_id, unity.catalog
    return [
        "enable external data access in the details of the metastore",
        "create a storage credential and an external location for "
        f"s3://{context.aws.bucket}/, with an IAM role that Databricks may assume and that reads "
        "the bucket",
        f"create the catalog {catalog}, and a service principal with an OAuth secret: "
        f"TOPICBERG_UNITY__CLIENT_ID ({client}) and TOPICBERG_UNITY__CLIENT_SECRET",
        "GRANT USE CATALOG, USE SCHEMA, CREATE SCHEMA, CREATE TABLE, EXTERNAL USE SCHEMA "
        f"ON CATALOG `{catalog}` TO `{client}`",
        "GRANT CREATE EXTERNAL TABLE, EXTERNAL USE LOCATION ON EXTERNAL LOCATION "
        f"`<location>` TO `{client}`",
    ]


@dataclass(frozen=True)
class CatalogKind:
    """A kind of catalog, as the API's ``spec.config`` has it.

    :param title: what people call the catalog
    :param kind: ``config.kind``
    :param namespace: field of the user-defined namespace, see
        https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/user-defined-namespaces.html
    :param address: field → its value by the settings; the API returns these fields
    :param login: the client that Tableflow logs in as, which the API does not return; None: it
        takes the provider integration, and the address cannot be changed
    :param steps: returns what the catalog's administrator has to do, since ``deploy`` has no login
    """

    title: str
    kind: str
    namespace: str
    address: Mapping[str, Callable[[DeployContext], str]]
    login: Callable[[DeployContext], ClientLogin] | None = None
    steps: Callable[[DeployContext], list[str]] = lambda _: []


GLUE = CatalogKind(
    "AWS Glue",
    "AwsGlue",
    "custom_database",
    {"provider_integration_id": lambda context: context.need(PROVIDER_INTEGRATION).id},
)
OPEN_CATALOG = CatalogKind(
    "Snowflake Open Catalog",
    "Snowflake",
    "custom_namespace",
    {
        # Confluent wants the account's address, Snowflake the API's.
        "endpoint": lambda context: (context.deploy.catalog.uri or "").removesuffix(
            "/polaris/api/catalog"
        ),
        "warehouse": lambda context: context.deploy.catalog.name or "",
        "allowed_scope": lambda context: context.deploy.catalog.scope or "",
    },
    lambda context: context.catalog_client,
)
UNITY = CatalogKind(
    "Databricks Unity Catalog",
    "Unity",
    "custom_schema",
    {
        "workspace_endpoint": lambda context: context.config.unity.workspace_url or "",
        "catalog_name": lambda context: context.config.unity.catalog or "",
    },
    lambda context: ClientLogin.of(
        context.config.unity.client_id, context.config.unity.client_secret
    ),
    unity_steps,
)


@dataclass(frozen=True)
class ProviderIntegration(NamedObject):
    """Confluent's half of the trust. It is created before the IAM role, which needs its answers.

    :param role: name of the IAM role
    """

    role: str = field(kw_only=True)

    kind = "provider integration"
    path = "/pim/v1/integrations"
    plural = "provider integrations"
    is_part = True
    replaced_for = frozenset({"role"})

    def params(self, context: DeployContext) -> dict[str, str]:
        return {"environment": context.environment}

    def read(self, context: DeployContext) -> dict[str, Any] | None:
        """Return the one of the role, whatever its name: an environment has one of each role."""
        role = context.aws.role_arn(self.role)
        listed = context.confluent.cloud.pages(self.path, **self.params(context))
        of_role = (one for one in listed if one["config"].get("customer_iam_role_arn") == role)
        return next(of_role, None) or super().read(context)

    def as_live(self, context: DeployContext, listed: dict[str, Any]) -> Live:
        config, within = listed["config"], context.need(ENVIRONMENT).facts["crn"]
        facts = {
            "crn": f"{within}/provider-integration={listed['id']}",
            "principal": config["iam_role_arn"],
            "external_id": config["external_id"],
        }
        return Live(listed["id"], {"role": config.get("customer_iam_role_arn")}, facts)

    def desired(self, context: DeployContext) -> Fields:
        return {"role": context.aws.role_arn(self.role)}

    def create(self, context: DeployContext) -> None:
        role = context.aws.role_arn(self.role)
        body = {
            "display_name": self.name,
            "provider": "AWS",
            "config": {"kind": "AwsIntegrationConfig", "customer_iam_role_arn": role},
            "environment": {"id": context.environment},
        }
        context.confluent.cloud.post(self.path, body)


@dataclass(frozen=True)
class CatalogIntegration(NamedObject):
    """Tableflow's tables of the cluster, in one catalog: those of the format that it takes.

    Nothing makes a failed integration try again: one without a login is replaced, which loses
    nothing; another gets its login again.

    :param waits_for: key of the resource without which it would fail for good
    """

    catalog: CatalogKind = field(kw_only=True)
    waits_for: str | None = None

    kind = "catalog integration"
    path = CATALOGS
    plural = "catalog integrations"
    usual_minutes = 5
    replaced_for = frozenset({"kind", "provider_integration_id", "failed"})

    @property
    def parents(self) -> tuple[str, ...]:
        return (CLUSTER,)

    def params(self, context: DeployContext) -> dict[str, str]:
        return where(context.environment, context.cluster)

    def api(self, context: DeployContext) -> Api:
        return context.confluent.tableflow

    def read(self, context: DeployContext) -> dict[str, Any] | None:
        """Return the one of its name, else the only one of its kind that the cluster can have."""
        own = super().read(context)
        if own is not None or not self.wanted:
            return own
        for listed in self.api(context).pages(self.path, **self.params(context)):
            if (listed["spec"].get("config") or {}).get("kind") == self.catalog.kind:
                return listed
        return None

    def as_live(self, context: DeployContext, listed: dict[str, Any]) -> Live:
        spec, status = listed["spec"], listed.get("status") or {}
        config, is_failed = spec.get("config") or {}, status.get("phase") == "FAILED"
        fields: Fields = {"kind": config.get("kind"), "suspended": bool(spec.get("suspended"))}
        if config.get("kind") == self.catalog.kind:
            # Confluent's examples have addresses with and without the last slash.
            fields |= {name: (config.get(name) or "").rstrip("/") for name in self.catalog.address}
            fields["namespace"] = config.get(self.catalog.namespace) or context.cluster
            if self.catalog.login is None:
                fields["failed"] = is_failed
            else:
                login = context.record.login_state(self.key, self.catalog.login(context))
                fields["login"] = "one that fails" if is_failed else login
        facts = {
            "name": spec["display_name"],
            "phase": status.get("phase"),
            "error": status.get("error_message"),
        }
        return Live(listed["id"], fields, facts)

    def desired(self, context: DeployContext) -> Fields:
        """Return what it should be; another one is used as it is.

        :raises TopicbergError: that one publishes to somewhere else
        """
        live, place = context.live.get(self.key), self._address(context)
        place["namespace"] = context.namespace
        if live is not None and live.facts["name"] != self.name:
            if changes := compare(live.fields, place):
                raise TopicbergError(
                    f"cluster {context.cluster} has the catalog integration {live.facts['name']} "
                    f"({live.id}) with {self.catalog.title}, and Confluent allows one; it has "
                    f"another {', '.join(changes)}",
                    hint="choose another cluster, delete it if nothing reads its tables, or set "
                    "TOPICBERG_TABLEFLOW_NAMESPACE to its namespace if only that differs",
                )
            return live.fields
        return {
            "kind": self.catalog.kind,
            "suspended": False,
            **place,
            **({"failed": False} if self.catalog.login is None else {"login": CURRENT}),
        }

    def _address(self, context: DeployContext) -> dict[str, str]:
        return {name: value(context) for name, value in self.catalog.address.items()}

    def waits(self, context: DeployContext) -> str:
        return context.wait_of(self.waits_for) if self.waits_for else ""

    def create(self, context: DeployContext) -> None:
        config = self._config(context) | self._address(context)
        if context.config.tableflow_namespace:
            config[self.catalog.namespace] = context.namespace
        spec = {"display_name": self.name, **context.place, "config": config}
        context.confluent.tableflow.post(self.path, {"spec": spec})
        self._note_login(context)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        spec: dict[str, Any] = dict(context.place)
        if "suspended" in changes:
            spec["suspended"] = False
        if set(changes) != {"suspended"}:
            spec["config"] = self._config(context)
            if self.catalog.login is not None:
                spec["config"] |= self._address(context)
            # Stated also if it is the default, the cluster's id, to which it may return.
            if "namespace" in changes or context.config.tableflow_namespace:
                spec["config"][self.catalog.namespace] = context.namespace
        context.confluent.tableflow.patch(f"{self.path}/{live.id}", {"spec": spec})
        if "config" in spec:
            self._note_login(context)

    def _config(self, context: DeployContext) -> dict[str, str]:
        """Return what every request has: an update states the kind again."""
        login = self.catalog.login
        return {"kind": self.catalog.kind, **(login(context).fields() if login else {})}

    def _note_login(self, context: DeployContext) -> None:
        if self.catalog.login is not None:
            context.record.put_login(self.key, self.catalog.login(context))

    def settle(self, context: DeployContext, live: Live) -> None:
        """It is connected, or has nothing to sync: the first sync comes with the first table.

        :raises FailedError: it failed; the next attempt repairs that
        """
        polls = 0

        def decided() -> bool:
            nonlocal polls
            current = self.find(context)
            phase = current.facts["phase"] if current else None
            if current and phase == "FAILED":
                reason = current.facts["error"] or "no reason is given"
                raise FailedError(f"{self.title} with {self.catalog.title}: {reason}")
            polls += phase == "PENDING"
            return phase == "CONNECTED" or polls >= PENDING_POLLS

        context.poll(decided, f"{self.title} is connected", CONNECTED_SECONDS)
