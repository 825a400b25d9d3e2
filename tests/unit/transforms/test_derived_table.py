"""The creation of derived tables in a catalog with AWS Glue's limits, through kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from derivations import compute_by
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import HourTransform

from topicberg.checks.derived import MEMORY, check_merged, check_up_to_date
from topicberg.checks.finding import Finding
from topicberg.checks.table import check_equality_deletes, check_volume
from topicberg.clients.catalog import READ_ONLY, TABLES
from topicberg.errors import CommitConflictError, TopicbergError
from topicberg.errors.meaning import classify
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.changes import Mark, changed
from topicberg.iceberg.maintenance.run import TableSize
from topicberg.iceberg.read_tags import reading
from topicberg.iceberg.snapshots import changes_since, held_hours, newest_record
from topicberg.orchestration.assets.metadata import newest_rows, table_metadata
from topicberg.transforms import derived
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import WrittenWindow
from topicberg.transforms.publish import PublishProgress, _target
from topicberg.transforms.target import COMPUTED, ensure_table
from topicberg.transforms.unread import SourceTable, unread
from topicberg.transforms.upsert_view import UpsertView
from topicberg.transforms.windows import Window, computations

COLUMNS = pa.schema([("at", pa.timestamp("us", "UTC")), ("id", pa.int64())])
NAME = ("shop", "totals")
PARTITION = ("at", "hour")
NOW = datetime.now(UTC)
VIEW = UpsertView(("shop", "orders"), NAME, ("id",), ("at",))


class GlueCatalog(SqlCatalog):
    """Refuses what Glue's Iceberg REST API refuses, in its words."""

    def create_table_transaction(self, *_: Any, **__: Any) -> NoReturn:
        raise BadRequestError("Malformed request: Stage create is not supported")

    def create_table(self, *arguments: Any, **more: Any) -> Table:
        if not more.get("location"):
            raise BadRequestError("Location information cannot be null while creating a table")
        return super().create_table(*arguments, **more)


@pytest.fixture
def glue(tmp_path: Path) -> Iterator[GlueCatalog]:
    uri = f"sqlite:///{tmp_path}/c.db"
    catalog = GlueCatalog("unit", uri=uri, **{TABLES: f"file://{tmp_path}/"})
    yield catalog
    catalog.close()


def ensure(catalog: GlueCatalog) -> Table:
    return ensure_table(catalog, NAME, COLUMNS, PARTITION)


def test_ensure_table_creates_it_within_glues_limits(glue: GlueCatalog, tmp_path: Path) -> None:
    table = ensure(glue)
    (field,) = table.spec().fields
    assert (field.name, field.transform) == ("at_hour", HourTransform())
    assert table.schema().find_field(field.source_id).name == "at"
    assert table.location().startswith(f"file://{tmp_path}/shop/v1/")
    assert len(table.snapshots()) == 1
    assert ensure(glue).metadata_location == table.metadata_location


def test_ensure_table_with_the_name_of_a_metadata_column_of_iceberg_is_refused(
    glue: GlueCatalog,
) -> None:
    columns = COLUMNS.append(pa.field("_deleted", pa.bool_()))
    with pytest.raises(TopicbergError, match=r"shop.totals: the column _deleted"):
        ensure_table(glue, NAME, columns, PARTITION)


def test_ensure_table_with_longer_partitions_is_refused(glue: GlueCatalog) -> None:
    ensure_table(glue, NAME, COLUMNS, ("at", "day"))
    with pytest.raises(TopicbergError, match="is partitioned by day of at") as refused:
        ensure_table(glue, NAME, COLUMNS, ("at", "hour"))
    assert classify(refused.value) is None


def test_ensure_table_with_shorter_partitions_keeps_them(glue: GlueCatalog) -> None:
    ensure_table(glue, NAME, COLUMNS, ("at", "hour"))
    (field,) = ensure_table(glue, NAME, COLUMNS, ("at", "day")).spec().fields
    assert field.transform == HourTransform()


def test_ensure_table_of_a_user_with_rows_is_refused(glue: GlueCatalog) -> None:
    location = f"{glue.properties[TABLES]}theirs"
    glue.create_namespace_if_not_exists(NAME[0])
    theirs = glue.create_table(NAME, COLUMNS, location=location)
    theirs.append(pa.Table.from_pylist([{"at": NOW, "id": 1}], schema=COLUMNS))
    with pytest.raises(TopicbergError, match="rows that topicberg did not compute") as refused:
        ensure_table(glue, NAME, COLUMNS, None, before=glue.load_table(NAME))
    assert classify(refused.value) is None
    assert COMPUTED in (refused.value.hint or "")
    assert glue.load_table(NAME).metadata_location == theirs.metadata_location


def test_ensure_table_of_a_user_that_may_be_replaced_goes_on(glue: GlueCatalog) -> None:
    location = f"{glue.properties[TABLES]}theirs"
    glue.create_namespace_if_not_exists(NAME[0])
    theirs = glue.create_table(NAME, COLUMNS, location=location, properties={COMPUTED: "true"})
    theirs.append(pa.Table.from_pylist([{"at": NOW, "id": 1}], schema=COLUMNS))
    for _ in range(2):
        table = ensure_table(glue, NAME, COLUMNS, None, before=glue.load_table(NAME))
        assert table.properties[COMPUTED] == "true"
    assert table.scan().to_arrow().num_rows == 1


