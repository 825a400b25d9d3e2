"""Tableflow on a topic: API tableflow/v1, with a Tableflow key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from topicberg.clients.confluent import CredentialsError, FailedError, GoneError
from topicberg.clients.secrets import ApiKey
from topicberg.iceberg.maintenance.retention import described
from topicberg.settings import Settings
from topicberg.tableflow.service.confluent import (
    TOPICS,
    catalog_problems,
    read_topic,
    syncs,
    topic_path,
    where,
)
from topicberg.topics import TopicSpec
from topicberg_deploy.confluent.integrations import PROVIDER_INTEGRATION
from topicberg_deploy.context import CLUSTER
from topicberg_deploy.costs import HOURS, PRICES, Cost
from topicberg_deploy.resource import (
    CannotChangeError,
    Changes,
    DeployContext,
    Fields,
    Live,
    Resource,
    compare,
)

RUNNING_SECONDS = 30 * 60.0
FAILED_POLLS = 8
"""Times in a row that FAILED must be seen: right after the IAM role was created it passes."""
PENDING_POLLS = 8
"""Times that PENDING must be seen on a topic without a source: Tableflow may wait for records."""
WRITE_MODES = {"append": "APPEND", "upsert": "UPSERT"}
"""Of a spec → of Tableflow, which derives it from the topic when it is enabled, once for all."""
_ROWS_KEPT = "data_retention_ms"
_STORAGE = ("kind", "bucket_name", "provider_integration_id")


def config_of(spec: TopicSpec) -> dict[str, Any]:
    """``spec.config`` for a topic. ``record_failure_strategy`` must not stand beside it."""
    tableflow, handling = spec.tableflow, spec.tableflow.error_handling
    target = {"target": handling.target or "error_log"} if handling.mode == "LOG" else {}
    data_retention = tableflow.data_retention_ms
    return {
        "retention_ms": str(tableflow.retention_ms),
        "error_handling": {"mode": handling.mode, **target},
        "metadata_column_naming_scheme": tableflow.metadata_column_naming_scheme,
        **({} if data_retention is None else {_ROWS_KEPT: str(data_retention)}),
    }


@dataclass(frozen=True)
class TableflowTopic(Resource):
    """:param has_source: something of this deployment writes records to the topic"""

    spec: TopicSpec = field(kw_only=True)
    has_source: bool = True

    kind = "Tableflow topic"
    usual_minutes = 10
    holds_data = True
    replaced_for = frozenset({"storage", "write_mode"})

    @property
    def parents(self) -> tuple[str, ...]:
        return (CLUSTER,)

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        return Cost(PRICES["tableflow"] * HOURS, "and by GB processed")

    def find(self, context: DeployContext) -> Live | None:
        topic = read_topic(
            context.confluent.tableflow, self.name, context.environment, context.cluster
        )
        if topic is None:
            return None
        spec, status = topic["spec"], topic.get("status") or {}
        storage, config = spec.get("storage") or {}, spec.get("config") or {}
        fields = {
            "storage": [storage.get(name) for name in _STORAGE],
            "table_formats": sorted(spec.get("table_formats") or []),
            "suspended": bool(spec.get("suspended")),
            **{f"config.{name}": value for name, value in config.items()},
            "config.error_handling": _handling(config),
        }
        # Until it runs, the mode may not be known.
        mode = status.get("write_mode") if status.get("phase") == "RUNNING" else None
        is_known = mode in WRITE_MODES.values()
        fields["write_mode"] = mode if is_known else WRITE_MODES[self.spec.write_mode]
        facts = {"status": status, "table_path": storage.get("table_path"), "write_mode": mode}
        return Live(self.name, fields, facts)

    def _config(self, context: DeployContext) -> dict[str, Any]:
        """Return :func:`config_of` the spec; rows are deleted earlier than now with ``create
        --irrevocable`` only."""
        config, live = config_of(self.spec), context.live.get(self.key)
        if live is None or context.irrevocable or _ROWS_KEPT not in config:
            return config
        kept = live.fields.get(f"config.{_ROWS_KEPT}")
        if kept is None:
            del config[_ROWS_KEPT]
        elif int(kept) > int(config[_ROWS_KEPT]):
            config[_ROWS_KEPT] = kept
        return config

    def remark(self, context: DeployContext, live: Live) -> str:
        """Return which write mode is none of topicberg's, such as ``UPSERT_HISTORY``: Confluent
        has added some, and enabling Tableflow again would lose the table; and which catalogs do
        not get the table.
        """
        problems = catalog_problems(syncs(live.facts["status"]))
        remarks = [f"catalog {problem}" for problem in problems]
        mode, wanted = live.facts["write_mode"], WRITE_MODES[self.spec.write_mode]
        if mode not in (None, *WRITE_MODES.values()):
            remarks.append(
                f"Confluent writes it in mode {mode}, its spec means {wanted}: left as it is"
            )
        if self._config(context) != config_of(self.spec):
            remarks.append(
                "`topicberg deploy create --irrevocable` deletes rows that are older than "
                f"{described(self.spec)}, which cannot be undone"
            )
        return "; ".join(remarks)

    def _storage(self, context: DeployContext) -> dict[str, str]:
        if self.spec.tableflow.storage == "managed":
            return {"kind": "Managed"}
        return {
            "kind": "ByobAws",
            "bucket_name": context.aws.bucket,
            "provider_integration_id": context.need(PROVIDER_INTEGRATION).id,
        }

    def desired(self, context: DeployContext) -> Fields:
        storage = self._storage(context)
        return {
            "write_mode": WRITE_MODES[self.spec.write_mode],
            "storage": [storage.get(name) for name in _STORAGE],
            "table_formats": sorted(self.spec.tableflow.table_formats),
            "suspended": False,
            **{f"config.{name}": value for name, value in self._config(context).items()},
        }

    def waits(self, context: DeployContext) -> str:
        """For a given bucket, and for what its catalog integration waits for."""
        in_bucket = self.spec.tableflow.storage != "managed"
        return context.wait_of("aws/bucket", "confluent/catalog_integration") if in_bucket else ""

    def create(self, context: DeployContext) -> None:
        spec = {
            "display_name": self.name,
            **context.place,
            "storage": self._storage(context),
            "table_formats": list(self.spec.tableflow.table_formats),
            "config": config_of(self.spec),
        }
        context.confluent.tableflow.post(TOPICS, {"spec": spec})

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        spec: dict[str, Any] = dict(context.place)
        if any(name.startswith("config.") for name in changes):
            spec["config"] = self._config(context)
        if "table_formats" in changes:
            spec["table_formats"] = list(self.spec.tableflow.table_formats)
        if "suspended" in changes:
            spec["suspended"] = False
        context.confluent.tableflow.patch(topic_path(self.name), {"spec": spec})

    def settle(self, context: DeployContext, live: Live) -> None:
        """It runs and writes every format; without a source it may wait for the first record.

        Not that catalogs know of it: what needs that waits for it, and may wait for long.
        """
        failures = pending = 0

        def running() -> bool:
            nonlocal failures, pending
            live = self.find(context)
            status = live.facts["status"] if live else {}
            problem = _problem(status)
            failures = failures + 1 if problem else 0
            if failures >= FAILED_POLLS:
                raise FailedError(f"{self.title}: {problem}")
            if live and (wrong := compare(live.fields, self.desired(context)).get("write_mode")):
                raise CannotChangeError(
                    f"{self.title} has write mode {wrong[0]}, its spec wants {wrong[1]}",
                    hint="it follows from the topic's cleanup.policy when Tableflow is enabled: "
                    "disable Tableflow on the topic, then run `topicberg deploy create` again",
                )
            pending += status.get("phase") == "PENDING"
            idle = not self.has_source and pending >= PENDING_POLLS
            return not problem and (status.get("phase") == "RUNNING" or idle)

        context.poll(running, f"{self.title} runs", RUNNING_SECONDS)

    def delete(self, context: DeployContext, live: Live) -> None:
        place = where(context.environment, context.cluster)
        context.confluent.tableflow.delete(topic_path(self.name), **place)


def listed(context: DeployContext, path: str, name: str) -> list[dict[str, Any]] | None:
    """Return what Tableflow lists with a key that an earlier run stored; empty: there is no such
    key, or it does not work; None: who plans may not read it.

    :param path: of Tableflow's API
    :param name: of the key's secret, without what all secrets begin with
    """
    secret = context.read_secret(context.names.confluent_secret(name))
    if secret is None:
        return None
    if not {"api.key", "api.key.secret", "environment.id", "kafka.cluster.id"} <= secret.keys():
        return []
    key = ApiKey(secret["api.key"], SecretStr(secret["api.key.secret"]))
    place = where(secret["environment.id"], secret["kafka.cluster.id"])
    try:
        return list(context.confluent.cloud_as(key).pages(path, **place))
    except (CredentialsError, GoneError):
        return []


def writes_to(context: DeployContext, bucket: str) -> bool:
    """Return whether Tableflow writes to a bucket, or who plans may not know it."""
    topics = listed(context, TOPICS, "tableflow")
    return topics is None or any(
        (topic["spec"].get("storage") or {}).get("bucket_name") == bucket for topic in topics
    )


def _handling(config: dict[str, Any]) -> dict[str, Any]:
    """How errors are handled, also where the deprecated field says it."""
    deprecated = {"mode": config.get("record_failure_strategy") or "SUSPEND"}
    handling = config.get("error_handling") or deprecated
    return {name: value for name, value in handling.items() if value}


def _problem(status: dict[str, Any]) -> str:
    if status.get("phase") == "FAILED":
        return str(status.get("error_message") or "it failed and does not say why")
    return "; ".join(
        f"{one.get('format')}: {one.get('error_message')}"
        for one in status.get("failing_table_formats") or []
    )
