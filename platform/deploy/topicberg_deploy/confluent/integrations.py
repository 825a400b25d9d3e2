"""How Confluent reaches AWS (API pim/v1), and the catalogs of Tableflow (tableflow/v1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topicberg.clients.confluent import FailedError
from topicberg.tableflow.service.confluent import where
from topicberg_deploy.confluent.catalogs import CatalogKind
from topicberg_deploy.confluent.organization import named
from topicberg_deploy.confluent_apis import CLUSTER
from topicberg_deploy.context import DeployContext
from topicberg_deploy.logins import CURRENT, note_sent, state
from topicberg_deploy.polling import poll
from topicberg_deploy.resource import Changes, Fields, Live, Resource

CONNECTED_SECONDS = 20 * 60.0
PENDING_POLLS = 8
"""Times that PENDING must be seen: one that fails does so within seconds."""
CATALOGS = "/tableflow/v1/catalog-integrations"


@dataclass(frozen=True)
class ProviderIntegration(Resource):
    """Confluent's half of the trust. It is created before the IAM role, which needs its answers.

    :param role: name of the IAM role
    """

    role: str = field(kw_only=True)

    kind = "provider integration"
    is_part = True
    replaced_for = frozenset({"role"})

    def find(self, context: DeployContext) -> Live | None:
        pages = context.confluent.cloud.pages(
            "/pim/v1/integrations", environment=context.environment
        )
        integration = named(pages, self.name, "provider integrations")
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
        return {"role": context.aws.role_arn(self.role)}

    def create(self, context: DeployContext) -> None:
        role = context.aws.role_arn(self.role)
        body = {
            "display_name": self.name,
            "provider": "AWS",
            "config": {"kind": "AwsIntegrationConfig", "customer_iam_role_arn": role},
            "environment": {"id": context.environment},
        }
        context.confluent.cloud.post("/pim/v1/integrations", body)

    def delete(self, context: DeployContext, live: Live) -> None:
        context.confluent.cloud.delete(
            f"/pim/v1/integrations/{live.id}", environment=context.environment
        )


@dataclass(frozen=True)
class CatalogIntegration(Resource):
    """Tableflow's tables of the cluster, in one catalog: those of the format that it takes.

    Nothing makes a failed integration try again: one without a login is replaced, which loses
    nothing; another gets its login again.

    :param waits_for: key of the resource without which it would fail for good
    """

    catalog: CatalogKind = field(kw_only=True)
    waits_for: str | None = None

    kind = "catalog integration"
    usual_minutes = 5
    replaced_for = frozenset({"kind", "provider_integration_id", "failed"})

    @property
    def parents(self) -> tuple[str, ...]:
        return (CLUSTER,)

    def find(self, context: DeployContext) -> Live | None:
        pages = context.confluent.tableflow.pages(
            CATALOGS, **where(context.environment, context.cluster)
        )
        integration = named(pages, self.name, "catalog integrations")
        if integration is None:
            return None
        spec, status = integration["spec"], integration.get("status") or {}
        config, is_failed = spec.get("config") or {}, status.get("phase") == "FAILED"
        fields: Fields = {"kind": config.get("kind"), "suspended": bool(spec.get("suspended"))}
        if config.get("kind") == self.catalog.kind:
            # Confluent's examples have addresses with and without the last slash.
            fields |= {name: (config.get(name) or "").rstrip("/") for name in self.catalog.address}
            fields["namespace"] = config.get(self.catalog.namespace) or context.cluster
            if self.catalog.login is None:
                fields["failed"] = is_failed
            else:
                login = state(context, self.key, self.catalog.login(context))
                fields["login"] = "one that fails" if is_failed else login
        facts = {"phase": status.get("phase"), "error": status.get("error_message")}
        return Live(integration["id"], fields, facts)

    def desired(self, context: DeployContext) -> Fields:
        return {
            "kind": self.catalog.kind,
            "suspended": False,
            **self._address(context),
            "namespace": context.namespace,
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
        context.confluent.tableflow.post(CATALOGS, {"spec": spec})
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
        context.confluent.tableflow.patch(f"{CATALOGS}/{live.id}", {"spec": spec})
        if "config" in spec:
            self._note_login(context)

    def _config(self, context: DeployContext) -> dict[str, str]:
        """Return what every request has: an update states the kind again."""
        login = self.catalog.login
        return {"kind": self.catalog.kind, **(login(context).fields() if login else {})}

    def _note_login(self, context: DeployContext) -> None:
        if self.catalog.login is not None:
            note_sent(context, self.key, self.catalog.login(context))

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
                raise FailedError(
                    f"{self.title} with {self.catalog.title}: "
                    f"{current.facts['error'] or 'no reason is given'}"
                )
            polls += phase == "PENDING"
            return phase == "CONNECTED" or polls >= PENDING_POLLS

        poll(decided, f"{self.title} is connected", CONNECTED_SECONDS, sleep=context.sleep)

    def delete(self, context: DeployContext, live: Live) -> None:
        place = where(context.environment, context.cluster)
        context.confluent.tableflow.delete(f"{CATALOGS}/{live.id}", **place)
