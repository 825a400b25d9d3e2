"""How Confluent reaches AWS (API pim/v1), and the catalogs of Tableflow (tableflow/v1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topicberg.clients.confluent import FailedError
from topicberg.deploy.confluent.organization import only
from topicberg.deploy.resource import Changes, Fields, Live, Resource
from topicberg.deploy.wait import until

if TYPE_CHECKING:
    from topicberg.deploy.context import DeployContext

CONNECTED_SECONDS = 20 * 60.0
PENDING_POLLS = 8
"""Times that PENDING must be seen: one that fails does so within seconds."""
PROVIDER_INTEGRATION = "confluent/provider_integration"


@dataclass(frozen=True)
class ProviderIntegration(Resource):
    """Confluent's half of the trust. It is created before the IAM role, which needs its answers.

    :param role: name of the IAM role
    """

    role: str = ""

    kind = "provider integration"
    replaced_for = frozenset({"role"})

    def find(self, context: DeployContext) -> Live | None:
        pages = context.cloud.pages("/pim/v1/integrations", environment=context.environment)
        named = [one for one in pages if one.get("display_name") == self.name]
        found = only(named, f"provider integrations named {self.name}")
        if found is None:
            return None
        config = found["config"]
        crn = f"{context.need('confluent/environment').facts['crn']}/provider-integration"
        return Live(
            found["id"],
            {"role": config.get("customer_iam_role_arn")},
            {
                "crn": f"{crn}={found['id']}",
                "principal": config["iam_role_arn"],
                "external_id": config["external_id"],
            },
        )

    def desired(self, context: DeployContext) -> Fields:
        return {"role": context.role_arn(self.role)}

    def create(self, context: DeployContext) -> None:
        config = {
            "kind": "AwsIntegrationConfig",
            "customer_iam_role_arn": context.role_arn(self.role),
        }
        body = {
            "display_name": self.name,
            "provider": "AWS",
            "config": config,
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

    def _where(self, context: DeployContext) -> dict[str, str]:
        return {"environment": context.environment, "spec.kafka_cluster": context.cluster}

    def _all(self, context: DeployContext) -> list[dict[str, Any]]:
        pages = context.tableflow.pages(
            "/tableflow/v1/catalog-integrations", **self._where(context)
        )
        return [one for one in pages if one["spec"].get("display_name") == self.name]

    def find(self, context: DeployContext) -> Live | None:
        found = only(self._all(context), f"catalog integrations named {self.name}")
        if found is None:
            return None
        config = found["spec"].get("config") or {}
        status = found.get("status") or {}
        failed = status.get("phase") == "FAILED"
        suspended = bool(found["spec"].get("suspended"))
        fields: Fields = {"kind": config.get("kind"), "suspended": suspended}
        if config.get("kind") == "AwsGlue":
            fields |= {
                "provider_integration": config.get("provider_integration_id"),
                "namespace": config.get("custom_database") or context.cluster,
                "failed": failed,
            }
        else:
            names = ("endpoint", "warehouse", "allowed_scope")
            fields |= {name: config.get(name) for name in names}
            fields["namespace"] = config.get("custom_namespace") or context.cluster
            fields["login_failed"] = failed
        facts = {"phase": status.get("phase"), "error": status.get("error_message")}
        return Live(found["id"], fields, facts)

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

    def create(self, context: DeployContext) -> None:
        config = {
            "kind": "AwsGlue",
            "provider_integration_id": context.need(PROVIDER_INTEGRATION).id,
            **_namespace(context, "custom_database"),
        }
        if _in_open_catalog(context):
            config = {"kind": "Snowflake", **_open_catalog(context), **_client(context)}
            config |= _namespace(context, "custom_namespace")
        spec = {
            "display_name": self.name,
            "environment": {"id": context.environment},
            "kafka_cluster": {"id": context.cluster},
            "config": config,
        }
        context.tableflow.post("/tableflow/v1/catalog-integrations", {"spec": spec})

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        spec: dict[str, Any] = {
            "environment": {"id": context.environment},
            "kafka_cluster": {"id": context.cluster},
        }
        if "suspended" in changes:
            spec["suspended"] = False
        if set(changes) != {"suspended"}:
            moved = "namespace" in changes
            if _in_open_catalog(context):
                spec["config"] = {
                    **{"kind": "Snowflake", **_open_catalog(context), **_client(context)},
                    **_namespace(context, "custom_namespace", always=moved),
                }
            else:
                of_glue = _namespace(context, "custom_database", always=moved)
                spec["config"] = {"kind": "AwsGlue", **of_glue}
        context.tableflow.patch(f"/tableflow/v1/catalog-integrations/{live.id}", {"spec": spec})

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

        until(decided, f"{self.title} is connected", CONNECTED_SECONDS, sleep=context.sleep)

    def delete(self, context: DeployContext, live: Live) -> None:
        path = f"/tableflow/v1/catalog-integrations/{live.id}"
        context.tableflow.delete(path, **self._where(context))


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


def _namespace(context: DeployContext, name: str, *, always: bool = False) -> dict[str, str]:
    """The user-defined namespace, if there is one: Tableflow's default is the cluster's id.

    https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/user-defined-namespaces.html

    :param name: of the field
    :param always: also if it is the default
    """
    given = always or context.config.tableflow_namespace
    return {name: context.namespace} if given else {}


def _client(context: DeployContext) -> dict[str, str]:
    secret = context.deploy.catalog_client_secret
    return {
        "client_id": context.deploy.catalog_client_id or "",
        "client_secret": secret.get_secret_value() if secret else "",
    }
