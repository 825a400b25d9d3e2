"""A change log whose table other users changed: its primary key, and columns with a default."""

from __future__ import annotations

from pathlib import Path

import pytest
from debezium import Event
from format_versions import allow_version_3, upgrade
from pyiceberg.types import StringType
from test_folding import Connector, changed_topic, rows_of

from topicberg.errors import TableflowError


@pytest.mark.parametrize("new_name", ["number", None])
def test_step_after_the_primary_key_changed_suspends_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_name: str | None
) -> None:
    topic = changed_topic(tmp_path, monkeypatch)
    connector = Connector(topic)
    connector.send([Event(0, 7, "c", 30, {"id": 7, "v": 1, "big": "old"})])
    topic.ingestor().step()
    table = topic.catalog.load_table(topic.spec.table_identifier(topic.config))
    with table.update_schema() as update:
        if new_name is None:
            update.delete_column("id")
        else:
            update.rename_column("id", new_name)
    connector.send([Event(0, 7, "u", 50, {"id": 7, "v": 2, "big": "new"})])
    with pytest.raises(TableflowError, match="the column id of its table identifies rows"):
        topic.ingestor().step()
    if new_name is not None:
        with table.refresh().update_schema() as update:
            update.rename_column(new_name, "id")
        topic.ingestor().step()
        assert rows_of(topic) == {7: {"id": 7, "v": 2, "big": "new"}}


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_change_without_a_column_that_has_a_default_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    allow_version_3(monkeypatch)
    topic = changed_topic(tmp_path, monkeypatch, write_mode=mode)
    connector = Connector(topic)
    connector.send([Event(0, 7, "c", 30, {"id": 7, "v": 1, "big": "old"})])
    topic.ingestor().step()
    table = topic.catalog.load_table(topic.spec.table_identifier(topic.config))
    with upgrade(topic.catalog, table).update_schema() as update:
        update.add_column("region", StringType(), default_value="eu")
    connector.send([Event(0, 8, "c", 50, {"id": 8, "v": 2, "big": "new"})])
    topic.ingestor().step()
    assert [row["region"] for row in topic.rows()] == ["eu", "eu"]
