"""Kafka: one KRaft node, broker and controller, on loopback."""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode

from topicberg.endpoints import Endpoints
from topicberg.errors import StackError
from topicberg.local import jars
from topicberg.local.service import Context, Service, java, jvm

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
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
_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def service(context: Context) -> Service:
    folder = context.folder("kafka")
    data, properties = folder / "data", folder / "server.properties"
    properties.write_text(
        _PROPERTIES.format(
            broker=context.ports["kafka"], controller=context.ports["kafka_controller"], data=data
        )
    )
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    options = [*jvm("512m"), f"-Dlog4j2.configurationFile={logging}", "-Dkafka.logs.dir=."]
    class_path = jars.class_path("kafka")

    def format_storage() -> None:
        if (data / "meta.properties").exists():
            return
        if data.exists() and any(data.iterdir()):
            raise StackError(
                f"{data} holds records but no meta.properties: it is damaged",
                hint="restore the file, or start afresh with `topicberg reset`",
            )
        tool = java(folder, options, ["kafka.tools.StorageTool"], class_path)
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ["format", "--cluster-id", cluster, "--config", str(properties)]
        done = subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise StackError(f"Kafka's storage could not be formatted: {done.stderr.strip()}")

    return Service(
        name="kafka",
        command=java(folder, options, ["kafka.Kafka", str(properties)], class_path),
        url=f"127.0.0.1:{context.ports['kafka']}",
        port=context.ports["kafka"],
        start_order=10,
        prepare=format_storage,
        healthy=_healthy,
        stop_seconds=40,
    )


def _healthy(endpoints: Endpoints) -> None:
    from confluent_kafka.admin import AdminClient

    AdminClient({**endpoints.kafka_config(), "log_level": 0}).list_topics(timeout=2)
