"""The real local broker, on which all clusters are.

The main cluster (``cluster_id`` of the settings) has every topic that no other cluster made, be it
from here or not; a topic's name is taken in all of them.
"""

from __future__ import annotations

from concurrent.futures import Future
from http import HTTPStatus
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from topicberg.errors import TopicbergError
from topicberg.kafka.topics import TIMEOUT_SECONDS
from topicberg.topics import requests
from topicberg_local.emulators.confluent.account import TOPIC, Account
from topicberg_local.emulators.confluent.errors import Refusal

T = TypeVar("T")


def names(account: Account, cluster: str) -> dict[str, Any]:
    """The topics of a cluster with their metadata, but Kafka's own; raises Refusal: no answer."""
    owners = {stored.name[1]: stored.name[0] for stored in account.store.all(TOPIC)}
    try:
        topics = account.kafka_admin().list_topics(timeout=TIMEOUT_SECONDS).topics
    except KafkaException as error:
        raise _refusal(error, "the topics") from error
    main = account.config.cluster_id
    return {
        name: topics[name]
        for name in sorted(topics)
        if not name.startswith("__") and owners.get(name, main) == cluster
    }


def cleanup_policy(account: Account, topic: str) -> str:
    """``cleanup.policy`` of a topic; raises Refusal: there is no such topic."""
    return str(describe(account, topic)["cleanup.policy"].value)


def describe(account: Account, topic: str) -> dict[str, Any]:
    """The configuration of a topic, by names; raises Refusal: no such topic, or no answer."""
    resource, admin = ConfigResource(ResourceType.TOPIC, topic), account.kafka_admin()
    futures = admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)
    return wait(futures[resource], topic)


def delete_all(account: Account, cluster: str) -> None:
    """Delete the topics that were made through this API in a cluster; raises Refusal: no answer."""
    for topic in account.store.all(TOPIC, lambda topic: topic.name[0] == cluster):
        name = topic.name[1]
        try:
            wait(account.kafka_admin().delete_topics([name])[name], name)
        except Refusal as refusal:
            if refusal.status is not HTTPStatus.NOT_FOUND:
                raise
        requests.topic_deleted(account.config, name)
        account.store.delete(TOPIC, [topic.name])


def wait(future: Future[T], action: str) -> T:
    """:raises Refusal: the broker refuses, or does not answer"""
    try:
        return future.result(TIMEOUT_SECONDS)
    except KafkaException as error:
        raise _refusal(error, action) from error
    except TimeoutError:
        raise TopicbergError(f"Kafka does not answer ({action})") from None


def _refusal(error: Exception, resource: str) -> Exception:
    reason = error.args[0]
    if reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return unknown(resource)
    if reason.code() < 0:  # librdkafka's own: no connection, no answer in time
        return TopicbergError(f"Kafka does not answer ({resource}): {reason.str()}")
    text = f"Topic '{resource}' already exists." if reason.name() == "TOPIC_ALREADY_EXISTS" else ""
    return Refusal(HTTPStatus.BAD_REQUEST, text or reason.str(), number=40002)


def unknown(topic: str) -> Refusal:
    text = f"This server does not host this topic-partition: {topic}"
    return Refusal(HTTPStatus.NOT_FOUND, text, number=40403)
