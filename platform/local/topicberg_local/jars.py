"""The jars of the local stack: pinned by checksum, fetched once into the usual Maven cache.

``jars.lock`` holds the sha256 of every file, so nothing is resolved at run time. A file is hashed
when it arrives and when this machine sees it first; later its size and time are enough.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from filelock import FileLock
from pydantic import BaseModel

from topicberg.errors import StackError
from topicberg.errors.retry import retry
from topicberg.files import replace_file
from topicberg_local.progress import OnBytes, Report

if TYPE_CHECKING:
    from jgo.maven import Artifact, MavenContext, Resolver

logger = logging.getLogger(__name__)
LOCK_FILE = Path(__file__).with_name("jars.lock")
ATTEMPTS = 3
TIMEOUT_SECONDS = 60


class Coordinate(NamedTuple):
    """One file of a Maven repository; written ``group:artifact:version[:classifier][@ext]``."""

    group: str
    artifact: str
    version: str
    classifier: str = ""
    extension: str = "jar"

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        names, _, extension = text.partition("@")
        group, artifact, version, *classifier = names.split(":")
        return cls(group, artifact, version, "".join(classifier), extension or "jar")

    def __str__(self) -> str:
        names = [self.group, self.artifact, self.version, self.classifier]
        extension = "" if self.extension == "jar" else f"@{self.extension}"
        return ":".join(filter(None, names)) + extension

    @property
    def path(self) -> Path:
        """Where a Maven repository keeps the file."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        name = f"{self.artifact}-{self.version}{classifier}.{self.extension}"
        return Path(*self.group.split("."), self.artifact, self.version, name)

    def of(self, context: MavenContext) -> Artifact:
        component = context.project(self.group, self.artifact).at_version(self.version)
        return component.artifact(self.classifier, self.extension)


class Pin(BaseModel):
    """The expected checksum and size of a file."""

    sha256: str
    size: int


class JarsLock(BaseModel):
    """``jars.lock``: the files of each bundle in class-path order, and the pin of each file."""

    bundles: dict[str, list[str]]
    files: dict[str, Pin]


def read_lock() -> JarsLock:
    return JarsLock.model_validate_json(LOCK_FILE.read_text())


def maven_context(repo_cache: Path | None = None, resolver: Resolver | None = None) -> MavenContext:
    """Return jgo's Maven client with the user's jgo configuration (cache folder, mirrors)."""
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext

    own = GlobalSettings.load()
    return MavenContext(
        repo_cache=repo_cache or own.repo_cache,
        remote_repos=own.repositories or None,
        timeout=TIMEOUT_SECONDS,
        resolver=resolver,
    )


def cache_dir() -> Path:
    """Return the cache that stacks and checkouts share: unpacked archives, class-data archives."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topicberg"


def class_path(bundle: str) -> list[Path]:
    """Return the files of a bundle, in order; :func:`ensure` fetches them."""
    cache = maven_context().repo_cache
    return [cache / Coordinate.parse(name).path for name in read_lock().bundles[bundle]]


def ensure(report: Report) -> None:
    """Fetch the missing files of every bundle; raises StackError: a download fails, or is wrong."""
    try:
        lock, cache, stamps = read_lock(), maven_context().repo_cache, cache_dir() / "jars.json"
        before = _read_stamps(stamps)
        known = dict(before)
        missing = [name for name, pin in lock.files.items() if not _good(cache, name, pin, known)]
        if missing:
            count = report.downloading(len(missing), sum(lock.files[name].size for name in missing))
            _download(cache, missing, lock, count)
            known |= {name: _stamp(cache / Coordinate.parse(name).path) for name in missing}
        if known != before:
            replace_file(stamps, json.dumps(known, indent=1))
    except OSError as error:
        raise StackError(
            f"{error.filename} cannot be written: {error.strerror}",
            hint="free some space, or fix the permissions of the Maven cache, which holds the jars",
        ) from None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _read_stamps(path: Path) -> dict[str, list[int]]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _good(cache: Path, name: str, pin: Pin, known: dict[str, list[int]]) -> bool:
    """Return whether the cached file matches the pin; remove it if it does not."""
    path = cache / Coordinate.parse(name).path
    if not path.exists():
        return False
    stamp = _stamp(path)
    if known.get(name) == stamp:
        return True
    if stamp[0] == pin.size and sha256(path) == pin.sha256:
        known[name] = stamp
        return True
    logger.warning("%s is damaged and is fetched again", path)
    path.unlink(missing_ok=True)
    return False


def _download(cache: Path, names: list[str], lock: JarsLock, count: OnBytes) -> None:
    """Fetch into a separate folder; a file moves into the cache if its checksum is right."""
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".topicberg.lock"):
        aside = cache / ".topicberg"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            with ThreadPoolExecutor(6) as pool:
                pins = (lock.files[name] for name in names)
                try:
                    list(pool.map(partial(_fetch, aside, cache, count), names, pins))
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _fetch(aside: Path, cache: Path, count: OnBytes, name: str, pin: Pin) -> None:
    import requests
    from jgo.maven import PythonResolver

    coordinate = Coordinate.parse(name)
    target, path = cache / coordinate.path, aside / coordinate.path
    if target.exists():  # another process fetched it while this one waited for the lock
        count(pin.size)
        return
    resolver = PythonResolver(progress_callback=lambda _name, _size: nullcontext(count))
    context = maven_context(aside, resolver=resolver)

    def download() -> None:
        try:
            coordinate.of(context).resolve()
        except (RuntimeError, requests.RequestException, OSError):
            count(-path.stat().st_size if path.exists() else 0)
            path.unlink(missing_ok=True)
            raise

    try:
        retry(download, ATTEMPTS, on=OSError)
    except (RuntimeError, requests.RequestException, OSError) as error:
        hint = "check the network and run `topicberg up` again; what was downloaded so far is kept"
        raise StackError(f"cannot download {path.name}: {_reason(error)}", hint=hint) from None
    if (checksum := sha256(path)) != pin.sha256:
        path.unlink()
        raise StackError(
            f"{path.name} has the checksum {checksum[:16]}…, {LOCK_FILE.name} says"
            f" {pin.sha256[:16]}…; the file was removed",
            hint="check for a proxy that changes files, or update the lock file",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)


def _reason(error: Exception) -> str:
    if isinstance(error, RuntimeError):
        return "the registry does not have it"
    cause: BaseException = error
    while isinstance(cause.args[0] if cause.args else None, BaseException):
        cause = cause.args[0]
    reason = getattr(cause, "reason", None)
    return f"{type(error).__name__}: {reason or cause}"
