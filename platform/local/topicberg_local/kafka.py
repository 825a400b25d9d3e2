"""Kafka: one KRaft node, broker and controller, on loopback.

Every listener asks for a login. ``OWN`` is that of topicberg's clients, ``PROXIED`` that of the
access proxy, at whose address all others connect; both log in as the superuser. ``KEYS`` is that of
clients with an API key of Confluent Cloud's emulator, which may do what access lists allow: Kafka's
own authorizer refuses everything else.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from topicberg.endpoints import Endpoints
from topicberg.errors import StackError
from topicberg_local import class_data, jars, state
from topicberg_local.answers import answers_kafka
from topicberg_local.service import (
    KAFKA_USER,
    Context,
    Service,
    check_owner,
    java,
    jvm,
    log4j,
    write_file,
)

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{kafka_controller}
listeners=OWN://127.0.0.1:{kafka_own},PROXIED://127.0.0.1:{kafka_proxied},\
KEYS://127.0.0.1:{kafka_keys},CONTROLLER://127.0.0.1:{kafka_controller}
advertised.listeners=OWN://127.0.0.1:{kafka_own},PROXIED://127.0.0.1:{kafka},\
KEYS://127.0.0.1:{confluent_kafka}
inter.broker.listener.name=OWN
controller.listener.names=CONTROLLER
listener.security.protocol.map=OWN:SASL_PLAINTEXT,PROXIED:SASL_PLAINTEXT,KEYS:SASL_PLAINTEXT,\
CONTROLLER:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
sasl.mechanism.controller.protocol=PLAIN
listener.name.own.plain.sasl.jaas.config={login}
listener.name.proxied.plain.sasl.jaas.config={login}
listener.name.controller.plain.sasl.jaas.config={login}
listener.name.keys.sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.keys.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{user}
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=8
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=8
group.initial.rebalance.delay.ms=0
log.retention.hours=168
log.segment.bytes=134217728
message.max.bytes=8388608
num.network.threads=2
num.io.threads=4
"""
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="{user}" password="{password}" user_{user}="{password}";'
)


def service(context: Context) -> Service:
    folder = context.folder("kafka")
    data = folder / "data"
    properties = write_file(folder / "server.properties", _properties(context, data))
    options = [*jvm("512m"), *log4j(folder), "-Dkafka.logs.dir=."]
    class_path = jars.class_path("kafka")

    def format_storage() -> None:
        if data.exists():
            _check(data / "meta.properties")
            return
        # Format aside, then move in one step: if this is interrupted, the next start finds all or
        # nothing.
        aside = folder / "formatting"
        shutil.rmtree(aside, ignore_errors=True)
        scratch = write_file(folder / "format.properties", _properties(context, aside))
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ["format", f"--cluster-id={cluster}", "--config", str(scratch)]
        main = [class_data.NOT_WRITTEN, "kafka.tools.StorageTool"]
        tool = java(context, "kafka", options, main, class_path)
        done = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()
            raise StackError(f"Kafka's storage could not be formatted: {reason[-1:]}")
        aside.rename(data)

    def healthy(endpoints: Endpoints) -> None:
        from confluent_kafka.admin import AdminClient

        check_owner("Kafka", context.ports["kafka_own"])
        AdminClient({**endpoints.kafka_config(), "log_level": 0}).list_topics(timeout=2)

    return Service(
        name="kafka",
        command=java(context, "kafka", options, ["kafka.Kafka", str(properties)], class_path),
        url=f"127.0.0.1:{context.ports['kafka']}",
        port=context.ports["kafka_own"],
        start_order=10,
        prepare=format_storage,
        healthy=healthy,
        answers=answers_kafka("127.0.0.1", context.ports["kafka_own"]),
    )


def _properties(context: Context, data: Path) -> str:
    password = context.credentials.kafka_password.get_secret_value()
    login = _JAAS.format(user=KAFKA_USER, password=password)
    return _PROPERTIES.format(user=KAFKA_USER, data=data, login=login, **context.ports)


def _check(meta: Path) -> None:
    """Check Kafka's storage: for a damaged one, Kafka repeats a stack trace."""
    try:
        text = meta.read_text(errors="replace")
    except FileNotFoundError:
        raise state.damaged(meta, "missing beside the records") from None
    values = dict(line.partition("=")[::2] for line in text.splitlines() if line[:1] != "#")
    if not (values.get("cluster.id") and values.get("node.id") == "1"):
        raise state.damaged(meta, "no cluster.id and node.id")
