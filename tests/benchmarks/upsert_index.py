"""What an upsert costs beside an append: the lookup of its keys among the rows of a table.

    python tests/benchmarks/upsert_index.py [--rows 10_000_000 100_000_000] [--keys 100_000]

needs no stack. The table has real metadata, and key files of random hashes (22 bytes a row on disk)
in place of its data files. Half of the keys that are looked up are in the table. The table shows:

- lookup: CPU time of the first lookup, which also reads the manifests, and of the best of five;
- append: the best of five appends of as many rows by PyIceberg to a table on this disk;
- take-over: the time until another engine has copied the shared key files.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField
from rich.console import Console
from rich.table import Table as Shown

from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.manifests import new_file
from topicberg.tableflow.upsert import key_files
from topicberg.tableflow.upsert.key_files import HeldKeys, Keys, merged
from topicberg.tableflow.upsert.key_hashing import KeyHasher
from topicberg.tableflow.upsert.keys import KeyIndex

FILE_ROWS = 1_000_000
ROUNDS = 5
COLUMNS = "$$raw-key", "$$partition"
SCHEMA = Schema(
    NestedField(1, "value", LongType(), required=False),
    NestedField(2, "$$partition", IntegerType(), required=False),
    NestedField(3, "$$raw-key", BinaryType(), required=False),
)


def batch(keys: int) -> pa.Table:
    return pa.table(
        {
            "value": pa.array(np.arange(keys)),
            "$$partition": pa.array(np.zeros(keys, np.int32)),
            "$$raw-key": pa.array([b"customer-%d" % number for number in range(keys)]),
        }
    )


def data_file(table: Table, number: int) -> DataFile:
    return new_file(
        0,
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{number}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=FILE_ROWS,
        file_size_in_bytes=100 * FILE_ROWS,
    )


def fill(table: Table, index: KeyIndex, files: int, found: Keys) -> None:
    """Add data files to the table that exist only as key files.

    :param found: keys that are in the table, in equal parts in each file
    """
    change, random = SnapshotChange(table, Operation.APPEND), np.random.default_rng(1)
    for number in range(files):
        file = data_file(table, number)
        of_file = slice(number, None, files)
        held = [part[of_file] for part in (found.high, found.low)]
        more = FILE_ROWS - len(held[0])
        high, low = (
            np.concatenate([part, random.integers(0, 2**64, more, np.uint64)]) for part in held
        )
        keys = HeldKeys.of(merged([Keys(high, low, np.arange(FILE_ROWS, dtype=np.uint32))]))
        path = index.store.path(file)
        key_files.write(path, keys, index.store.seal(file))
        index.store.upload(table, file)
        change.add([file])
    change.commit()
    table.refresh()


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    began = clock()
    work()
    return clock() - began


def measure(folder: Path, rows: int, keys: int) -> list[str]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/lake.db", warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists("shop")
    table, other = (
        catalog.create_table(f"shop.t{rows}{end}", SCHEMA, None, UNPARTITIONED_PARTITION_SPEC)
        for end in ("", "_appended")
    )
    wanted = batch(keys)
    index = KeyIndex(folder / "keys", KeyHasher(table, COLUMNS))
    hashes = index.hasher.hashes([*wanted.select(COLUMNS).columns])
    fill(table, index, rows // FILE_ROWS, Keys(hashes.high[::2], hashes.low[::2], hashes.position))
    head = table.current_snapshot()
    assert head is not None

    def look_up() -> None:
        found = index.rows_with(table, head, merged([hashes]))
        assert sum(len(part.positions) for part in found) == keys // 2

    index = KeyIndex(folder / "keys", KeyHasher(table, COLUMNS))
    first = timed(look_up, time.process_time)
    best = min(timed(look_up, time.process_time) for _ in range(ROUNDS))
    appended = min(timed(lambda: other.append(wanted), time.process_time) for _ in range(ROUNDS))
    shutil.rmtree(folder / "keys")
    index = KeyIndex(folder / "keys", KeyHasher(table, COLUMNS))
    taken_over = timed(look_up, time.perf_counter)
    shutil.rmtree(folder)
    seconds = (first, best, appended, taken_over)
    return [f"{rows:,}", f"{keys:,}", *(f"{each:.2f} s" for each in seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000, 100_000_000])
    parser.add_argument("--keys", type=int, default=100_000)
    given = parser.parse_args()
    shown = Shown("rows", "keys", "first lookup", "lookup", "append", "take-over")
    for rows in given.rows:
        shown.add_row(*measure(Path(tempfile.mkdtemp()), rows, given.keys))
        Console().print(shown)


if __name__ == "__main__":
    main()
