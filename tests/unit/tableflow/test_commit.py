"""A batch is added to the table only if the head is still the one that it was planned on.

The files of a batch that is refused are deleted; whether it is refused is the table's to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from format_versions import written
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from topicberg.errors import CommitConflictError
from topicberg.tableflow.values.commit import add_files

ROWS = pa.table({"id": pa.array([1], pa.int64())})


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table("shop.orders", ROWS.schema)


def names(table: Table, ending: str) -> set[str]:
    folder = Path(table.location().removeprefix("file://"))
    return {path.name for path in folder.rglob(f"*{ending}")}


def overtake(table: Table) -> None:
    table.catalog.load_table(table.name()).append(ROWS)


def test_files_planned_on_an_older_head_are_not_added(table: Table) -> None:
    """A change of properties, as of a failing record, returns what another engine committed."""
    overtake(table)
    before = names(table, "")
    with table.transaction() as transaction:
        transaction.set_properties({"topicberg.first-offsets": "{}"})
    head = table.current_snapshot()
    with pytest.raises(CommitConflictError, match="another commit came before this batch"):
        add_files(table, None, written(table, ROWS), [], {})
    assert table.refresh().current_snapshot() == head
    assert {name for name in names(table, "") - before if "metadata.json" not in name} == set()
    added = add_files(table, head.snapshot_id, [], [], {"note": "planned on this head"})
    assert table.refresh().current_snapshot() == added


def test_refused_batch_leaves_no_file(table: Table) -> None:
    table.append(ROWS)
    head = table.current_snapshot()
    overtake(table)
    before = names(table, ".parquet"), names(table, ".avro")
    with pytest.raises(CommitConflictError, match="another commit came first"):
        add_files(table, head.snapshot_id, written(table, ROWS), [], {})
    assert (names(table, ".parquet"), names(table, ".avro")) == before
    assert table.refresh().scan().to_arrow().num_rows == 2


def test_commit_whose_answer_was_lost_is_a_commit(table: Table) -> None:
    """The request is sent again, and refused: the head is the snapshot of the first request."""
    catalog: Any = table.catalog

    def twice(*given: Any) -> Any:
        catalog.commit(*given)
        raise CommitFailedException("branch main has changed")

    files = written(table, ROWS)
    catalog.answer = twice
    added = add_files(table, None, files, [], {"note": "sent twice"})
    assert (table.refresh().current_snapshot(), table.scan().to_arrow().num_rows) == (added, 1)


def test_batch_that_may_still_be_committed_keeps_its_files(table: Table) -> None:
    """The catalog refuses, and the head did not move: an earlier request may be on its way."""

    def refuse(*_: Any) -> Any:
        raise CommitFailedException("the catalog is busy")

    catalog: Any = table.catalog
    catalog.answer = refuse
    overtaken, files = table.catalog.load_table(table.name()), written(table, ROWS)
    with pytest.raises(CommitConflictError):
        add_files(overtaken, None, files, [], {})
    assert {Path(file.file_path).name for file in files} <= names(table, ".parquet")
