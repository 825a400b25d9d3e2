"""How Confluent reaches AWS (API pim/v1), and the catalogs of Tableflow (tableflow/v1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topicberg.clients.confluent import FailedError
from topicberg.deploy.confluent.organization import only
from topicberg.deploy.context import CLUSTER, ENVIRONMENT, DeployContext
from topicberg.deploy.polling import poll
from topicberg.deploy.resource import Changes, Fields, Live, Resource
from topicberg.tableflow.confluent import where

CONNECTED_SECONDS = 20 * 60.0
PENDING_POLLS = 8
"""Times that PENDING must be seen: one that fails does so within seconds."""
CATALOGS = "/tableflow/v1/catalog-integrations"
PROVIDER_INTEGRATION = "confluent/provider_integration"


@dataclass(frozen=True)
class ProviderIntegration(Resource):
    """Confluent's half of the trust. It is created before the IAM role, which needs its answers.

    :param role: name of the IAM role
    """

    role: str = field(kw_only=True)

    kind = "provider integration"
    replaced_for = frozenset({"role"})

    @property
    def parents(self) -> tuple[str, ...]:
        return (ENVIRONMENT,)

    def find(self, context: DeployContext) -> Live | None:
        pages = context.cloud.pages("/pim/v1/integrations", environment=context.environment)
        named = [one for one in pages if one.get("display_name") == self.name]
        integration = only(named, f"provider integrations named {self.name}")
        if integration is None:
            return None
        config = integration["config"]
        crn = f"{context.need('confluent/environment').facts['crn']}/provider-integration"
        facts = {
            "crn": f"{crn}={integration['id']}",
            "principal": config["iam_role_arn"],
            "external_id": config["external_id"],
        }
        return Live(integration["id"], {"role": config.get("customer_iam_role_arn")}, facts)

    def desired(self, context: DeployContext) -> Fields:
        return {"role": context.role_arn(self.role)}

    def create(self, context: DeployContext) -> None:
        role = context.role_arn(self.role)
        body = {
            "display_name": self.name,
            "provider": "AWS",
            "config": {"kind": "AwsIntegrationConfig", "customer_iam_role_arn": role},
            "environment": {"id": context.environment},
        }
        context.cloud.post("/pim/v1/integrations", body)

    def delete(self, context: DeployContext, live: Live) -> None:
        context.cloud.delete(f"/pim/v1/integrations/{live.id}", environment=context.environment)


@dataclass(frozen=True)
class CatalogIntegration(Resource):
    """Tableflow's tables of the cluster, in AWS Glue or in Snowflake Open Catalog.

    A cluster has one. Nothing makes a failed integration try again: one with Glue is replaced,
    which loses nothing; one with Open Catalog gets its client's secret again, which Confluent never
    shows.
    """

    kind = "catalog integration"
    usual_minutes = 5
    replaced_for = frozenset({"kind", "provider_integration", "failed"})

    @property
    def parents(self) -> tuple[str, ...]:
        return (CLUSTER,)

    def find(self, context: DeployContext) -> Live | None:
        pages = context.tableflow.pages(CATALOGS, **where(context.environment, context.cluster))
        named = [one for one in pages if one["spec"].get("display_name") == self.name]
        integration = only(named, f"catalog integrations named {self.name}")
        if integration is None:
            return None
        spec, status = integration["spec"], integration.get("status") or {}
        config, failed = spec.get("config") or {}, status.get("phase") == "FAILED"
        fields: Fields = {"kind": config.get("kind"), "suspended": bool(spec.get("suspended"))}
        if config.get("kind") == "AwsGlue":
            fields |= {
                "provider_integration": config.get("provider_integration_id"),
                "namespace": config.get("custom_database") or context.cluster,
                "failed": failed,
            }
        else:
            fields |= {
                **{name: config.get(name) for name in ("endpoint", "warehouse", "allowed_scope")},
                "namespace": config.get("custom_namespace") or context.cluster,
                "login_failed": failed,
            }
        facts = {"phase": status.get("phase"), "error": status.get("error_message")}
        return Live(integration["id"], fields, facts)

    def desired(self, context: DeployContext) -> Fields:
        if _in_open_catalog(context):
            common = {"kind": "Snowflake", "suspended": False, "login_failed": False}
            return {**common, **_open_catalog(context), "namespace": context.namespace}
        return {
            "kind": "AwsGlue",
            "suspended": False,
            "provider_integration": context.need(PROVIDER_INTEGRATION).id,
            "namespace": context.namespace,
            "failed": False,
        }

    def waits(self, context: DeployContext) -> str:
        """For a given role: without its trust, Confluent fails the integration for good."""
        return context.wait_of("aws/role/tableflow")

    def create(self, context: DeployContext) -> None:
        config = _config(context)
        if not _in_open_catalog(context):
            config["provider_integration_id"] = context.need(PROVIDER_INTEGRATION).id
        spec = {"display_name": self.name, **context.place, "config": config}
        context.tableflow.post(CATALOGS, {"spec": spec})

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        spec: dict[str, Any] = dict(context.place)
        if "suspended" in changes:
            spec["suspended"] = False
        if set(changes) != {"suspended"}:
            spec["config"] = _config(context, moved="namespace" in changes)
        context.tableflow.patch(f"{CATALOGS}/{live.id}", {"spec": spec})

    def settle(self, context: DeployContext, live: Live) -> None:
        """It is connected, or has nothing to sync: the first sync comes with the first table.

        :raises FailedError: it failed; the next attempt repairs that
        """
        polls = 0

        def decided() -> bool:
            nonlocal polls
            found = self.find(context)
            phase = found.facts["phase"] if found else None
            if found and phase == "FAILED":
                raise FailedError(f"{self.title}: {found.facts['error'] or 'no reason is given'}")
            polls += phase == "PENDING"
            return phase == "CONNECTED" or polls >= PENDING_POLLS

        poll(decided, f"{self.title} is connected", CONNECTED_SECONDS, sleep=context.sleep)

    def delete(self, context: DeployContext, live: Live) -> None:
        place = where(context.environment, context.cluster)
        context.tableflow.delete(f"{CATALOGS}/{live.id}", **place)


def _in_open_catalog(context: DeployContext) -> bool:
    return context.config.snowflake_catalog == "open_catalog"


def _open_catalog(context: DeployContext) -> dict[str, str]:
    """Where it is; Confluent wants the account's address, Snowflake the API's."""
    deploy = context.deploy
    return {
        "endpoint": (deploy.catalog_uri or "").removesuffix("/polaris/api/catalog"),
        "warehouse": deploy.catalog_name or "",
        "allowed_scope": deploy.catalog_scope or "",
    }


def _config(context: DeployContext, *, moved: bool = False) -> dict[str, str]:
    """The catalog, with the user-defined namespace, if there is one: Tableflow's default is the
    cluster's id.

    https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/user-defined-namespaces.html

    :param moved: state the namespace also if it is the default
    """
    stated = moved or context.config.tableflow_namespace
    if not _in_open_catalog(context):
        return {"kind": "AwsGlue", **({"custom_database": context.namespace} if stated else {})}
    secret = context.deploy.catalog_client_secret
    return {
        "kind": "Snowflake",
        **_open_catalog(context),
        "client_id": context.deploy.catalog_client_id or "",
        "client_secret": secret.get_secret_value() if secret else "",
        **({"custom_namespace": context.namespace} if stated else {}),
    }
