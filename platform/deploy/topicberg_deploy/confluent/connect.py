"""Managed source connectors: API connect/v1. Every value of a configuration is text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from topicberg.clients.confluent import ApiError, FailedError
from topicberg.settings import Settings
from topicberg_deploy.costs import HOURS, PRICES, Cost
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, Resource

QUICKSTARTS = {"stock_trades": "STOCK_TRADES", "users": "USERS"}
"""Generator of a topic → the managed Datagen connector's name for it."""
OUTPUTS = {"avro": "AVRO", "json": "JSON_SR", "protobuf": "PROTOBUF", "none": "JSON"}
"""Format of the value's schema → ``output.data.format``."""
MIN_INTERVAL_MS = 10
"""The connector's smallest ``max.interval``: 200 records a second and task."""
PLUGIN = "DatagenSource"
RUNNING_SECONDS = 30 * 60.0
FAILED_POLLS = 6
"""Times in a row that FAILED must be seen: a configuration that was just sent again starts it."""
_PENDING = ("NONE", "PROVISIONING", "DEGRADED")


@dataclass(frozen=True)
class Connector(Resource):
    """
    :param account: key of the service account that it writes as
    :param format: of the value's schema
    :param rate: records a second of all tasks; 0: as many as possible
    """

    topic: str = field(kw_only=True)
    quickstart: str = field(kw_only=True)
    format: str = field(kw_only=True)
    rate: float = field(kw_only=True)
    tasks: int = field(kw_only=True)
    account: str = field(kw_only=True)

    kind = "connector"
    is_part = True
    usual_minutes = 3

    def _path(self, context: DeployContext, rest: str = "") -> str:
        return f"/connect/v1/environments/{context.environment}/clusters/{context.cluster}{rest}"

    def _named(self, context: DeployContext, rest: str = "") -> str:
        return self._path(context, f"/connectors/{quote(self.name, safe='')}{rest}")

    def _config(self, context: DeployContext) -> dict[str, str]:
        # After each record a task waits a random part of it: half of it on average.
        interval_ms = 2000 * self.tasks / self.rate if self.rate else 0
        return {
            "connector.class": PLUGIN,
            "name": self.name,
            "kafka.auth.mode": "SERVICE_ACCOUNT",
            "kafka.service.account.id": context.need(self.account).id,
            "kafka.topic": self.topic,
            "max.interval": str(max(MIN_INTERVAL_MS, round(interval_ms))),
            "output.data.format": OUTPUTS[self.format],
            "quickstart": self.quickstart,
            "tasks.max": str(self.tasks),
        }

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        return Cost(self.tasks * PRICES["task"] * HOURS, "by task, and traffic")

    def find(self, context: DeployContext) -> Live | None:
        path = self._path(context, "/connectors")
        listed = context.confluent.cloud.get(path, expand="info,status,id") or {}
        connector = listed.get(self.name)
        if connector is None:
            return None
        config = (connector.get("info") or {}).get("config") or {}
        state = ((connector.get("status") or {}).get("connector") or {}).get("state")
        identity = (connector.get("id") or {}).get("id") or self.name
        # A state that passes is the running one for a plan; settle waits for it.
        shown = "RUNNING" if state in _PENDING else state
        unmasked = {name: text for name, text in config.items() if set(str(text)) != {"*"}}
        return Live(identity, {"state": shown, **unmasked}, {"state": state})

    def desired(self, context: DeployContext) -> Fields:
        return {"state": "RUNNING", **self._config(context)}

    def create(self, context: DeployContext) -> None:
        config = self._config(context)
        validate = self._path(context, f"/connector-plugins/{PLUGIN}/config/validate")
        if problems := _problems(context.confluent.cloud.put(validate, config) or {}):
            raise ApiError(f"{self.title}: its configuration is wrong: {'; '.join(problems)}")
        body = {"name": self.name, "config": config}
        context.confluent.cloud.post(self._path(context, "/connectors"), body)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        if set(changes) != {"state"} or live.facts["state"] == "FAILED":
            context.confluent.cloud.put(self._named(context, "/config"), self._config(context))
        if live.facts["state"] == "PAUSED":
            context.confluent.cloud.put(self._named(context, "/resume"))

    def settle(self, context: DeployContext, live: Live) -> None:
        """It runs. One that failed is given its configuration again by the next attempt."""
        failures = 0

        def running() -> bool:
            nonlocal failures
            status = context.confluent.cloud.get(self._named(context, "/status"))["connector"]
            state = status["state"]
            failures = failures + 1 if state == "FAILED" else 0
            is_pending = state in _PENDING or state == live.facts["state"] == "PAUSED"
            if state != "RUNNING" and not is_pending and not 0 < failures < FAILED_POLLS:
                error = FailedError if failures else ApiError
                trace = status.get("trace") or "no reason is given"
                raise error(f"{self.title} is {state}: {trace}")
            return bool(state == "RUNNING")

        context.poll(running, f"{self.title} runs", RUNNING_SECONDS)

    def delete(self, context: DeployContext, live: Live) -> None:
        if problem := (context.confluent.cloud.delete(self._named(context)) or {}).get("error"):
            raise ApiError(f"{self.title}: {problem}")


def _problems(response: dict[str, Any]) -> list[str]:
    configs = response.get("configs", []) if response.get("error_count") else []
    return [
        f"{value.get('name')}: {problem}"
        for value in (config.get("value") or {} for config in configs)
        for problem in value.get("errors") or []
    ]
