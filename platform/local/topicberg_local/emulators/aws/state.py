"""The AWS emulator's memory on disk: one file, replaced as a whole after every change.

The file is a line that says who wrote it, then a checksum and a pickle of moto's backends. A pickle
of another moto or Python can load and be wrong, so such a file is refused rather than guessed at.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import cloudpickle

from topicberg.errors import StackError
from topicberg.files import replacing
from topicberg_local.emulators.aws import athena, emr_serverless

T = TypeVar("T")


class Regions(defaultdict[str, dict[str, T]], Generic[T]):
    """Account → region → a service there, like moto's ``BackendDict``."""

    def __init__(self, make: Callable[[str, str], T]) -> None:
        super().__init__(dict)
        self._make = make

    def of(self, account: str, region: str) -> T:
        service = self[account].get(region)
        if service is None:
            service = self[account][region] = self._make(account, region)
        return service

    def iter_backends(self) -> Iterator[tuple[str, str, T]]:
        for account, regions in self.items():
            for region, backend in regions.items():
                yield account, region, backend


EMR = Regions(emr_serverless.EmrServerless)
ATHENA = Regions(athena.Athena)
OWN = {emr_serverless.SERVICE: EMR, athena.SERVICE: ATHENA}
SERVICES = (*OWN, "ecr", "glue", "iam", "lakeformation", "secretsmanager", "ssm", "sts")
FILE = "aws-state.bin"
Backends = dict[str, dict[str, dict[str, Any]]]
"""service → account id → region → moto's backend."""


def _header() -> bytes:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"topicberg-aws-state 1 moto {version('moto')} python {python}".encode()


def backends(service: str) -> Any:
    """moto's ``BackendDict`` of a service: account id → region → backend, filled on demand.

    Untyped on purpose: each service has a class of its own.
    """
    if service in OWN:
        return OWN[service]
    from moto import backends as index

    return cast(Any, index).get_backend(service)


def _collect() -> Backends:
    found: Backends = {}
    for service in SERVICES:
        for account, region, backend in backends(service).iter_backends():
            found.setdefault(service, {}).setdefault(account, {})[region] = backend
    return found


def _install(saved: Backends) -> None:
    for service in SERVICES:
        accounts = backends(service)
        accounts.clear()
        for account, regions in saved.get(service, {}).items():
            accounts[account].update(regions)


def _empty(cls: type[defaultdict[Any, Any]], factory: Any) -> defaultdict[Any, Any]:
    made = cls.__new__(cls)
    defaultdict.__init__(made, factory)
    return made


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """Pickles what moto leaves unpicklable: defaultdicts whose constructor wants more arguments."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, defaultdict) and type(thing) is not defaultdict:
            made_by = (type(thing), thing.default_factory)
            return _empty, made_by, thing.__dict__, None, iter(thing.items())
        return super().reducer_override(thing)


def _dump(content: Backends) -> bytes:
    """:raises TypeError: something in it could be written, but never read again"""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(content)
    pickle.loads(buffer.getvalue())  # noqa: S301  our own bytes
    return buffer.getvalue()


class State:
    """moto's backends and the file that holds them, in the service's own folder."""

    def __init__(self, directory: Path) -> None:
        self.path, self._saved = directory / FILE, b""

    def load(self) -> None:
        """Fill moto from the file, if there is one; raises StackError: it cannot be used."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = self.path.read_bytes()
        except FileNotFoundError:
            self._saved = _dump(_collect())
            return
        except OSError as error:
            raise StackError(f"{self.path} cannot be read: {error}") from None
        header, _, rest = content.partition(b"\n")
        if header != _header():
            raise StackError(
                f"{self.path} was written by «{header[:80].decode('utf-8', 'replace')}», "
                f"this is «{_header().decode()}»",
                hint="install the version that wrote it, or move the file away to start empty",
            )
        checksum, _, pickled = rest.partition(b"\n")
        if hashlib.sha256(pickled).hexdigest().encode() != checksum:
            raise StackError(
                f"{self.path} is damaged: its checksum does not match",
                hint="restore it from a backup, or move it away to start empty",
            )
        self._saved = pickled
        try:
            self.restore()
        except Exception as error:
            raise StackError(f"{self.path} cannot be loaded: {error!r}") from None

    def restore(self) -> None:
        """Put moto back to what was saved last."""
        _install(pickle.loads(self._saved))  # noqa: S301  only ever written by us, mode 0600

    def save(self) -> None:
        """Replace the file atomically, if anything changed; raises OSError: the old one stays."""
        pickled = _dump(_collect())
        if pickled == self._saved:
            return
        checksum = hashlib.sha256(pickled).hexdigest().encode()
        with replacing(self.path) as file:
            file.write(b"\n".join([_header(), checksum, pickled]))
            file.flush()
            os.fsync(file.fileno())
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._saved = pickled
