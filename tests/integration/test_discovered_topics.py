"""Topics that are discovered in Kafka and the registry: their specs, tables and files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewTopic
from kafka_topics import ORDER, Topic
from typer.testing import CliRunner
from waiting import wait_until

from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.errors import UnreachableError
from topicberg.kafka import topics as kafka
from topicberg.kafka.discovery import discover, list_topics
from topicberg.settings import Settings
from topicberg.topics import check_topics
from topicberg.topics.discovery import read_discovery
from topicberg.topics.spec import TopicSpec

pytestmark = pytest.mark.integration


@pytest.fixture
def mark(stack: Endpoints) -> Iterator[str]:
    """The beginning of the names of an append, a compacted and a raw topic."""
    mark, admin = f"pattern{uuid.uuid4().hex[:6]}", stack.kafka_admin()
    new = [
        NewTopic(f"{mark}.orders", 2),
        NewTopic(f"{mark}.accounts", 3, config={"cleanup.policy": "compact"}),
        NewTopic(f"{mark}.raw", 1),
        NewTopic(f"_{mark}.internal", 1),
    ]
    for future in admin.create_topics(new).values():
        future.result(30)
    for name in ("orders", "accounts"):
        spec = TopicSpec.model_validate(
            {"name": f"{mark}.{name}", "pipeline": "p", "schema": {"format": "none"}}
        )
        Topic(stack, spec).send(ORDER, [{"id": 1, "note": "a"}], key=lambda _: b"k")
    yield mark
    left = admin.list_topics(timeout=60).topics
    for future in admin.delete_topics([one.topic for one in new if one.topic in left]).values():
        future.result(30)


def test_discovered_topic_has_a_spec_and_a_table(
    stack: Endpoints, own_project: Settings, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = own_project.topics_dir / "fleet.yaml"
    pattern.write_text(f'topics: {{match: "*{mark}.*", exclude: "*.raw"}}\n')
    names = [f"{mark}.accounts", f"{mark}.orders"]
    assert discover(stack, own_project) == (names, [])
    (accounts, orders), problems = check_topics(own_project)
    assert problems == []
    assert (accounts.write_mode, accounts.partitions) == ("upsert", 3)
    assert (orders.write_mode, orders.partitions) == ("append", 2)
    assert orders.columns(own_project)["note"] == "string"
    topic = Topic(stack, orders, own_project)
    assert (topic.ingest(), topic.rows("id", "note")) == (1, [{"id": 1, "note": "a"}])
    # A broker that does not answer changes nothing.
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 1.0)
    silent = stack.model_copy(update={"kafka_bootstrap": "127.0.0.1:1"})
    with pytest.raises(UnreachableError, match="does not list its topics"):
        discover(silent, own_project)
    assert read_discovery(own_project).topics.keys() == set(names)
    monkeypatch.undo()
    admin = stack.kafka_admin()
    admin.delete_topics([orders.name])[orders.name].result(30)
    wait_until(lambda: orders.name not in list_topics(stack))  # the broker lists it for a moment
    assert discover(stack, own_project) == ([], [orders.name])
    assert [spec.name for spec in check_topics(own_project)[0]] == [accounts.name]


def test_new_writes_a_spec_for_each_topic_of_kafka(
    stack: Endpoints, own_project: Settings, mark: str
) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["topics", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    shown = run("new", "--from-kafka", f"*{mark}*", "--pipeline", "shop")
    assert "2 specs written, 1 topic left out" in shown
    assert f"{mark}.raw: no spec was written: the registry has no subject" in shown
    accounts, orders = check_topics(own_project)[0]
    assert (accounts.write_mode, accounts.partitions, accounts.pipeline) == ("upsert", 3, "shop")
    assert (orders.write_mode, orders.partitions) == ("append", 2)
    assert (accounts.external, orders.external) == (True, True)
    assert [spec.tableflow.enabled for spec in (accounts, orders)] == [False, False]
    assert orders.columns(own_project)["note"] == "string"
    shown = run("new", "--from-kafka", f"*{mark}*")
    assert f"{mark}.orders: has a spec" in shown
    for path in own_project.topics_dir.iterdir():
        path.unlink()
    shown = run("new", "--from-kafka", f"{mark}.*", "--as-pattern", "shop")
    assert f"{mark}.accounts: found" in shown
    assert f"topic {mark}.raw: the registry has no subject {mark}.raw-value" in shown
    assert {spec.pipeline for spec in check_topics(own_project)[0]} == {"shop"}
    assert not any(spec.tableflow.enabled for spec in check_topics(own_project)[0])
