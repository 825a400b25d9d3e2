"""Tables in catalogs that refuse properties, locations and times."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from clocks import Clock
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError, ServerError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, NestedField

from topicberg.errors import TableflowError, TopicbergError
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.table import PROPERTIES, SKIPPED, create_table, set_optional
from topicberg.logins.catalog import LOCATIONS

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
NEEDED = {"format-version": "2", "topicberg.write-mode": "upsert"}
OPTIONAL = {"write.delete.mode": "merge-on-read"}


class Strict(SqlCatalog):
    """Refuses what a property names, as the catalogs of Unity, S3 Tables and Snowflake do."""

    refuses: ClassVar[dict[str, str]] = {}
    """Property, or ``location`` → what the catalog says."""
    skew_seconds: float | None = None
    commit_error: str | None = None

    def create_table(self, *args: Any, **kwargs: Any) -> Table:
        for name, text in self.refuses.items():
            given = kwargs["location"] if name == "location" else kwargs["properties"].get(name)
            if given is not None:
                raise BadRequestError(f"IllegalArgumentException: {text}")
        return super().create_table(*args, **kwargs)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        if self.commit_error is not None:
            raise ServerError(f"IllegalArgumentException: {self.commit_error}")
        for update in updates:
            for name, text in self.refuses.items():
                if name in getattr(update, "updates", ()):
                    raise BadRequestError(text)
        return super().commit_table(table, requirements, updates)


@pytest.fixture
def strict(tmp_path: Any) -> Strict:
    Strict.refuses.clear()
    uri = f"sqlite:///{tmp_path}/strict.db"
    found = Strict("strict", uri=uri, warehouse=f"file://{tmp_path}/strict")
    found.create_namespace("shop")
    return found


def create(catalog: Strict, location: str | None = None) -> Table:
    name = "shop", f"orders{time.time_ns()}"
    if location is None:
        catalog.properties[LOCATIONS] = "catalog"
    return create_table(catalog, name, SCHEMA, [], location or "", needed=NEEDED, optional=OPTIONAL)


@pytest.mark.parametrize(
    ("refused", "texts"),
    [
        (2, {name: f"Forbidden property: {name}" for name in [*PROPERTIES][1:]}),
        (4, {"write.delete.mode": "table properties are managed by the catalog"}),
    ],
)
def test_create_table_optional_property_that_is_refused_is_left_out(
    strict: Strict, caplog: pytest.LogCaptureFixture, refused: int, texts: dict[str, str]
) -> None:
    strict.refuses.update(texts)
    table = create(strict)
    assert table.properties.items() >= {"topicberg.write-mode": "upsert"}.items()
    assert len(table.properties[SKIPPED].split()) == refused
    assert all(name in caplog.text for name in texts)
    caplog.clear()
    set_optional(table, OPTIONAL)
    assert not caplog.text
    assert not texts.keys() & table.refresh().properties.keys()


def test_set_optional_property_that_is_refused_is_reported(
    strict: Strict, caplog: pytest.LogCaptureFixture
) -> None:
    table = create(strict)
    strict.refuses["write.metadata.metrics.column.id"] = "Cannot set table properties"
    set_optional(table, {"write.metadata.metrics.column.id": "full"})
    assert "Cannot set table properties" in caplog.text


@pytest.mark.parametrize(
    ("refused", "text", "message", "hint"),
    [
        ("topicberg.write-mode", "reserved: topicberg.write-mode", "cannot do without", "accept"),
        ("format-version", "format-version 2 is not supported", "format version 2", "version"),
        ("location", "Location is not allowed", "s3://a/b", "TOPICBERG_ICEBERG_REST_LOCATIONS=c"),
    ],
)
def test_create_table_needed_property_that_is_refused_names_what_to_set(
    strict: Strict, refused: str, text: str, message: str, hint: str
) -> None:
    strict.refuses[refused] = text
    with pytest.raises(TableflowError, match=message) as error:
        create(strict, "s3://a/b" if refused == "location" else None)
    assert hint in str(error.value.hint)
    assert text in error.value.message


@pytest.mark.parametrize(
    ("skew", "hint"),
    [(7200.0, "correct this machine's clock"), (0.0, "who wrote"), (None, "that is wrong")],
)
def test_commit_of_another_clock_names_the_clocks(
    strict: Strict, clock: Clock, skew: float | None, hint: str
) -> None:
    table = create(strict)
    table.append(pa.table({"id": [1]}))
    strict.commit_error, strict.skew_seconds = "[BUG] Expected sorted snapshot log entries", skew
    head = table.metadata.current_snapshot_id
    clock.now -= 7200
    with pytest.raises(TopicbergError, match=f"newest snapshot {head} is of .*, 2:00:") as error:
        SnapshotChange(table.refresh(), Operation.APPEND).commit()
    assert "earlier" in error.value.message or "later" in error.value.message
    assert hint in str(error.value.hint)
