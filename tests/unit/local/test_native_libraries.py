"""Native libraries are unpacked before a JVM needs them."""

from __future__ import annotations

from pathlib import Path

import pyspark

from topicberg_local import native_libraries

JARS = Path(pyspark.__file__).parent / "jars" / "*"


def test_options_of_sparks_class_path_name_the_libraries(tmp_path: Path) -> None:
    given = dict(one.split("=") for one in native_libraries.options([JARS], tmp_path))
    zstd, snappy = Path(given["-DZstdNativePath"]), Path(given["-Dorg.xerial.snappy.lib.path"])
    library = snappy / given["-Dorg.xerial.snappy.lib.name"]
    assert {zstd, library} == {path for path in tmp_path.rglob("*") if path.is_file()}
    assert library.stat().st_size > 10_000 < zstd.stat().st_size


def test_library_that_was_cut_off_is_unpacked_again(tmp_path: Path) -> None:
    (first, *_), whole = native_libraries.options([JARS], tmp_path), {}
    for path in tmp_path.rglob("lib*"):
        whole[path] = path.read_bytes()
        path.write_bytes(whole[path][:100])
    assert native_libraries.options([JARS], tmp_path)[0] == first
    assert {path: path.read_bytes() for path in whole} == whole


def test_class_path_without_them_has_no_options(tmp_path: Path) -> None:
    assert not native_libraries.options([tmp_path / "absent.jar"], tmp_path)
