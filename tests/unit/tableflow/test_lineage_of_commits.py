"""What a receiver of OpenLineage gets of the engine's commits, and that none fails with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lineage_receiver import Receiver, receiving
from memory_topic import MemoryTopic, text_topic

from topicberg.clients import lineage
from topicberg.tableflow.service.ingestion import Ingestion

pytest.importorskip("openlineage.client")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving(monkeypatch) as server:
        yield server


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTopic:
    return text_topic(tmp_path, monkeypatch)


def ingest(topic: MemoryTopic) -> Ingestion:
    """Commit everything by one turn, as a worker of the pool does."""
    unused: Any = None
    one = Ingestion(topic.spec, topic.endpoints, topic.config, unused)
    one._ingestor = topic.ingestor()
    one.turn()
    one._ingestor.close()
    return one


def test_commit_of_the_engine_is_reported(receiver: Receiver, topic: MemoryTopic) -> None:
    one = ingest(topic)
    assert one.report.status.rows_committed == 2
    lineage._sender().wait()
    started, completed = receiver.events
    assert (started["eventType"], completed["eventType"]) == ("START", "COMPLETE")
    assert completed["inputs"][0]["namespace"] == "kafka://broker:9092"
    (output,) = completed["outputs"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert output["facets"]["version"]["datasetVersion"] == str(one.report.status.snapshot_id)
    assert list(output["facets"]["columnLineage"]["fields"]) == ["key", "value"]
    names = [field["name"] for field in output["facets"]["schema"]["fields"]]
    assert {"value", "$$offset"} <= set(names)


@pytest.mark.parametrize("fault", ["refuses", "library"])
def test_commit_succeeds_whatever_becomes_of_its_lineage(
    fault: str, receiver: Receiver, topic: MemoryTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.status = 500
    if fault == "library":
        monkeypatch.setattr(lineage, "event", lambda *_: json.loads("{"))
    one = ingest(topic)
    lineage._sender().wait()
    assert one.report.status.phase == "RUNNING"
    assert one.report.status.error_message is None
    assert len(topic.rows()) == 2
