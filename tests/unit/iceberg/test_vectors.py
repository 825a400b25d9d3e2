"""Deletion vectors: the layout of the specification, checked with PyIceberg's reader."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.typedef import Record

from topicberg.errors import TopicbergError
from topicberg.iceberg.manifests import content_range, identity, new_file, referenced_file, size_of
from topicberg.iceberg.position_deletes import Deletes
from topicberg.iceberg.vectors import decode, encode, read_vectors, write_vectors

POSITIONS = st.sets(
    st.integers(0, 300) | st.integers(65_500, 65_600) | st.integers(0, 2**32 - 1), min_size=1
).map(lambda found: np.array(sorted(found), np.uint32))


def table(folder: Path) -> Any:
    """What the writer of vectors uses of a table."""
    place = SimpleNamespace(new_data_location=lambda name: f"file://{folder}/{name}")
    return SimpleNamespace(io=PyArrowFileIO(), location_provider=lambda: place)


def data_file(path: str) -> Any:
    return new_file(
        3,
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(7),
        record_count=100,
        file_size_in_bytes=1000,
    )


@given(POSITIONS)
def test_decode_returns_what_was_encoded(positions: Any) -> None:
    assert decode(encode(positions)).tolist() == positions.tolist()


@given(st.lists(POSITIONS, min_size=1, max_size=4))
def test_written_vectors_are_read_again(tmp_path: Path, vectors: list[Any]) -> None:
    target = table(tmp_path)
    of = [(data_file(f"file:///data/{n}.parquet"), each) for n, each in enumerate(vectors)]
    written = write_vectors(target, of)
    assert [referenced_file(vector) for vector in written] == [file.file_path for file, _ in of]
    assert len({identity(vector) for vector in written}) == len(written)
    assert {(vector.spec_id, vector.partition[0]) for vector in written} == {(3, 7)}
    expected = {file.file_path: positions.tolist() for file, positions in of}
    assert {path: each.tolist() for path, each in read_vectors(target.io, written)} == expected
    assert dict(read_vectors(target.io, written[-1:])).keys() == {of[-1][0].file_path}
    content = Path(written[0].file_path.removeprefix("file://")).read_bytes()
    assert len(content) == written[0].file_size_in_bytes
    puffin = PuffinFile(content)
    assert [(blob.offset, blob.length) for blob in puffin.footer.blobs] == [
        content_range(vector) for vector in written
    ]
    assert {blob.snapshot_id for blob in puffin.footer.blobs} == {-1}
    assert all(blob.compression_codec is None for blob in puffin.footer.blobs)
    for blob, vector in zip(puffin.footer.blobs, written, strict=True):
        assert blob.properties["cardinality"] == str(vector.record_count)
        assert size_of(vector) == blob.length
    assert {
        vector.referenced_data_file: vector.to_vector().to_pylist()
        for vector in deletion_vectors_from_puffin_file(puffin)
    } == expected


def test_contiguous_rows_take_few_bytes() -> None:
    assert len(encode(np.arange(100_000, dtype=np.uint32))) < 100


@pytest.mark.parametrize("place", [0, 5, 20, -1])
def test_damaged_vector_is_reported(tmp_path: Path, place: int) -> None:
    target, positions = table(tmp_path), np.array([1, 2, 70_000], np.uint32)
    (vector,) = write_vectors(target, [(data_file("file:///data/0.parquet"), positions)])
    path = Path(vector.file_path.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    start, length = content_range(vector)
    content[start + place % length] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(TopicbergError, match=r"vector of file:///data/0\.parquet is damaged"):
        dict(read_vectors(target.io, [vector]))


def test_a_vector_of_no_data_file_is_refused() -> None:
    """ClickHouse/ClickHouse#117488: it would delete nothing."""
    vector = new_file(
        3,
        content=DataFileContent.POSITION_DELETES,
        file_path="file:///data/0.puffin",
        file_format=FileFormat.PUFFIN,
    )
    with pytest.raises(TopicbergError, match="names no data file"):
        Deletes.of([vector])


def test_two_vectors_of_a_data_file_are_refused(tmp_path: Path) -> None:
    """apache/iceberg-go#1372 and apache/iceberg#17206."""
    rows = data_file("file:///data/0.parquet"), np.array([1], np.uint32)
    first, second = (write_vectors(table(tmp_path), [rows])[0] for _ in range(2))
    assert Deletes.of([first, first]).vectors == {"file:///data/0.parquet": first}
    with pytest.raises(TopicbergError, match=r"file:///data/0\.parquet has two deletion vectors"):
        Deletes.of([first, second])


def test_positions_beyond_32_bits_are_reported() -> None:
    two = (2).to_bytes(8, "little") + encode(np.array([1], np.uint32))[16:-4]
    content = b"\xd1\xd3\x39\x64" + two
    blob = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
    with pytest.raises(ValueError, match="beyond"):
        decode(blob)
