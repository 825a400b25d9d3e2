"""The registry's archive is unpacked once, whatever is there and however many stacks start."""

from __future__ import annotations

import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from topicberg_local.schema_registry import unpack

FILES = {"quarkus-run.jar": b"runner", **{f"lib/{n}.jar": bytes(100_000) for n in range(50)}}
STACKS = 6


@pytest.fixture(params=["", "registry-3.3/"], ids=["files", "folder"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With and without a folder around everything."""
    content = tmp_path / "content"
    for name, data in FILES.items():
        path = content / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    found = tmp_path / "registry-3.3-all.tar.gz"
    with tarfile.open(found, "w:gz") as tar:
        tar.add(content, request.param or ".")
    return found


def _unpacked(home: Path) -> dict[str, bytes]:
    files = (path for path in home.rglob("*") if path.is_file())
    return {str(path.relative_to(home)): path.read_bytes() for path in files}


def test_stacks_that_start_at_once_share_one_folder(archive: Path, tmp_path: Path) -> None:
    home, start = tmp_path / "cache" / "registry", threading.Barrier(STACKS)

    def of_stack() -> dict[str, bytes]:
        start.wait()
        unpack(archive, home)
        return _unpacked(home)

    with ThreadPoolExecutor(STACKS) as pool:
        stacks = [pool.submit(of_stack) for _ in range(STACKS)]
        assert all(one.result() == FILES for one in stacks)


def test_what_a_killed_stack_left_is_replaced(archive: Path, tmp_path: Path) -> None:
    home = tmp_path / "cache" / "registry"
    for left in (home, home.with_name(f".{home.name}")):
        (left / "lib").mkdir(parents=True)
        (left / "lib" / "old.jar").write_bytes(b"half")
    unpack(archive, home)
    assert _unpacked(home) == FILES
