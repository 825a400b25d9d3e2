"""Jars: coordinates, the lock, and downloads that go wrong. The repository is a local folder."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lock_jars
import pytest
import sbom

from topicberg.errors import StackError
from topicberg_local import jars

NAME = "org.example:thing:1.0:all@tar.gz"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("org.a.b:c:1.2", "org/a/b/c/1.2/c-1.2.jar"),
        ("org.a.b:c:1.2:tests", "org/a/b/c/1.2/c-1.2-tests.jar"),
        (NAME, "org/example/thing/1.0/thing-1.0-all.tar.gz"),
    ],
)
def test_coordinates(text: str, path: str) -> None:
    coordinate = jars.Coordinate.parse(text)
    assert str(coordinate) == text
    assert coordinate.path == Path(path)


def test_lock_is_of_the_source() -> None:
    """Every coordinate that jars.toml asks for is locked, in the bundle that asks."""
    lock, source = jars.read_lock(), tomllib.loads(lock_jars.SOURCE.read_text())
    assert set(lock.bundles) == set(source)
    for name, bundle in source.items():
        assert {*bundle["coordinates"], *bundle.get("plain", [])} <= set(lock.bundles[name])
    assert {name for names in lock.bundles.values() for name in names} == set(lock.files)
    assert "://" not in jars.LOCK_FILE.read_text()


class Heard:
    def __init__(self) -> None:
        self.announced: list[tuple[int, int]] = []
        self.bytes = 0

    def downloading(self, files: int, size: int) -> Callable[[int], None]:
        self.announced.append((files, size))

        def count(more: int) -> None:
            self.bytes += more

        return count

    def answers(self, service: str, count: int, total: int) -> None:
        raise AssertionError

    def stopping(self, names: Sequence[str]) -> None:
        raise AssertionError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Maven cache, a lock of one file, and no network."""
    content = b"the jar"
    lock = jars.JarsLock(
        bundles={"thing": [NAME]},
        files={NAME: jars.Pin(sha256=hashlib.sha256(content).hexdigest(), size=len(content))},
    )
    lock_file = tmp_path / "jars.lock"
    lock_file.write_text(lock.model_dump_json())
    monkeypatch.setattr(jars, "LOCK_FILE", lock_file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    path = jars.maven_context().repo_cache / jars.Coordinate.parse(NAME).path
    assert path.is_relative_to(tmp_path)
    return path


def test_what_is_there_is_not_fetched(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"the jar")
    heard = Heard()
    jars.ensure(heard)
    assert heard.announced == []
    assert jars.class_path("thing") == [cache]


def test_download_that_fails(cache: Path) -> None:
    heard = Heard()
    with pytest.raises(StackError) as caught:
        jars.ensure(heard)
    assert caught.value.message.startswith("cannot download thing-1.0-all.tar.gz: ")
    assert "\n" not in caught.value.message
    assert heard.announced == [(1, 7)]
    assert not cache.exists()


def test_damaged_file_is_not_used(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"the jat")
    with pytest.raises(StackError, match="cannot download"):
        jars.ensure(Heard())
    assert not cache.exists()


def test_download_of_something_else(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jgo.maven import Artifact

    def resolve(artifact: Artifact) -> Path:
        aside = cache.parents[4] / ".topicberg" / jars.Coordinate.parse(NAME).path
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(b"another")
        return aside

    monkeypatch.setattr(Artifact, "resolve", resolve)
    with pytest.raises(StackError, match="has the checksum ae448ac"):
        jars.ensure(Heard())
    assert not cache.exists()


def test_sbom_has_every_locked_jar_once() -> None:
    lock = jars.JarsLock.model_validate_json(jars.LOCK_FILE.read_bytes())
    document: dict[str, Any] = {"components": [{"bom-ref": "pkg:pypi/dagster@1"}]}
    sbom.add_jars(document, lock)
    sbom.add_jars(document, lock)
    found = {one["bom-ref"]: one for one in document["components"]}
    assert len(found) == len(document["components"]) == 1 + len(lock.files)
    registry = found["pkg:maven/io.apicurio/apicurio-registry-app@3.3.3?classifier=all&type=tar.gz"]
    pin = lock.files["io.apicurio:apicurio-registry-app:3.3.3:all@tar.gz"]
    assert registry["hashes"] == [{"alg": "SHA-256", "content": pin.sha256}]
