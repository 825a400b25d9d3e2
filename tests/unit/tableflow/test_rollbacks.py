"""After a rollback of ``main``, the engine continues from what the head holds, or stops."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from topicberg.errors import TableflowError
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.commits import commit_update, move_main, set_ref
from topicberg.iceberg.summaries import CHECKPOINT_TAG, END_OFFSETS, MAIN
from topicberg.tableflow.changelog.fold_state import STATE, FoldState, Move
from topicberg.tableflow.values.commit import Committed, committed

Expire = Callable[[Table, int], None]
UNKNOWN = "rolled back to a state whose offsets are not known"


def expire_without_parent(table: Table, snapshot_id: int) -> None:
    """As PyIceberg's catalogs do: the id of an expired parent is removed."""
    table.maintenance.expire_snapshots().by_ids([snapshot_id]).commit()
    table.refresh()


def expire_with_parent(table: Table, snapshot_id: int) -> None:
    """As Iceberg's Java library does: the id of an expired parent stays."""
    parents = {s.snapshot_id: s.parent_snapshot_id for s in table.metadata.snapshots}
    expire_without_parent(table, snapshot_id)
    kept = [
        s.model_copy(update={"parent_snapshot_id": parents[s.snapshot_id]})
        for s in table.metadata.snapshots
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": kept})


EXPIRIES = pytest.mark.parametrize("expire", [expire_without_parent, expire_with_parent])


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table("shop.orders", pa.schema([("id", pa.int64())]))


def commit_batch(table: Table, end: int) -> int:
    """Commit a batch of the engine; return the snapshot's id."""
    offsets = {END_OFFSETS: f'{{"0": {end}}}'}
    table.refresh().append(pa.table({"id": [end]}), snapshot_properties=offsets)
    head = table.refresh().current_snapshot()
    commit_update(table, set_ref(CHECKPOINT_TAG, head.snapshot_id))
    table.refresh()
    return head.snapshot_id


def compact(table: Table) -> int:
    """Commit a snapshot without offsets; return its id."""
    snapshot_id = SnapshotChange(table.refresh(), Operation.REPLACE).commit().snapshot_id
    table.refresh()
    return snapshot_id


def roll_back(table: Table, snapshot_id: int) -> None:
    commit_update(table, move_main(table, snapshot_id))


def offsets(table: Table) -> dict[int, int]:
    return committed(table).offsets


@EXPIRIES
def test_committed_behind_an_expired_snapshot_is_what_the_tag_has(
    table: Table, expire: Expire
) -> None:
    commit_batch(table, 2)
    between = compact(table)
    compact(table)
    expire(table, between)
    assert offsets(table) == {0: 2}


@EXPIRIES
def test_committed_after_a_rollback_behind_the_tag_is_an_error(
    table: Table, expire: Expire
) -> None:
    earlier, good = commit_batch(table, 2), compact(table)
    table.manage_snapshots().create_tag(good, "good").commit()
    commit_batch(table, 5)
    roll_back(table.refresh(), good)
    assert offsets(table.refresh()) == {0: 2}
    expire(table, earlier)
    with pytest.raises(TableflowError, match=UNKNOWN) as error:
        offsets(table)
    assert f"the tag `{CHECKPOINT_TAG}`" in str(error.value)
    compact(table)  # what another tool commits on this state knows no more
    with pytest.raises(TableflowError, match=UNKNOWN):
        offsets(table)


def test_committed_after_a_rollback_to_before_the_first_batch_is_nothing(table: Table) -> None:
    table.append(pa.table({"id": [1]}))
    first = table.refresh().current_snapshot()
    commit_batch(table, 2)
    roll_back(table, first.snapshot_id)
    assert committed(table.refresh()) == Committed()


def test_fold_state_of_a_later_batch_lacks_what_the_head_does_not_have(table: Table) -> None:
    first, second = commit_batch(table, 2), commit_batch(table, 5)
    moves = [Move(micros=1, position=1, key="k", snapshot=s) for s in (first, second, None)]
    state = FoldState(reached={0: (7, 7)}, partitions=3, moves=moves, offsets={0: 5})
    with table.transaction() as transaction:
        transaction.set_properties({STATE: state.model_dump_json()})
    assert FoldState.of(table, table.current_snapshot()) == state
    roll_back(table, first)
    earlier = FoldState.of(table.refresh(), table.current_snapshot())
    assert (earlier.reached, earlier.partitions, earlier.moves) == ({}, 3, moves[:1])


def test_fold_state_of_a_batch_is_what_its_snapshot_notes(table: Table) -> None:
    state = FoldState(reached={0: (7, 7)}, offsets={0: 2})
    offsets = {END_OFFSETS: '{"0": 2}', **state.noted()}
    table.append(pa.table({"id": [1]}), snapshot_properties=offsets)
    later = FoldState(reached={0: (9, 9)}, offsets={0: 5})
    with table.refresh().transaction() as transaction:
        transaction.set_properties({STATE: later.model_dump_json()})
    assert FoldState.of(table, table.current_snapshot()).reached == state.reached
    assert (
        FoldState(moves=[Move(micros=1, position=1, key="k" * 99, snapshot=1)] * 99).noted() == {}
    )


def test_committed_of_a_replaced_table_is_nothing(table: Table) -> None:
    """``CREATE OR REPLACE TABLE … AS SELECT`` keeps the tags, and appends to an empty table."""
    commit_batch(table, 2)
    metadata = table.metadata
    refs = {name: ref for name, ref in metadata.refs.items() if name != MAIN}
    table.metadata = metadata.model_copy(update={"refs": refs, "current_snapshot_id": None})
    snapshot = SnapshotChange(table, Operation.APPEND)._snapshot()
    assert (snapshot.sequence_number, snapshot.parent_snapshot_id) == (2, None)
    table.metadata = table.metadata.model_copy(
        update={
            "snapshots": [*metadata.snapshots, snapshot],
            "current_snapshot_id": snapshot.snapshot_id,
        }
    )
    assert committed(table) == Committed()
