"""What the service accounts of a deployment may do over Kafka's protocol, with their API keys.

``topicberg deploy`` creates accounts, keys and access lists in Confluent Cloud's emulator, and the
local broker enforces them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from conftest import KillService
from waiting import wait_until

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import first_messages, messages
from topicberg.kafka.fetch import _ClientFetcher, fetcher
from topicberg.kafka.records import READER, Records
from topicberg.kafka.transactions import newest_states, transactional_producer
from topicberg.logins.kafka import KafkaLogin
from topicberg.settings import settings
from topicberg.topics import load_topic
from topicberg.transforms.publish import STATE_TOPIC
from topicberg_deploy import engine
from topicberg_deploy.confluent.kafka import Acl
from topicberg_deploy.context import CLUSTER, ENVIRONMENT, REGISTRY, DeployContext, open_context
from topicberg_deploy.platform import CONNECTOR_ACL, binding, resources
from topicberg_deploy.resource import Resource

pytestmark = pytest.mark.integration
TOPIC = "rights_orders"
READER_ACLS = ("confluent/acl/reader_cluster", "confluent/acl/reader_topics")
"""Of who plans a deployment, not of who runs topicberg."""
KEPT = (
    *(ENVIRONMENT, CLUSTER, REGISTRY, binding("cluster_admin"), f"confluent/topic/{TOPIC}"),
    *("confluent/service_account/", "key/kafka_"),
)


class Deployment:
    """The part of a deployment that Kafka's clients need, and those clients."""

    def __init__(self, stack: Endpoints) -> None:
        self.context = open_context(settings())
        spec = load_topic("stock_trades").model_copy(update={"name": TOPIC, "generator": None})
        self.context.specs = [spec]
        every = resources(self.context.config, self.context.specs)
        self.acls = {
            one.key.removeprefix("confluent/acl/"): one
            for one in every
            if isinstance(one, Acl) and one.key not in (CONNECTOR_ACL, *READER_ACLS)
        }
        self.graph: list[Resource] = [
            *(one for one in every if one.key.startswith(KEPT)),
            *self.acls.values(),
        ]
        engine.create(self.graph, self.context, lambda *_: None)
        login = KafkaLogin(auth="plain", security_protocol="SASL_PLAINTEXT")
        keys = {
            role: self.context.confluent.active_key(f"key/kafka_{role}")
            for role in ("app_consumer", "app_producer", "app_manager")
        }
        logins = {
            role: login.as_user(key.id, key.secret.get_secret_value()) for role, key in keys.items()
        }
        self.bootstrap = str(self.context.need(CLUSTER).facts["bootstrap"])
        self.endpoints = stack.model_copy(
            update={
                "kafka_own": None,
                "kafka_bootstrap": self.bootstrap,
                "kafka_login": logins["app_consumer"],
                "kafka_writer": logins["app_producer"],
            }
        )
        self.engine = self.endpoints.model_copy(
            update={"kafka_login": logins["app_manager"], "kafka_writer": None}
        )

    def delete(self) -> None:
        context: DeployContext = open_context(settings())
        context.purge_secrets = True
        found = engine.existing(self.graph, context, lambda *_: None)
        assert engine.delete(found, context, lambda *_: None) == {}


@pytest.fixture(scope="module")
def deployment(stack: Endpoints) -> Iterator[Deployment]:
    deployment = Deployment(stack)
    # Access lists take effect shortly after they are created.
    wait_until(lambda: _outcome(_create_state_topic, deployment.endpoints) is None)
    yield deployment
    deployment.delete()


def _commit_offset(endpoints: Endpoints, group: str) -> None:
    """Commit as a consumer of the group does, without its wait for a coordinator."""
    offset = TopicPartition(TOPIC, 0, 1)
    admin = AdminClient({**endpoints.kafka_config(), "log_level": 0})
    committed = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [offset])])
    (partition,) = committed[group].result(20).topic_partitions
    if partition.error is not None:
        raise KafkaException(partition.error)


