"""The engine's process: keys that are replaced, what does not answer, tables that it maintains."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from clocks import Clock
from pydantic import SecretStr

from topicberg.checks.topic import check_engine
from topicberg.endpoints import Endpoints, SnowflakeEndpoint, runtime_file
from topicberg.errors import TopicbergError, UnreachableError
from topicberg.kafka.group import GroupMember
from topicberg.logins.kafka import KafkaLogin
from topicberg.settings import Settings
from topicberg.tableflow.service import maintenance_scheduler, service, status
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.tableflow.service.status import PENDING_SECONDS, Unavailable, read_status
from topicberg.topics import TopicSpec, load_topic


def endpoints(key: str) -> Endpoints:
    return Endpoints(
        kafka_bootstrap="127.0.0.1:1",
        kafka_login=KafkaLogin(api_key=key, api_secret=SecretStr("secret")),
        schema_registry="http://127.0.0.1:1",
        iceberg_rest="http://127.0.0.1:1",
        spark_connect="sc://127.0.0.1:1",
        snowflake=SnowflakeEndpoint(account="a", user="u", password=SecretStr("p")),
    )


@pytest.mark.parametrize("is_stopped", [False, True])
def test_engine_starts_again_with_the_key_of_a_rotation_unless_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """A deployment in the cloud whose keys are read without a pause, beside no other engine."""
    keys, stopping = iter(["old", "old", None, "new"]), threading.Event()

    def load(_: Settings) -> Endpoints:
        if (key := next(keys)) is None:
            raise TopicbergError("no answer")
        if key == "new" and is_stopped:
            stopping.set()
        return endpoints(key)

    monkeypatch.setattr(service, "load_endpoints", load)
    monkeypatch.setattr(service, "LOGINS_SECONDS", 0.0)
    monkeypatch.setattr(GroupMember, "start", lambda _: None)
    monkeypatch.setattr(GroupMember, "stop", lambda _: None)
    (tmp_path / "topics").mkdir(parents=True)
    config = Settings(
        deployment="cloud",
        project_root=tmp_path,
        state_dir=tmp_path / "state",
        cluster_id="lkc-1",
        bucket="bucket",
    )
    assert service.serve(config, stopping) is not is_stopped
    assert next(keys, "all were read") == "all were read"


def test_engine_that_cannot_listen_does_not_join_the_others(tmp_path: Path) -> None:
    config, found = Settings(state_dir=tmp_path), endpoints("key").model_dump(mode="json")
    runtime_file(config).write_text(json.dumps({"endpoints": found}))
    threads = {*threading.enumerate()}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TopicbergError, match=f"port {port}: Address already in use"):
            service.serve(config, threading.Event(), port)
    assert {*threading.enumerate()} == threads


@pytest.fixture
def topics(tmp_path: Path) -> tuple[Settings, dict[str, TopicSpec]]:
    config = Settings(state_dir=tmp_path)
    names = ("stock_trades", "sample_data_users")
    return config, {name: load_topic(name, config) for name in names}


def statuses(config: Settings, names: Iterable[str]) -> list[tuple[str, str | None]]:
    found = [read_status(config, name) for name in names]
    return [(status.phase, status.error_message) for status in found]


def test_engine_that_has_no_topics_yet_says_what_does_not_answer(
    topics: tuple[Settings, dict[str, TopicSpec]],
) -> None:
    """Kafka stopped before the engine knew which topics are its own."""
    config, specs = topics
    share = service._Share(endpoints("key"), config)
    share.converge(specs)
    assert statuses(config, specs) == [("PENDING", None)] * 2
    share.pool.miss(Unavailable("Kafka does not answer", 1), None)
    share.converge(specs)
    assert statuses(config, specs) == [("FAILED", "Kafka does not answer")] * 2
    share.member._set(frozenset(range(100)))
    share.converge(specs)  # Kafka answers the group, and nothing else yet
    assert share.pool.queue.topics.keys() == specs.keys()
    assert statuses(config, specs) == [("FAILED", "Kafka does not answer")] * 2
    share.pool.miss(None, None)
    assert statuses(config, specs) == [("PENDING", None)] * 2


def test_file_of_a_topic_that_cannot_be_read_or_removed_stops_no_other(
    topics: tuple[Settings, dict[str, TopicSpec]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, specs = topics
    first = min(specs)
    place = status.status_file(config, first)
    place.mkdir(parents=True)  # a file of another user cannot be read either
    message = read_status(config, first).error_message or ""
    assert f"{place} cannot be read: Is a directory\n  → remove it" in message
    assert not check_engine(specs[first], read_status(config, first), datetime.now(UTC)).passed
    assert status.reported_snapshot(config, first) is None
    share = service._Share(endpoints("key"), config)
    share.member._set(frozenset(range(100)))
    monkeypatch.setattr(share.pool.queue, "put", Mock(side_effect=[OSError, None]))
    share.converge(specs)
    monkeypatch.undo()
    share.converge(specs)
    assert share.pool.queue.topics.keys() == specs.keys(), "it is tried again"
    share.converge({})
    assert not share.pool.queue.topics


def test_engine_that_has_no_topics_for_long_has_failed(
    topics: tuple[Settings, dict[str, TopicSpec]], clock: Clock
) -> None:
    config, specs = topics
    share = service._Share(endpoints("key"), config)
    share.member.error = UnreachableError("no group")
    share.converge(specs)
    assert statuses(config, specs) == [("PENDING", "no group")] * 2
    clock.now += PENDING_SECONDS
    share.converge(specs)
    assert statuses(config, specs) == [("FAILED", "no group")] * 2


def test_topic_of_a_changed_spec_still_misses_a_service(
    topics: tuple[Settings, dict[str, TopicSpec]],
) -> None:
    config, specs = topics
    share = service._Share(endpoints("key"), config)
    share.member._set(frozenset(range(100)))
    share.converge(specs)
    share.pool.miss(Unavailable("Kafka does not answer", 1), None)
    share.converge(
        {name: spec.model_copy(update={"pipeline": "changed"}) for name, spec in specs.items()}
    )
    assert statuses(config, specs) == [("FAILED", "Kafka does not answer")] * 2


def test_keeper_inspects_tables_that_change_most_often(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path
) -> None:
    config, nothing = Settings(state_dir=tmp_path), cast("Any", None)
    topic = Ingestion(load_topic("stock_trades", config), nothing, config, nothing)
    report = SimpleNamespace(changed=False)
    runs: list[float] = []

    def maintain(*_: object) -> Any:
        runs.append(clock.now)
        return report

    monkeypatch.setattr(maintenance_scheduler, "maintain", maintain)
    one = maintenance_scheduler.MaintenanceScheduler(nothing, config, nothing, threading.Event())

    def minutes(number: int) -> list[float]:
        """Return in which of the next minutes the table was maintained."""
        runs.clear()
        began = clock.now
        for _ in range(number):
            clock.now += 60.0
            one._maintain(topic)
        return [(at - began) / 60 for at in runs]

    assert minutes(40) == [1, 16, 31]
    topic.report.status = topic.report.status.model_copy(update={"snapshot_id": 7})
    assert minutes(200) == [1, 16, 31, 46, 106, 166]
    report.changed = True
    topic.report.status = topic.report.status.model_copy(update={"snapshot_id": 8})
    assert minutes(3) == [1, 2, 3]
    report.changed = False
    assert minutes(20) == [1, 16]


def test_keeper_maintains_several_tables_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two tables that wait for each other are both maintained, and each of all tables once."""
    config, nothing = Settings(state_dir=tmp_path, engine_workers=8), cast("Any", None)
    spec = load_topic("stock_trades", config)
    specs = [spec.model_copy(update={"name": f"topic_{number}"}) for number in range(6)]
    topics = {each.name: Ingestion(each, nothing, config, nothing) for each in specs}
    pair, done, ended = threading.Barrier(2, timeout=30), list[str](), threading.Event()

    def maintain(spec: Any, *_: object) -> Any:
        pair.wait()
        done.append(spec.name)
        if len(done) == len(topics):
            ended.set()
        return SimpleNamespace(changed=False)

    monkeypatch.setattr(maintenance_scheduler, "maintain", maintain)
    monkeypatch.setattr(maintenance_scheduler, "PAUSE_SECONDS", 0.0)
    maintenance_scheduler.MaintenanceScheduler(
        nothing, config, cast("Any", SimpleNamespace(topics=topics)), ended
    ).run()
    assert sorted(done) == sorted(topics)
