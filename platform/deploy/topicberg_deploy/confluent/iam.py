"""Service accounts and role bindings: API iam/v2."""

from __future__ import annotations

from dataclasses import dataclass, field

from topicberg_deploy.confluent.organization import named
from topicberg_deploy.context import DeployContext
from topicberg_deploy.costs import QUOTAS
from topicberg_deploy.resource import Changes, Fields, Live, Resource


@dataclass(frozen=True)
class ServiceAccount(Resource):
    description: str = field(kw_only=True)

    kind = "service account"
    quota = QUOTAS["service accounts"]

    def find(self, context: DeployContext) -> Live | None:
        pages = context.confluent.cloud.pages("/iam/v2/service-accounts")
        account = named(pages, self.name, "service accounts")
        if account is None:
            return None
        return Live(account["id"], {"description": account.get("description") or ""})

    def desired(self, context: DeployContext) -> Fields:
        return {"description": self.description}

    def create(self, context: DeployContext) -> None:
        body = {"display_name": self.name, **self.desired(context)}
        context.confluent.cloud.post("/iam/v2/service-accounts", body)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        context.confluent.cloud.patch(f"/iam/v2/service-accounts/{live.id}", self.desired(context))

    def delete(self, context: DeployContext, live: Live) -> None:
        context.confluent.cloud.delete(f"/iam/v2/service-accounts/{live.id}")


@dataclass(frozen=True)
class RoleBinding(Resource):
    """A role of a service account on one pattern.

    :param account: key of the service account
    :param on: key of the resource whose CRN the pattern begins with
    :param pattern: what follows the CRN, e.g. ``/topic=*``
    """

    account: str = field(kw_only=True)
    role: str = field(kw_only=True)
    on: str = field(kw_only=True)
    pattern: str = field(kw_only=True)

    kind = "role binding"
    is_part = True

    def _body(self, context: DeployContext) -> dict[str, str]:
        return {
            "principal": f"User:{context.need(self.account).id}",
            "role_name": self.role,
            "crn_pattern": f"{context.need(self.on).facts['crn']}{self.pattern}",
        }

    def find(self, context: DeployContext) -> Live | None:
        wanted = self._body(context)
        # The filter is a partial search; what is not exactly ours is another binding.
        for binding in context.confluent.cloud.pages("/iam/v2/role-bindings", **wanted):
            if all(binding.get(name) == value for name, value in wanted.items()):
                return Live(binding["id"])
        return None

    def create(self, context: DeployContext) -> None:
        context.confluent.cloud.post("/iam/v2/role-bindings", self._body(context))

    def delete(self, context: DeployContext, live: Live) -> None:
        context.confluent.cloud.delete(f"/iam/v2/role-bindings/{live.id}")
