"""Topics are created as their spec defines, and generators deliver exactly what is requested."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.schema_registry.avro import AvroDeserializer
from project_copy import add_code
from waiting import wait_until

from topicberg.endpoints import Endpoints
from topicberg.errors import SpecError, TopicbergError
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings, settings
from topicberg.topics import TopicSpec, load_topic, requests
from topicberg.topics.new import new_topic
from topicberg_local.datagen import runner
from topicberg_local.datagen.producer import DeliveryError, GeneratorRun
from topicberg_local.datagen.status import read_status

pytestmark = [pytest.mark.integration, pytest.mark.project]

RECORDS = 5_000


@pytest.fixture
def topic(stack: Endpoints) -> Iterator[str]:
    """A name of its own, deleted in the end."""
    name = f"trades-{uuid.uuid4().hex[:8]}"
    yield name
    admin = stack.kafka_admin()
    admin.delete_topics([name])[name].exception(30)
    for subject in stack.schema_registry_client().get_subjects():
        if subject.startswith(f"{name}-"):
            stack.schema_registry_client().delete_subject(subject)


@pytest.fixture
def config(tmp_path: Path, topic: str) -> Settings:
    """The stack's state, with topic specs of its own: one like stock_trades."""
    own = Settings(project_root=tmp_path, state_dir=settings().state_dir)
    add_code(tmp_path)
    shutil.copytree(settings().schemas_dir, own.schemas_dir)
    own.topics_dir.mkdir(parents=True)
    document = yaml.safe_load((settings().topics_dir / "stock_trades.yaml").read_text())
    (own.topics_dir / f"{topic}.yaml").write_text(yaml.safe_dump({**document, "name": topic}))
    return own


@pytest.fixture
def spec(topic: str, config: Settings) -> TopicSpec:
    return load_topic(topic, config)


def changed(spec: TopicSpec, **fields: Any) -> TopicSpec:
    return TopicSpec.model_validate({**spec.model_dump(by_alias=True), **fields})


