"""The rows that changes leave, as data files."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from topicberg.iceberg.data_files import DataFileWriter, WriteTarget
from topicberg.iceberg.files import discard
from topicberg.tableflow.batch_keys import BatchKeys, WrittenKeys
from topicberg.tableflow.sizing import FILE_RECORDS

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile

    from topicberg.tableflow.folding import NewRows


def write_rows(
    target: WriteTarget, io: FileIO, rows: NewRows, most: int, check: Callable[[], None]
) -> tuple[list[DataFile], BatchKeys]:
    """Write rows as data files, several at once; return these and their keys.

    :param most: how many threads write
    :param check: called now and then; raises if the batch is abandoned
    """
    per_file = FILE_RECORDS * (1 if target.spec.is_unpartitioned() else 2)
    count = max(1, round(len(rows.places) / per_file))
    writers = [DataFileWriter(target, io) for _ in range(count)]
    bounds = np.linspace(0, len(rows.places), count + 1).astype(int).tolist()

    def write(writer: DataFileWriter, inside: tuple[int, int]) -> BatchKeys:
        keys = WrittenKeys()
        with writer:
            for part, of_part in rows.parts(*inside):
                check()
                keys.add(of_part, np.arange(len(of_part.high)), writer.write(part, are_kept=True))
        return keys.all()

    try:
        with ThreadPoolExecutor(min(count, most)) as threads:
            keys = BatchKeys.joined(threads.map(write, writers, pairwise(bounds)))
    except BaseException:
        discard(io, [file for writer in writers for file in writer.files])
        raise
    return [file for writer in writers for file in writer.files], keys
