"""A real Kafka whose partitions are put back: each topic suspends, whatever its new end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from lone_kafka import LoneKafka, lone_kafka
from memory_topic import MemoryTopic, mock_registry

from topicberg.kafka import topics as kafka
from topicberg.kafka.consumer import find_records
from topicberg.tableflow.service.ingestion import Ingestion
from topicberg.tableflow.values.commit import committed
from topicberg.tableflow.values.compiling import wait_ready
from topicberg.topics import TopicSpec

pytestmark = pytest.mark.slow
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"}


class Site:
    """One topic, its table and its engine."""

    def __init__(self, broker: LoneKafka, folder: Path, name: str, mode: str = "append") -> None:
        client: dict[str, Any] = {"bootstrap.servers": broker.address, "log_level": 0}
        (folder / name).mkdir()
        given: dict[str, Any] = {"name": name, "pipeline": "shop", "schema": {"format": "text"}}
        spec = TopicSpec.model_validate({**given, "external": True, "write_mode": mode})
        self.topic = MemoryTopic(spec, folder / name, mock_registry(folder / name))
        vars(self.topic.endpoints).update(
            kafka_config=lambda **_: client,
            kafka_bootstrap=broker.address,
            kafka_listener=lambda: (broker.address, None),
        )
        self.client, self.name = client, name
        config = COMPACTED if mode == "upsert" else {}
        admin = AdminClient(client)
        admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result()
        self.restart()

    def restart(self) -> None:
        unused: Any = None
        self.engine = Ingestion(self.topic.spec, self.topic.endpoints, self.topic.config, unused)

    def produce(self, start: int, end: int, tag: str, **config: str) -> None:
        producer = Producer({**self.client, **config})
        if config:
            producer.init_transactions()
            producer.begin_transaction()
        for number in range(start, end):
            producer.produce(self.name, f"{tag}{number}", str(number))
        producer.flush()
        if tag == "aborted":
            producer.abort_transaction()
        elif config:
            producer.commit_transaction()

    @property
    def end(self) -> int:
        return kafka.end_offsets(self.topic.endpoints, self.name)[0]

    def turn(self) -> str:
        for _ in range(20):  # a broker that has just started has no leaders yet
            self.engine.turn()
            if self.engine.report.status.shown_phase in ("RUNNING", "SUSPENDED"):
                break
        return self.engine.report.status.shown_phase

    def values(self) -> set[str]:
        values = [row["value"] for row in self.topic.rows()]
        assert len(values) == len(set(values))
        return set(values)


def test_partition_that_is_put_back_suspends_its_topic(tmp_path: Path) -> None:
    wait_ready()
    with lone_kafka(tmp_path / "kafka") as broker:
        ends = {"append60": 60, "append100": 100, "append140": 140, "upsert100": 100}
        ends["upsert140"] = 140
        sites = [Site(broker, tmp_path, name, name.rstrip("0164")) for name in ends]
        ordered = Site(broker, tmp_path, "transactions")
        for one in sites:
            one.produce(0, 60, "old")
        broker.process.stop()
        copies = {one: broker.copy(f"{one.name}-0", f"copy-{one.name}") for one in sites}
        broker.process.start()
        for one in sites:
            one.produce(60, 100, "old")
            assert one.turn() == "RUNNING"
            assert len(one.values()) == 100
        ordered.produce(0, 5, "kept", **{"transactional.id": "t"})
        ordered.produce(5, 9, "aborted", **{"transactional.id": "t"})
        assert ordered.turn() == "RUNNING"
        broker.process.stop()
        for one, copied in copies.items():
            broker.put_back(f"{one.name}-0", copied)
        broker.process.start()
        for one in sites:
            one.produce(60, ends[one.name], "new")
            for _ in range(2):  # with the engine that saw the former log, and with another one
                assert one.turn() == "SUSPENDED", one.name
                message = str(one.engine.report.status.error_message)
                found = "ends at 60" if one.end == 60 else "another record at offset 99"
                assert found in message
                assert f"tableflow disable {one.name} --drop-table" in message
                one.restart()
            assert len(one.values()) == 100
            one.produce(ends[one.name], 150, "new")
            assert one.turn() == "SUSPENDED", "the log has grown"
        for restarts in (False, True):
            ordered.produce(20 + restarts, 21 + restarts, "later")
            assert ordered.turn() == "RUNNING", ordered.engine.report.status.error_message
            if not restarts:
                ordered.restart()
        assert ordered.values() == {*(f"kept{n}" for n in range(5)), "later20", "later21"}
        assert not ordered.engine.report.status.unproven
        (held,) = committed(ordered.topic.ingestor().table()).last_records.values()
        marker, cut = held._replace(offset=5), held._replace(offset=150, epoch=0)
        endpoints = ordered.topic.endpoints
        assert find_records(endpoints, ordered.name, {0: marker}, {0: 0}) == {}, "it proves nothing"
        assert find_records(endpoints, "append60", {0: cut}, {0: 0}) == {0: None}, "KIP-320"
