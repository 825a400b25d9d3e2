"""OpenLineage events, as a receiver gets them by HTTP from the standard client."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from clocks import Clock
from lineage_receiver import Receiver, receiving
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from topicberg.clients import lineage
from topicberg.clients.lineage import (
    DatasetName,
    JobRun,
    TableState,
    TopicLineage,
    lineage_settings,
    reported,
    run_id,
    table_dataset,
    topic_dataset,
)
from topicberg.errors import TopicbergError
from topicberg_local.python_services import as_environment

pytest.importorskip("openlineage.client")
SECRET = "token-of-the-receiver"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving(monkeypatch) as server:
        yield server


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("c", uri="sqlite://", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    columns = pa.schema([("id", pa.int64()), ("note", pa.string()), ("$$offset", pa.int64())])
    made = catalog.create_table("n.orders", columns)
    made.append(pa.table({"id": [1], "note": ["a"], "$$offset": [0]}, schema=columns))
    return made


def test_commits_of_a_topic_are_one_event_a_minute_with_columns(
    receiver: Receiver, table: Table, clock: Clock
) -> None:
    topic = TopicLineage("orders", "broker-1:9092,broker-2:9092")

    def commit(rows: int) -> None:
        if topic.is_due(rows, 10 * rows):
            topic.report(table, ["id", "note"])
        lineage._sender().wait()

    commit(3)
    commit(4)
    commit(5)
    assert [event["eventType"] for event in receiver.events] == ["START", "COMPLETE"]
    clock.now += lineage.INTERVAL_SECONDS
    commit(6)
    started, completed, *later = receiver.events
    assert [event["eventType"] for event in later] == ["START", "COMPLETE"]
    assert started["run"]["runId"] == completed["run"]["runId"]
    assert uuid.UUID(started["run"]["runId"])
    assert completed["job"] == {"namespace": "shop", "name": "tableflow.orders", "facets": {}}
    kafka = {"namespace": "kafka://broker-1:9092", "name": "orders"}
    (source,) = completed["inputs"]
    assert kafka.items() <= source.items()
    (output,) = completed["outputs"]
    assert (output["namespace"], output["name"]) == (
        "file://",
        table.location().removeprefix("file:///"),
    )
    statistics = [
        event["outputs"][0]["outputFacets"]["outputStatistics"] for event in (completed, later[1])
    ]
    assert [(each["rowCount"], each["size"]) for each in statistics] == [(3, 30), (15, 150)]
    facets = output["facets"]
    assert facets["version"]["datasetVersion"] == str(table.current_snapshot().snapshot_id)
    assert facets["symlinks"]["identifiers"][0]["name"] == "n.orders"
    assert {one["name"]: one["type"] for one in facets["schema"]["fields"]} == {
        "id": "long", "note": "string", "$$offset": "long",
    }  # fmt: skip
    fields = facets["columnLineage"]["fields"]
    assert set(fields) == {"id", "note"}, "metadata of a record is no field of it"
    (origin,) = fields["id"]["inputFields"]
    assert {**kafka, "field": "id"}.items() <= origin.items()


def test_run_of_a_derived_table_is_reported_with_its_parent_and_window(
    receiver: Receiver, table: Table
) -> None:
    state, parent = TableState.of(table), str(uuid.uuid4())
    run = JobRun(
        "compute_tables.totals",
        run_id(parent, "totals"),
        inputs=(state,),
        origins={"id": ((state.dataset, "id"),), "gone": ((state.dataset, "note"),)},
        parent=(parent, "compute_tables"),
        window=(datetime(2026, 3, 1, 3, tzinfo=UTC), datetime(2026, 3, 1, 5, tzinfo=UTC)),
    )
    with reported(run) as outcome:
        outcome.update(output=state, rows=7)
    started, completed = receiver.events
    assert (started["eventType"], completed["eventType"]) == ("START", "COMPLETE")
    facets = completed["run"]["facets"]
    assert facets["parent"]["run"]["runId"] == parent
    assert facets["nominalTime"]["nominalStartTime"] == "2026-03-01T03:00:00+00:00"
    assert completed["inputs"][0]["facets"]["schema"]["fields"][0]["name"] == "id"
    assert completed["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 7
    assert set(completed["outputs"][0]["facets"]["columnLineage"]["fields"]) == {"id"}


def test_failed_run_is_reported_without_secrets_and_fails(receiver: Receiver) -> None:
    lineage_settings().model_copy()
    from topicberg.security.redaction import remember

    remember((SECRET,))
    with pytest.raises(TopicbergError, match="no"), reported(JobRun("j", run_id("a"))):
        raise TopicbergError(f"no {SECRET}")
    assert [event["eventType"] for event in receiver.events] == ["START", "FAIL"]
    message = receiver.events[1]["run"]["facets"]["errorMessage"]["message"]
    assert message
    assert SECRET not in message


def test_receiver_that_refuses_or_is_down_fails_no_run(
    receiver: Receiver, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 500
    with reported(JobRun("j", run_id("a"))) as outcome:
        outcome.update(output=TableState.of(table), rows=1)
    assert len(receiver.events) == 2, "each is sent once"
    assert "an OpenLineage event is lost" in caplog.text
    caplog.clear()
    receiver.shutdown()
    receiver.server_close()
    with reported(JobRun("j", run_id("a"))) as outcome:
        outcome.update(output=object(), rows=1)  # not even what cannot be an event
    assert caplog.text.count("an OpenLineage event is lost") == 2


def test_token_is_sent_and_hidden(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICBERG_LINEAGE_API_KEY", SECRET)
    monkeypatch.setenv("TOPICBERG_LINEAGE_URL", f"{receiver.url}/lineage/v2")
    lineage.client.cache_clear()
    with reported(JobRun("j", run_id("a"))):
        pass
    assert receiver.paths == [("/lineage/v2", f"Bearer {SECRET}")] * 2
    assert SECRET not in repr(lineage_settings())
    assert as_environment(lineage_settings())["TOPICBERG_LINEAGE_API_KEY"] == SECRET


def test_nothing_is_sent_unless_an_address_is_set(
    receiver: Receiver, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOPICBERG_LINEAGE_URL")
    lineage.client.cache_clear()
    assert not TopicLineage("orders", "b:1").is_due(1, 1)
    with reported(JobRun("j", run_id("a"))):
        pass
    assert receiver.events == []


def test_wrong_setting_is_reported_and_fails_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOPICBERG_LINEAGE_URL", "marquez")
    lineage.client.cache_clear()
    with pytest.raises(TopicbergError, match="TOPICBERG_LINEAGE_URL"):
        lineage.client()
    with reported(JobRun("j", run_id("a"))):
        pass
    assert "no OpenLineage events are sent" in caplog.text
    monkeypatch.undo()
    lineage.client.cache_clear()


def test_events_that_nobody_takes_are_lost_and_counted(
    table: Table, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "MAX_WAITING", 2)
    sender = lineage.Sender()  # which does not run
    sent = lineage.event("START", JobRun("j", run_id("a")), "shop", datetime.now(UTC))
    with caplog.at_level(logging.WARNING):
        for _ in range(7):
            sender.put(lambda: sent)
    assert [message.rpartition(" ")[2] for message in caplog.messages] == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://lake/warehouse/n/orders", DatasetName("s3://lake", "warehouse/n/orders")),
        ("file:///tmp/w/orders", DatasetName("file://", "tmp/w/orders")),
        ("s3://lake", DatasetName("s3://lake", "/")),
    ],
)
def test_table_is_named_by_its_folder(location: str, expected: DatasetName) -> None:
    assert table_dataset(location) == expected
    assert topic_dataset("a:1,b:2", "t") == DatasetName("kafka://a:1", "t")