@pytest.fixture
def killed(glue: GlueCatalog, monkeypatch: pytest.MonkeyPatch) -> Table:
    """The table of a run that was killed before it wrote the first snapshot."""

    def kill(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotChange, "commit", kill)
        with pytest.raises(KeyboardInterrupt):
            ensure(glue)
    table = glue.load_table(NAME)
    assert table.current_snapshot() is None
    return table


def test_ensure_table_after_a_kill_adds_the_snapshot(glue: GlueCatalog, killed: Table) -> None:
    table = ensure(glue)
    assert table.metadata.table_uuid == killed.metadata.table_uuid
    assert len(table.snapshots()) == 1


def test_ensure_table_when_another_is_faster_takes_its(
    glue: GlueCatalog, killed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SnapshotChange.commit

    def overtaken(change: SnapshotChange) -> NoReturn:
        commit(SnapshotChange(glue.load_table(NAME), Operation.APPEND))
        raise CommitConflictError("another commit came first")

    monkeypatch.setattr(SnapshotChange, "commit", overtaken)
    assert len(ensure(glue).snapshots()) == 1


@pytest.mark.parametrize(
    ("read", "empty"),
    [
        (lambda table: list(computations(table)), []),
        (lambda table: list(held_hours(table, "at")), []),
        (lambda table: changes_since(table, None).new, []),
        (lambda table: changed(table, "at", Mark.of(table, None)).changes, []),
        (lambda table: unread(None, "at", {"s": SourceTable(table, "at")})["s"].unread, []),
        (lambda table: newest_rows(table, 10), None),
        (lambda table: newest_record(table, "at"), None),
        (lambda table: table_metadata(table)["dagster/row_count"], 0),
        (lambda table: TableSize.of(table).rows, 0),
        (lambda table: _target(table, PublishProgress(topic_id="t", table_uuid="u")), None),
        (lambda table: check_volume(table, 2, NOW).passed, True),
        (lambda table: check_equality_deletes(table, "rewrite").passed, True),
    ],
)
def test_readers_without_a_snapshot_see_no_rows(
    killed: Table, read: Callable[[Table], Any], empty: Any
) -> None:
    assert read(killed) == empty


def test_checks_without_a_snapshot_allow_their_time(glue: GlueCatalog, killed: Table) -> None:
    source = glue.create_table(("shop", "orders"), COLUMNS, location=f"{glue.properties[TABLES]}o")
    source.append(pa.Table.from_pylist([{"at": NOW - timedelta(hours=2), "id": 1}], schema=COLUMNS))

    def up_to_date(now: datetime, before: Finding | None) -> Finding:
        sources = {"shop.orders": SourceTable(source, "at")}
        memory = before.facts[MEMORY] if before else None
        return check_up_to_date(
            killed, "at", sources, 30, now, memory, lambda _: ["k"], lambda _: "mend"
        )

    later, first = datetime.now(UTC) + timedelta(minutes=31), up_to_date(NOW, None)
    assert first.passed
    assert not up_to_date(later, first).passed
    assert check_merged(VIEW, killed, source, 30, NOW, "mend").passed
    assert not check_merged(VIEW, killed, source, 30, later, "mend").passed


def test_reading_puts_no_tag_on_confluents_tables(glue: GlueCatalog) -> None:
    """Confluent: consume the tables in Glue as read-only. All others keep what is read."""
    place, tables = glue.properties[TABLES], dict[str, Table]()
    glue.properties[READ_ONLY] = "lkc-1"
    for namespace in ("lkc-1", "shop"):
        glue.create_namespace_if_not_exists(namespace)
        table = glue.create_table((namespace, "orders"), COLUMNS, location=f"{place}{namespace}")
        table.append(COLUMNS.empty_table())
        tables[namespace] = table
    with reading(tables.values(), "totals"):
        tags = {name: [*table.refresh().refs()] for name, table in tables.items()}
    assert tags["lkc-1"] == ["main"]
    assert len(tags["shop"]) == 2


@pytest.mark.parametrize(
    ("days", "hours", "keep_expired", "expected"),
    [
        (40, 1, True, None),
        (40, 1, False, 0),
        (40, 10 * 24 + 5, True, 10 * 24 + 1),
        (29, 1, True, 0),
    ],
)
def test_write_window_leaves_out_expired_hours_that_no_user_requested(
    glue: GlueCatalog,
    monkeypatch: pytest.MonkeyPatch,
    days: int,
    hours: int,
    keep_expired: bool,
    expected: int | None,
) -> None:
    """A run waits, or another table of it has sources that keep their rows longer."""
    unused: Any = None
    plan = Derivation(
        sources=(Source(("shop", "orders"), "at", kept=timedelta(days=30)),),
        target=NAME,
        transform=unused,
        target_time="at",
        first=datetime(2026, 1, 1, tzinfo=UTC),
    )
    hour = plan.first_hour(datetime.now(UTC)) - 1  # that before the first one that is kept
    begin = datetime.fromtimestamp((hour - (days - 30) * 24) * 3600, UTC)
    window = Window(begin, begin + timedelta(hours=hours))
    computed: list[Window] = []

    def write(parts: list[Window]) -> WrittenWindow:
        computed.extend(parts)
        return WrittenWindow(parts)

    compute_by(monkeypatch, write)
    windows = derived.write_window(unused, glue, plan, window, keep_expired=keep_expired).windows
    if expected is None:
        assert not windows
        assert not computed
    else:
        assert windows == [Window(begin + timedelta(hours=expected), window.end)]
        assert computed == windows
