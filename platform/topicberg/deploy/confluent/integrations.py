"""How Confluent reaches AWS (API pim/v1), and the catalogs that Tableflow tells (tableflow/v1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topicberg.deploy.confluent.api import ApiError
from topicberg.deploy.confluent.organization import only
from topicberg.deploy.resource import Changes, Fields, Live, Resource
from topicberg.deploy.wait import until

if TYPE_CHECKING:
    from topicberg.deploy.world import World

CONNECTED_SECONDS = 20 * 60.0
PROVIDER_INTEGRATION = "confluent/provider_integration"


@dataclass(frozen=True)
class ProviderIntegration(Resource):
    """Confluent's half of the trust. It is made before the IAM role, which needs its answers.

    :param role: name of the IAM role
    """

    role: str = ""

    kind = "provider integration"
    replaced_for = frozenset({"role"})

    def find(self, world: World) -> Live | None:
        pages = world.cloud.pages("/pim/v1/integrations", environment=world.environment)
        named = [one for one in pages if one.get("display_name") == self.name]
        found = only(named, f"provider integrations named {self.name}")
        if found is None:
            return None
        config = found["config"]
        crn = f"{world.need('confluent/environment').facts['crn']}/provider-integration"
        return Live(
            found["id"],
            {"role": config.get("customer_iam_role_arn")},
            {
                "crn": f"{crn}={found['id']}",
                "principal": config["iam_role_arn"],
                "external_id": config["external_id"],
            },
        )

    def desired(self, world: World) -> Fields:
        return {"role": world.role_arn(self.role)}

    def create(self, world: World) -> None:
        config = {
            "kind": "AwsIntegrationConfig",
            "customer_iam_role_arn": world.role_arn(self.role),
        }
        body = {
            "display_name": self.name,
            "provider": "AWS",
            "config": config,
            "environment": {"id": world.environment},
        }
        world.cloud.post("/pim/v1/integrations", body)

    def delete(self, world: World, live: Live) -> None:
        world.cloud.delete(f"/pim/v1/integrations/{live.id}", environment=world.environment)


@dataclass(frozen=True)
class CatalogIntegration(Resource):
    """Tableflow's tables of the cluster, in AWS Glue or in Snowflake Open Catalog.

    A cluster has one. Confluent never tells a client's secret, so one that is wrong shows as a
    failed integration, and is set anew then.
    """

    kind = "catalog integration"
    replaced_for = frozenset({"kind", "provider_integration"})

    def _where(self, world: World) -> dict[str, str]:
        return {"environment": world.environment, "spec.kafka_cluster": world.cluster}

    def _all(self, world: World) -> list[dict[str, Any]]:
        pages = world.tableflow.pages("/tableflow/v1/catalog-integrations", **self._where(world))
        return [one for one in pages if one["spec"].get("display_name") == self.name]

    def find(self, world: World) -> Live | None:
        found = only(self._all(world), f"catalog integrations named {self.name}")
        if found is None:
            return None
        config = found["spec"].get("config") or {}
        status = found.get("status") or {}
        fields = {"kind": config.get("kind")}
        if config.get("kind") == "AwsGlue":
            fields["provider_integration"] = config.get("provider_integration_id")
        else:
            names = ("endpoint", "warehouse", "allowed_scope")
            fields |= {name: config.get(name) for name in names}
        facts = {"phase": status.get("phase"), "error": status.get("error_message")}
        return Live(found["id"], fields, facts)

    def desired(self, world: World) -> Fields:
        if _in_open_catalog(world):
            return {"kind": "Snowflake", **_open_catalog(world)}
        return {"kind": "AwsGlue", "provider_integration": world.need(PROVIDER_INTEGRATION).id}

    def create(self, world: World) -> None:
        config = {
            "kind": "AwsGlue",
            "provider_integration_id": world.need(PROVIDER_INTEGRATION).id,
        }
        if _in_open_catalog(world):
            config = {"kind": "Snowflake", **_open_catalog(world), **_client(world)}
        spec = {
            "display_name": self.name,
            "environment": {"id": world.environment},
            "kafka_cluster": {"id": world.cluster},
            "config": config,
        }
        world.tableflow.post("/tableflow/v1/catalog-integrations", {"spec": spec})

    def update(self, world: World, live: Live, changes: Changes) -> None:
        spec = {
            "environment": {"id": world.environment},
            "kafka_cluster": {"id": world.cluster},
            "config": {"kind": "Snowflake", **_open_catalog(world), **_client(world)},
        }
        world.tableflow.patch(f"/tableflow/v1/catalog-integrations/{live.id}", {"spec": spec})

    def settle(self, world: World, live: Live) -> None:
        """It answers from AWS: a failure right after the role was made may pass."""
        if live.facts["phase"] == "FAILED" and _in_open_catalog(world):
            self.update(world, live, {})

        def connected() -> bool:
            found = self.find(world)
            return found is not None and found.facts["phase"] == "CONNECTED"

        try:
            until(connected, f"{self.title} is connected", CONNECTED_SECONDS, sleep=world.sleep)
        except Exception as error:
            found = self.find(world)
            if found and found.facts["error"]:
                raise ApiError(f"{self.title}: {found.facts['error']}") from error
            raise

    def delete(self, world: World, live: Live) -> None:
        path = f"/tableflow/v1/catalog-integrations/{live.id}"
        world.tableflow.delete(path, **self._where(world))


def _in_open_catalog(world: World) -> bool:
    return world.config.snowflake_catalog == "open_catalog"


def _open_catalog(world: World) -> dict[str, str]:
    """Where it is; Confluent wants the account's address, Snowflake the API's."""
    deploy = world.deploy
    return {
        "endpoint": (deploy.catalog_uri or "").removesuffix("/polaris/api/catalog"),
        "warehouse": deploy.catalog_name or "",
        "allowed_scope": deploy.catalog_scope or "",
    }


def _client(world: World) -> dict[str, str]:
    secret = world.deploy.catalog_client_secret
    return {
        "client_id": world.deploy.catalog_client_id or "",
        "client_secret": secret.get_secret_value() if secret else "",
    }