def _send(endpoints: Endpoints, topic: str) -> None:
    errors: list[Any] = []
    producer = Producer({**endpoints.kafka_config(writes=True), "log_level": 0})
    producer.produce(topic, b"{}", b"key", on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    if errors[0] is not None:
        raise KafkaException(errors[0])


def _read_arrays(endpoints: Endpoints, *, is_compiled: bool = True) -> None:
    config, ranges = {**endpoints.kafka_config(), **READER}, {0: (0, 1)}
    reader = (
        fetcher(config, TOPIC, ranges) if is_compiled else _ClientFetcher(config, TOPIC, ranges)
    )
    with reader:
        for _ in reader.fill(Records(10, 1_000)):
            pass


def _read_by_client(endpoints: Endpoints) -> None:
    _read_arrays(endpoints, is_compiled=False)


def _read_messages(endpoints: Endpoints) -> None:
    list(messages(endpoints, TOPIC, {0: (0, 1)}))


def _begin_transaction(endpoints: Endpoints) -> None:
    transactional_producer(f"topicberg-{uuid.uuid4().hex}", endpoints, 10, log_level=0)


def _create_own_topic(endpoints: Endpoints) -> None:
    kafka.ensure_internal_topic(f"topicberg.{uuid.uuid4().hex}", endpoints)


def _create_state_topic(endpoints: Endpoints) -> None:
    kafka.ensure_internal_topic(STATE_TOPIC, endpoints)


NEEDS: dict[str, Callable[[Endpoints], object]] = {
    "consumer_group": lambda endpoints: _commit_offset(endpoints, f"{settings().prefix}-readers"),
    "own_group": lambda endpoints: _commit_offset(endpoints, "topicberg"),
    "own_topics_read": lambda endpoints: newest_states(endpoints, STATE_TOPIC, 20),
    "own_topics_create": _create_own_topic,
    "own_topics_write": lambda endpoints: _send(endpoints, STATE_TOPIC),
    "own_transactions": _begin_transaction,
    "topic_configs": lambda endpoints: kafka.topic_config(endpoints, TOPIC),
    f"{TOPIC}_app_producer": lambda endpoints: _send(endpoints, TOPIC),
    f"{TOPIC}_app_consumer": lambda endpoints: kafka.end_offsets(endpoints, TOPIC),
}
"""Access list → what topicberg, or a client with the key, does that needs it."""
REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def _code(error: BaseException | None) -> int | None:
    """Return the code of Kafka's error that caused this one."""
    while error is not None and not isinstance(error, KafkaException):
        error = error.__cause__
    return error.args[0].code() if error else None


def _outcome(use: Callable[[Endpoints], object], endpoints: Endpoints) -> int | None:
    """Return the code with which Kafka refuses it; None: it does not."""
    try:
        use(endpoints)
    except (KafkaException, TopicbergError) as error:
        if (code := _code(error)) in REFUSED:
            return code
        raise
    return None


def test_deployed_accounts_can_do_what_topicberg_does(deployment: Deployment) -> None:
    assert deployment.acls.keys() == NEEDS.keys()
    for use in NEEDS.values():
        wait_until(lambda use=use: _outcome(use, deployment.endpoints) is None)  # type: ignore[misc]


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_dropped_access_list_refuses_what_needs_it(deployment: Deployment, name: str) -> None:
    acl, use = deployment.acls[name], NEEDS[name]
    wait_until(lambda: _outcome(use, deployment.endpoints) is None)
    acl.delete(deployment.context, deployment.context.need(acl.key))
    try:
        wait_until(lambda: _outcome(use, deployment.endpoints) in REFUSED)
    finally:
        acl.create(deployment.context)
    wait_until(lambda: _outcome(use, deployment.endpoints) is None)


def test_read_of_a_topic_that_may_not_be_seen_is_refused(deployment: Deployment) -> None:
    """As a right that is dropped between two requests of a read: the client reports nothing."""
    acl, endpoints = deployment.acls[f"{TOPIC}_app_consumer"], deployment.endpoints
    acl.delete(deployment.context, deployment.context.need(acl.key))
    try:
        wait_until(lambda: _outcome(NEEDS[f"{TOPIC}_app_consumer"], endpoints) in REFUSED)
        assert _outcome(lambda given: list(messages(given, TOPIC, {0: (0, 1)}, 3)), endpoints)
        assert _outcome(lambda at: first_messages(at, TOPIC, {0: 0}, is_needed=True), endpoints)
    finally:
        acl.create(deployment.context)


def test_account_without_access_lists_is_refused(deployment: Deployment) -> None:
    """The reader may not write, the writer may not read, and neither may delete the topic."""
    swapped = deployment.endpoints.model_copy(
        update={
            "kafka_login": deployment.endpoints.kafka_writer,
            "kafka_writer": deployment.endpoints.kafka_login,
        }
    )
    assert _outcome(lambda given: _send(given, TOPIC), swapped) in REFUSED
    assert _outcome(lambda given: _commit_offset(given, "topicberg"), swapped) in REFUSED
    for read in (_read_arrays, _read_by_client, _read_messages):
        assert _outcome(read, swapped) in REFUSED
    for writes in (False, True):
        admin = AdminClient(deployment.endpoints.kafka_config(writes=writes))
        with pytest.raises(KafkaException) as refused:
            admin.delete_topics([TOPIC])[TOPIC].result(20)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_cluster_admin_of_the_engine_may_do_everything(deployment: Deployment) -> None:
    """The engine creates topics with names of its choice, and has a role instead of lists."""
    topic = f"rights-{uuid.uuid4().hex}"
    wait_until(
        lambda: _outcome(lambda given: kafka.topic_config(given, TOPIC), deployment.engine) is None
    )
    kafka.ensure_internal_topic(topic, deployment.engine)
    kafka.await_topic(deployment.engine, topic)
    _send(deployment.engine, topic)
    assert kafka.end_offsets(deployment.engine, topic) == {0: 1}
    admin = AdminClient(deployment.engine.kafka_config())
    admin.delete_topics([topic])[topic].result(20)


def test_keys_open_kafka_after_the_emulator_was_killed(
    deployment: Deployment, kill_service: KillService
) -> None:
    kill_service("confluent")
    assert _outcome(lambda given: _send(given, TOPIC), deployment.endpoints) is None


def test_wrong_key_is_refused_as_a_failed_login(deployment: Deployment) -> None:
    wrong = deployment.endpoints.kafka_login.as_user("UNKNOWN", "secret")
    errors: list[KafkaError] = []
    config = {"bootstrap.servers": deployment.bootstrap, **wrong.librdkafka(), "log_level": 0}
    client = AdminClient(config | {"error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    client.poll(1)
    assert KafkaError._AUTHENTICATION in {error.code() for error in errors}
