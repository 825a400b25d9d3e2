"""Deletion vectors: which rows of one data file are deleted, as a bitmap in a Puffin file.

Sources: Iceberg's Puffin spec, "File structure", "FileMetadata" and "``deletion-vector-v1`` blob
type"; Iceberg spec, "Deletion Vectors"; RoaringFormatSpec, "Extension for 64-bit implementations".
"""

from __future__ import annotations

import array
import json
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyroaring import BitMap

from topicberg.errors import TopicbergError
from topicberg.iceberg import files
from topicberg.iceberg.manifests import content_range, new_file, referenced_file

_PUFFIN = b"PFA1"
_MAGIC = b"\xd1\xd3\x39\x64"
_ROW_POSITION = 2147483645  # The reserved field id of ``_pos``.
_FRAME = 12  # Bytes of a blob beside the vector: length, magic and checksum.


def encode(positions: NDArray[np.uint32]) -> bytes:
    """Return the blob of a vector: one bitmap, as a data file has fewer than 2**32 rows."""
    bitmap = BitMap(array.array("I", positions.astype(np.uint32).tobytes()))
    bitmap.run_optimize()
    vector = (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + bitmap.serialize()
    content = _MAGIC + vector
    return len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")


def decode(blob: bytes) -> NDArray[np.uint32]:
    """Return the positions of a vector, ascending.

    :raises ValueError: the blob is damaged, or has positions beyond 2**32
    """
    content = blob[4:-4]
    if len(blob) < _FRAME + 8 or int.from_bytes(blob[:4], "big") != len(content):
        raise ValueError("its length is wrong")
    if content[:4] != _MAGIC or zlib.crc32(content).to_bytes(4, "big") != blob[-4:]:
        raise ValueError("its checksum is wrong")
    vector = content[4:]
    bitmaps, rest = int.from_bytes(vector[:8], "little"), vector[8:]
    if not bitmaps:
        return np.empty(0, np.uint32)
    if bitmaps > 1 or int.from_bytes(rest[:4], "little"):
        raise ValueError("it has positions beyond 4,294,967,295")
    return np.frombuffer(BitMap.deserialize(rest[4:]).to_array(), np.uint32)


def write_vectors(
    table: Table, vectors: Sequence[tuple[DataFile, NDArray[np.uint32]]]
) -> list[DataFile]:
    """Write the vectors of data files to one Puffin file; return the metadata of each vector."""
    content, blobs, ranges = bytearray(_PUFFIN), list[dict[str, object]](), list[tuple[int, int]]()
    for of, positions in vectors:
        blob = encode(positions)
        ranges.append((len(content), len(blob)))
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {
                    "referenced-data-file": of.file_path,
                    "cardinality": str(len(positions)),
                },
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": "topicberg"}}).encode()
    content += _PUFFIN + footer + len(footer).to_bytes(4, "little") + bytes(4) + _PUFFIN
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-deletes.puffin")
    with table.io.new_output(path).create() as stream:
        stream.write(bytes(content))
    return [
        new_file(
            of.spec_id,
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PUFFIN,
            partition=of.partition,
            record_count=len(positions),
            file_size_in_bytes=len(content),
            referenced_data_file=of.file_path,
            content_offset=offset,
            content_size_in_bytes=length,
        )
        for (of, positions), (offset, length) in zip(vectors, ranges, strict=True)
    ]


def read_vectors(
    io: FileIO, vectors: Iterable[DataFile]
) -> Iterator[tuple[str, NDArray[np.uint32]]]:
    """Return the path of each vector's data file and the deleted positions.

    Of each Puffin file, the part with these vectors is read at once.

    :raises TopicbergError: a vector is damaged
    """
    by_path: dict[str, list[DataFile]] = defaultdict(list)
    for vector in vectors:
        by_path[vector.file_path].append(vector)

    def read(wanted: list[DataFile]) -> list[tuple[str, NDArray[np.uint32]]]:
        ranges = [content_range(vector) for vector in wanted]
        first, end = min(start for start, _ in ranges), max(sum(placed) for placed in ranges)
        with io.new_input(wanted[0].file_path).open() as stream:
            stream.seek(first)
            content = stream.read(end - first)
        starts = [offset - first for offset, _ in ranges]
        blobs = [content[n : n + size] for n, (_, size) in zip(starts, ranges, strict=True)]
        return [(referenced_file(v), _decoded(b, v)) for v, b in zip(wanted, blobs, strict=True)]

    return chain.from_iterable(files.in_parallel(read, by_path.values()))


def _decoded(blob: bytes, vector: DataFile) -> NDArray[np.uint32]:
    try:
        positions = decode(blob)
        if len(positions) == vector.record_count:
            return positions
        raise ValueError(f"it has {len(positions)} rows, expected {vector.record_count}")
    except ValueError as error:
        raise TopicbergError(
            f"file {vector.file_path}: the deletion vector of {referenced_file(vector)} is "
            f"damaged: {error}",
            hint="roll the table back to a snapshot before it, or rewrite the data file",
        ) from error
