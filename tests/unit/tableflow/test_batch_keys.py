"""Which records of an upsert batch are the newest of their keys, and which rows they replace."""

from __future__ import annotations

import pickle
from collections import Counter
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from topicberg.iceberg.data_files import Placed
from topicberg.tableflow.upsert.batch_keys import BatchKeys, WrittenKeys
from topicberg.tableflow.upsert.key_files import Keys, merged, newest

Record = tuple[int, int, bool]
"""A key's two hashes, and whether the record has a value."""
CHUNKS = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.booleans()), max_size=12),
    max_size=6,
)


def keys_of(chunk: list[Record]) -> Keys:
    high = np.array([one[0] for one in chunk], np.uint64)
    low = np.array([one[1] for one in chunk], np.uint64)
    return Keys(high, low, np.arange(len(chunk), dtype=np.uint32))


@given(st.lists(CHUNKS, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_newest_record_of_each_key_stays(parts: list[list[list[Record]]], random: Random) -> None:
    """Each part writes its chunks to two files, as of two partitions of a table."""
    offset, written, rows = 0, list[BatchKeys](), dict[tuple[str, int], int]()
    last: dict[tuple[int, int], int | None] = {}
    for number, chunks in enumerate(parts):
        collected, sizes = WrittenKeys(), Counter[str]()
        for chunk in chunks:
            keys = keys_of(chunk)
            offsets = np.arange(offset, offset + len(chunk))
            offset += len(chunk)
            kept = np.sort(newest(keys.high, keys.low))
            has_value = np.array([one[2] for one in chunk], np.bool_)
            stay = kept[has_value[kept]]
            collected.add_deleted(keys, kept[~has_value[kept]])
            halves = np.array([random.random() < 0.5 for _ in stay], np.bool_)
            placed = []
            for name, of_half in (("a", halves), ("b", ~halves)):
                some, path = np.flatnonzero(of_half), f"{number}{name}"
                if len(some):
                    placed.append(Placed(path, sizes[path], some))
                    for place, row in enumerate(stay[some]):
                        rows[path, sizes[path] + place] = int(offsets[row])
                    sizes[path] += len(some)
            collected.add(keys, stay, placed)
            for at, (high, low, value) in zip(offsets, chunk, strict=True):
                last[high, low] = int(at) if value else None
        written.append(pickle.loads(pickle.dumps(collected.all())))
    batch = BatchKeys.joined(written)
    keys, replaced = batch.newest()
    assert sorted(zip(keys.high.tolist(), keys.low.tolist(), strict=True)) == sorted(last)
    assert (np.diff(keys.high.astype(np.int64)) >= 0).all()
    left = {
        at: offset
        for at, offset in rows.items()
        if at[1] not in replaced.get(at[0], np.empty(0)).tolist()
    }
    assert sorted(left.values()) == sorted(at for at in last.values() if at is not None)
    of_files = dict(batch.of_files())
    assert {path: len(held.high) for path, held in of_files.items()} == Counter(p for p, _ in rows)
    for held in of_files.values():
        again = merged([held])
        assert np.array_equal(np.sort(again.high), held.high)
        assert sorted(held.position.tolist()) == list(range(len(held.high)))
