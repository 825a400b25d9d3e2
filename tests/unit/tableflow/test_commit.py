"""A batch is added to the table only if the head is still the one that it was planned on."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from topicberg.errors import CommitConflictError
from topicberg.tableflow.commit import add_files

ROWS = pa.table({"id": pa.array([1], pa.int64())})


def test_files_planned_on_an_older_head_are_not_added(catalog: SqlCatalog) -> None:
    """A change of properties, as of a failing record, returns what another engine committed."""
    table = catalog.create_table("shop.orders", ROWS.schema)
    catalog.load_table("shop.orders").append(ROWS)
    with table.transaction() as transaction:
        transaction.set_properties({"topicberg.first-offsets": "{}"})
    head = table.current_snapshot()
    assert head is not None
    with pytest.raises(CommitConflictError, match="another commit came before this batch"):
        add_files(table, None, [], [], {})
    assert table.refresh().current_snapshot() == head
    added = add_files(table, head.snapshot_id, [], [], {"note": "planned on this head"})
    assert table.refresh().current_snapshot() == added