def read_all(stack: Endpoints, topic: str) -> list[Message]:
    """Every record of the topic, partition by partition."""
    ends = kafka.end_offsets(stack, topic)
    consumer = Consumer(
        {**stack.kafka_config(), "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
    messages: list[Message] = []
    deadline = time.monotonic() + 30
    while len(messages) < sum(ends.values()) and time.monotonic() < deadline:
        messages += consumer.consume(10_000, timeout=1)
    consumer.close()
    return messages


# --- topics ---


def test_ensure_topic_is_idempotent(stack: Endpoints, spec: TopicSpec, config: Settings) -> None:
    first, again = kafka.ensure_topic(spec, stack, config), kafka.ensure_topic(spec, stack, config)
    assert (first.created, again.created) == (True, False)
    assert first.partitions == again.partitions == 6
    assert first.value_schema_id == again.value_schema_id is not None
    assert first.key_schema_id is None
    assert stack.schema_registry_client().get_versions(spec.value_subject) == [1]
    assert kafka.end_offsets(stack, spec.name) == dict.fromkeys(range(6), 0)
    assert kafka.beginning_offsets(stack, spec.name) == dict.fromkeys(range(6), 0)


def test_what_deploy_deleted_is_created_only_for_a_user(
    stack: Endpoints, spec: TopicSpec, config: Settings
) -> None:
    requests.topic_deleted(config, spec.name)
    try:
        for create in (kafka.ensure_topic, kafka.create_topic):
            with pytest.raises(kafka.TopicDeletedError, match="was deleted by") as caught:
                create(spec, stack, config)
            assert "deploy create" in (caught.value.hint or "")
        assert spec.name not in stack.kafka_admin().list_topics(timeout=60).topics
        assert kafka.ensure_topic(spec, stack, config, recreate=True).created
        request = requests.read_request(config, spec.name)
        assert request is not None
        assert not request.deleted
        assert not kafka.ensure_topic(spec, stack, config).created
    finally:
        requests.topic_created(config, spec.name)


def test_partitions_are_added_by_a_command_and_never_taken_away(
    stack: Endpoints, spec: TopicSpec, config: Settings
) -> None:
    kafka.ensure_topic(changed(spec, partitions=2), stack, config)
    more = changed(spec, partitions=3)
    assert kafka.ensure_topic(more, stack, config).partitions == 2
    assert len(kafka.end_offsets(stack, spec.name)) == 2
    assert kafka.growth(more, stack) == 1
    kafka.grow_topic(more, stack)
    kafka.grow_topic(more, stack)
    assert kafka.ensure_topic(more, stack, config).partitions == 3
    with pytest.raises(kafka.TopicDriftError, match="has 3 partitions, its spec has 1"):
        kafka.ensure_topic(changed(spec, partitions=1), stack, config)
    assert len(kafka.end_offsets(stack, spec.name)) == 3


def test_upsert_topics_are_compacted_and_keep_their_partitions(
    stack: Endpoints, spec: TopicSpec, config: Settings
) -> None:
    upsert = changed(spec, write_mode="upsert", partitions=2)
    kafka.ensure_topic(upsert, stack, config)
    for change in (
        lambda: kafka.ensure_topic(changed(upsert, partitions=3), stack, config),
        lambda: kafka.grow_topic(changed(upsert, partitions=3), stack),
    ):
        with pytest.raises(kafka.TopicDriftError, match="move the keys"):
            change()
    with pytest.raises(kafka.TopicDriftError, match=r"cleanup\.policy compact, .* needs delete"):
        kafka.ensure_topic(changed(spec, partitions=3), stack, config)
    assert len(kafka.end_offsets(stack, spec.name)) == 2


def test_topic_config_is_set_and_changed_in_place(
    stack: Endpoints, spec: TopicSpec, config: Settings
) -> None:
    def found() -> tuple[str | None, str | None]:
        values = kafka.topic_config(stack, spec.name)
        return values["retention.ms"], values["segment.ms"]

    kafka.ensure_topic(changed(spec, topic_config={"retention.ms": "86400000"}), stack, config)
    default = found()[1]
    assert found() == ("86400000", default)
    kafka.ensure_topic(changed(spec, topic_config={"segment.ms": "3600000"}), stack, config)
    # The broker learns of it after the controller has answered.
    wait_until(lambda: found() == ("86400000", "3600000"))


def test_a_schema_that_is_not_compatible_is_refused(
    stack: Endpoints, spec: TopicSpec, config: Settings
) -> None:
    kafka.ensure_topic(spec, stack, config)
    path = spec.schema_path("value", config)
    schema = json.loads(path.read_text())
    schema["fields"].append({"name": "venue", "type": "string"})
    path.write_text(json.dumps(schema))
    with pytest.raises(TopicbergError, match=f"refused the schema of {spec.value_subject}"):
        kafka.ensure_topic(spec, stack, config)
    schema["fields"][-1]["default"] = "unknown"
    path.write_text(json.dumps(schema))
    kafka.ensure_topic(spec, stack, config)
    assert stack.schema_registry_client().get_versions(spec.value_subject) == [1, 2]


def test_key_schemas_are_registered(stack: Endpoints, spec: TopicSpec, config: Settings) -> None:
    path, fields = config.schemas_dir / "key.avsc", [{"name": "symbol", "type": "string"}]
    path.write_text(json.dumps({"type": "record", "name": "Key", "fields": fields}))
    keyed = changed(spec, key={"format": "avro", "file": "key.avsc"}, generator=None)
    assert kafka.ensure_topic(keyed, stack, config).key_schema_id is not None
    assert stack.schema_registry_client().get_versions(spec.key_subject) == [1]


def test_unknown_topics_and_silent_services(stack: Endpoints, spec: TopicSpec) -> None:
    for ask in (kafka.end_offsets, kafka.beginning_offsets, kafka.topic_id):
        with pytest.raises(kafka.NoSuchTopicError, match="does not exist"):
            ask(stack, "no-such-topic")
    no_registry = stack.model_copy(update={"schema_registry": "http://127.0.0.1:9/x"})
    with pytest.raises(TopicbergError, match="registry does not answer"):
        kafka.ensure_topic(changed(spec, partitions=1), no_registry, settings())


# --- generators ---


def test_exactly_the_count_in_datagens_form(
    stack: Endpoints, spec: TopicSpec, config: Settings
) -> None:
    run = GeneratorRun(spec, stack, config, rate=0, count=RECORDS, seed=3, first_iteration=10)
    sent = list[int]()
    run.run(sent.append)
    assert sent[-1] == RECORDS
    messages = read_all(stack, spec.name)
    assert len(messages) == RECORDS
    assert sum(kafka.end_offsets(stack, spec.name).values()) == RECORDS
    deserialize, iterations = AvroDeserializer(stack.schema_registry_client()), set()
    partition_of: dict[bytes, set[int]] = {}
    for message in messages:
        trade = deserialize(message.value(), None)
        assert message.key() == trade["symbol"].encode()
        assert 1 <= trade["quantity"] <= 5000
        assert 5 <= trade["price"] <= 1000
        headers = dict(message.headers() or [])
        assert headers["task.generation"] == headers["task.id"] == b"0"
        iterations.add(int(headers["current.iteration"] or b"-1"))
        partition_of.setdefault(message.key() or b"", set()).add(message.partition() or 0)
    assert iterations == set(range(10, 10 + RECORDS))
    assert len(partition_of) == 7
    assert all(len(partitions) == 1 for partitions in partition_of.values())


def test_a_record_that_kafka_does_not_take_is_an_error(
    stack: Endpoints, spec: TopicSpec, config: Settings
) -> None:
    kafka.ensure_topic(spec, stack, config)
    resource = ConfigResource(ResourceType.TOPIC, spec.name)
    entry = ConfigEntry("max.message.bytes", "20", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(entry)
    admin = stack.kafka_admin()
    admin.incremental_alter_configs([resource])[resource].result(30)
    run = GeneratorRun(spec, stack, config, rate=0, count=100, seed=3)
    with pytest.raises(DeliveryError, match="refused a record"):
        run.run(lambda sent: None)


def test_background_generator(stack: Endpoints, spec: TopicSpec, config: Settings) -> None:
    """Started, refused a second time, stopped; started again, killed; started again, finished."""
    first = runner.start(config, spec.name, rate=200)
    assert first.state == "running"
    with pytest.raises(runner.DatagenError, match=f"running already .pid {first.pid}"):
        runner.start(config, spec.name)
    with pytest.raises(runner.DatagenError, match="running already"):
        runner.run_here(config, spec.name)
    wait_until(lambda: sum(kafka.end_offsets(stack, spec.name).values()) > 0)
    stopped = runner.stop(config, spec.name)
    assert stopped.state == "stopped"
    assert stopped.sent == sum(kafka.end_offsets(stack, spec.name).values()) > 0
    with pytest.raises(runner.DatagenError, match="the last one stopped"):
        runner.stop(config, spec.name)

    second = runner.start(config, spec.name, rate=10)
    assert (second.generation, second.first_iteration) == (1, stopped.sent)
    psutil.Process(second.pid).kill()
    wait_until(lambda: (status := read_status(config, spec.name)) and status.state == "killed")

    third, deadline = runner.start(config, spec.name, rate=0, count=2000), time.monotonic() + 240
    while (status := read_status(config, spec.name)) and status.state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (third.generation, status.state, status.sent) == (2, "finished", 2000)
    log = runner.log_file(config, spec.name)
    while "finished after 2000 records" not in log.read_text():  # its last words follow its status
        assert time.monotonic() < deadline
        time.sleep(0.1)
    bodies = {message.value() for message in read_all(stack, spec.name)}
    assert len(bodies) > 0.9 * sum(kafka.end_offsets(stack, spec.name).values())


def test_stop_all(stack: Endpoints, spec: TopicSpec, config: Settings) -> None:
    runner.start(config, spec.name, rate=10)
    assert [status.topic for status in runner.stop_all(config)] == [spec.name]
    assert runner.stop_all(config) == []


def test_failed_start_reports_the_reason(
    stack: Endpoints, spec: TopicSpec, config: Settings
) -> None:
    kafka.ensure_topic(changed(spec, partitions=7), stack, config)
    with pytest.raises(runner.DatagenError, match="has 7 partitions, its spec has 6"):
        runner.start(config, spec.name)
    assert read_status(config, spec.name).state == "failed"


def test_a_spec_from_a_subject(stack: Endpoints, spec: TopicSpec, config: Settings) -> None:
    kafka.ensure_topic(spec, stack, config)
    name, registry = f"new-{spec.name}", stack.schema_registry_client()
    written, schema_file = new_topic(name, spec.value_subject, "shop", registry, config)
    made = load_topic(name, config)
    assert (made.name, made.pipeline, made.value_schema.format) == (name, "shop", "avro")
    assert made.value_subject == spec.value_subject
    columns = made.columns(config)
    assert columns == {**spec.columns(config), "key": columns["key"]}  # no format says it is text
    assert {written.name, schema_file.name} == {f"{name}.yaml", f"{name}.avsc"}
    with pytest.raises(SpecError, match="exists already"):
        new_topic(name, spec.value_subject, "shop", registry, config)
    with pytest.raises(TopicbergError, match="nothing-value"):
        new_topic("nothing", "nothing-value", "shop", registry, config)
    with pytest.raises(SpecError, match="pipeline"):
        new_topic("other", spec.value_subject, "Not a group", registry, config)
    assert not (config.topics_dir / "other.yaml").exists()
