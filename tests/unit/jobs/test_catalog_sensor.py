"""The sensor that registers derived tables again: what fails, or never runs, is requested again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import boto3
import dagster as dg
import pytest
from botocore.exceptions import ClientError
from clocks import Clock
from lakehouses import lakehouse_of
from memory_instance import memory_instance
from moto import mock_aws
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from definitions import defs
from topicberg.catalogs import glue
from topicberg.errors import LoginError
from topicberg.iceberg.read_tags import reading
from topicberg.orchestration.catalogs.catalog import catalogs
from topicberg.orchestration.catalogs.glue import Glue
from topicberg.orchestration.jobs.catalogs import (
    ATTEMPTS,
    INTERVAL_SECONDS,
    MAX_PAUSE_SECONDS,
    CatalogCursor,
)

NAME = ("stock_trades", "stock_total_trades")


@pytest.fixture
def client() -> Iterator[Any]:
    with mock_aws():
        yield boto3.client("glue", region_name="us-east-1")


class Ticks:
    def __init__(self, instance: dg.DagsterInstance, catalog: SqlCatalog, client: Any) -> None:
        self.instance, self.keys = instance, list[str]()
        self.lakehouse = lakehouse_of(catalog, client)
        self.cursor: str | None = None
        self.skip_reason = ""

    def tick(self) -> bool:
        """Whether a run was requested."""
        repository = defs.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=repository,
            resources={"topicberg_lakehouse": self.lakehouse},
        )
        found = repository.get_sensor_def("catalogs").evaluate_tick(context)
        self.cursor = found.cursor or self.cursor
        self.skip_reason = found.skip_message or ""
        for request in found.run_requests or ():
            assert request.run_key not in self.keys, "Dagster would launch no second run"
            self.keys.append(str(request.run_key))
        return bool(found.run_requests)

    def ran(self, status: dg.DagsterRunStatus) -> None:
        tags = {"topicberg/kind": "catalogs", "dagster/run_key": self.keys[-1]}
        job = defs.get_repository_def().get_job("maintain_tables")
        self.instance.create_run_for_job(job, tags=tags, status=status)


def test_a_registration_that_fails_is_requested_again(catalog: SqlCatalog, client: Any) -> None:
    catalog.create_namespace(NAME[0])
    table = catalog.create_table(NAME, Schema(NestedField(1, "id", LongType())))
    table.append(table.schema().as_arrow().empty_table())
    with memory_instance() as instance:
        ticks = Ticks(instance, catalog, client)
        assert [ticks.tick() for _ in range(2)] == [False, True]
        assert ticks.tick(), "it was never launched"
        ticks.ran(dg.DagsterRunStatus.CANCELED)
        assert ticks.tick()
        ticks.ran(dg.DagsterRunStatus.FAILURE)
        assert len(ticks.keys) == ATTEMPTS
        assert not any(ticks.tick() for _ in range(2)), "there is a pause"
        with table.transaction() as transaction:
            transaction.set_properties({"changed": "yes"})
        assert ticks.tick(), "something new is tried at once"
        glue.register(client, table.refresh(), *NAME)
        ticks.ran(dg.DagsterRunStatus.SUCCESS)
        assert not ticks.tick()
        with reading([table], "a-reader"):
            pass
        table.refresh().manage_snapshots().create_tag(
            table.snapshots()[0].snapshot_id, "published-x"
        ).commit()
        assert not any(ticks.tick() for _ in range(3)), "tags change nothing for readers"
        ticks.cursor = CatalogCursor().model_dump_json()  # a reset
        with table.refresh().transaction() as transaction:
            transaction.set_properties({"changed": "again"})
        assert [ticks.tick() for _ in range(2)] == [False, True]


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE])
def test_registration_is_never_given_up(
    catalog: SqlCatalog, client: Any, clock: Clock, status: dg.DagsterRunStatus
) -> None:
    catalog.create_namespace(NAME[0])
    table = catalog.create_table(NAME, Schema(NestedField(1, "id", LongType())))
    table.append(table.schema().as_arrow().empty_table())
    with memory_instance() as instance:
        ticks, requested = Ticks(instance, catalog, client), list[int]()
        for minute in range(90):  # of a stack that is stopped, or whose runs are terminated
            if ticks.tick():
                requested.append(minute)
                ticks.ran(status)
            clock.now += INTERVAL_SECONDS
        pauses = [after - before for before, after in pairwise(requested)]
        assert pauses[:6] == [1, 1, 3, 5, 9, 16], "the end of a run is noticed a tick later"
        assert {*pauses[6:]} == {MAX_PAUSE_SECONDS // INTERVAL_SECONDS + 1}
        assert "runs failed for stock_total_trades; the next attempt" in ticks.skip_reason
        clock.now += MAX_PAUSE_SECONDS
        assert ticks.tick()
        glue.register(client, table, *NAME)
        ticks.ran(dg.DagsterRunStatus.SUCCESS)
        assert not any(ticks.tick() for _ in range(2))
        assert ticks.skip_reason == "the catalogs have the newest metadata of every table"


def test_table_that_one_catalog_lacks_is_registered_again(
    catalog: SqlCatalog, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pointers(Glue):
        def is_current(self, *_: object) -> bool:
            return False

    catalog.create_namespace(NAME[0])
    table = catalog.create_table(NAME, Schema(NestedField(1, "id", LongType())))
    table.append(table.schema().as_arrow().empty_table())
    glue.register(client, table, *NAME)
    with memory_instance() as instance:
        ticks = Ticks(instance, catalog, client)
        assert not any(ticks.tick() for _ in range(2))
        monkeypatch.setitem(catalogs(), "pointers", Pointers())
        ticks = Ticks(instance, catalog, client)
        assert [ticks.tick() for _ in range(2)] == [False, True]


def test_table_that_fails_stops_no_other(
    catalog: SqlCatalog, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, names = NAME[0], ("flagged_stock_trades", NAME[1])
    catalog.create_namespace(namespace)
    for name in names:
        table = catalog.create_table((namespace, name), Schema(NestedField(1, "id", LongType())))
        table.append(table.schema().as_arrow().empty_table())
    get_table = client.get_table

    def refuse(**asked: Any) -> Any:
        if asked["Name"] == names[0]:
            raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetTable")
        return get_table(**asked)

    monkeypatch.setattr(client, "get_table", refuse)
    with memory_instance() as instance:
        ticks = Ticks(instance, catalog, client)
        assert [ticks.tick() for _ in range(2)] == [False, True]
        glue.register(client, catalog.load_table(NAME), *NAME)
        ticks.ran(dg.DagsterRunStatus.SUCCESS)
        ticks.tick()
        with pytest.raises(LoginError, match="AWS does not allow GetTable"):  # which is an alert
            ticks.tick()
