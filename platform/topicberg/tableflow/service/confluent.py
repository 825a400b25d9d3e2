"""The state of Confluent's own Tableflow."""

from __future__ import annotations

from typing import Any, get_args
from urllib.parse import quote

from pydantic import SecretStr

from topicberg.clients.confluent import Api, if_found
from topicberg.endpoints.cloud import Addresses
from topicberg.endpoints.parameters import read_secret
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.tableflow.service.status import FailingFormat, Phase, TopicStatus

TOPICS = "/tableflow/v1/tableflow-topics"
ATTEMPTS = 2  # Few, because whoever reads a state reads it again soon anyway.
UNITY = "UNITY"
NOT_SYNCED = {
    "FAILED": "the sync failed",
    "DISCONNECTED": "the catalog integration is disconnected",
}  # State of a sync that does not end by itself → what to show if the API gives no reason.
HINT = "open the topic in Confluent Cloud, or run `topicberg deploy plan` to see what differs"


def read_status(config: Settings, topic: str) -> TopicStatus | None:
    """Return the state of Tableflow on a topic; Confluent reports no offsets and no counters.

    Source: Confluent's OpenAPI document, ``tableflow/v1``, ``TableflowTopic``.

    :returns: None if there is no API key, because `topicberg deploy` did not create the deployment
    :raises TopicbergError: Confluent or AWS does not answer, or refuses
    """
    if (secret := read_secret(Names(config.prefix).confluent_secret("tableflow"), config)) is None:
        return None
    key, value = secret["api.key"], SecretStr(secret["api.key.secret"])
    api = Api(Addresses().confluent_url, key, value, attempts=ATTEMPTS)
    resource = read_topic(api, topic, secret["environment.id"], secret["kafka.cluster.id"])
    if resource is None:
        problem = f"Confluent's Tableflow is not enabled for the topic\n  → {HINT}"
        return TopicStatus(topic=topic, phase="FAILED", error_message=problem)
    return _status(topic, resource["spec"], resource.get("status") or {})


def _status(topic: str, spec: dict[str, Any], status: dict[str, Any]) -> TopicStatus:
    phase = status.get("phase")
    problems = [str(status["error_message"])] if status.get("error_message") else []
    problems += [f"catalog {problem}" for problem in catalog_problems(syncs(status))]
    if phase == "FAILED" and not problems:
        problems = ["it failed, and Confluent gives no reason"]
    return TopicStatus(
        topic=topic,
        phase=phase if phase in get_args(Phase) else "PENDING",
        suspended=bool(spec.get("suspended")),
        error_message=f"{'; '.join(problems)}\n  → {HINT}" if problems else None,
        failing_table_formats=[
            FailingFormat(
                format=failing["format"], error_message=failing.get("error_message") or ""
            )
            for failing in status.get("failing_table_formats") or []
        ],
        write_mode=str(status.get("write_mode") or "APPEND"),
    )


def read_topic(api: Api, name: str, environment: str, cluster: str) -> dict[str, Any] | None:
    """Return Confluent's Tableflow resource of a topic, or None if Tableflow is not enabled."""
    return if_found(api.get, topic_path(name), **where(environment, cluster))


def catalog_problems(states: list[dict[str, Any]]) -> list[str]:
    """Return the type and the error of each catalog that could not be synced, or is disconnected;
    the API gives a reason only of a failed sync.
    """
    return [
        f"{state.get('catalog_type')}: "
        f"{state.get('error_message') or NOT_SYNCED[state['sync_status']]}"
        for state in states
        if state.get("sync_status") in NOT_SYNCED
    ]


def syncs(status: dict[str, Any], *, of_delta: bool = True) -> list[dict[str, Any]]:
    """Return how the topic's tables stand in each catalog; ``of_delta``: also in Unity Catalog."""
    states: list[dict[str, Any]] = status.get("catalog_sync_statuses") or []
    return [state for state in states if of_delta or state.get("catalog_type") != UNITY]


def topic_path(name: str) -> str:
    return f"{TOPICS}/{quote(name, safe='')}"


def where(environment: str, cluster: str) -> dict[str, str]:
    return {"environment": environment, "spec.kafka_cluster": cluster}
