"""PyIceberg's readers and writers of the object store. Each process that decodes and each worker of
Spark imports this module, so it imports nothing else of topicberg."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Properties

VENDED_SECONDS = 900.0
"""How long keys are valid if the catalog does not say: the shortest that AWS's STS gives out."""


class LakeFileIO(PyArrowFileIO):
    """Writes a small file by one request; by default Arrow begins a multipart upload for each."""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        # PyIceberg has no property for the option. A file of 20 KB takes 2 ms instead of 5 on the
        # local stack, a quarter of its store's CPU time, and one paid request of S3 instead of 3.
        rebuild, (options,) = super()._initialize_s3_fs(netloc).__reduce__()
        return rebuild({**options, "allow_delayed_open": True})


class VendedFileIO(LakeFileIO):
    """Reads and writes with keys that the catalog gave out, and requests others in time."""

    renew: Callable[[], Properties] | None = None  # Returns the properties with the newest keys.

    def __init__(self, properties: Properties) -> None:
        super().__init__(properties)
        self._lock = threading.Lock()
        self._renew_at = _renewal(properties)
        self._cached: Any = self.fs_by_scheme  # an lru_cache
        self.fs_by_scheme = self._file_system

    def _file_system(self, scheme: str, netloc: str | None = None) -> FileSystem:
        with self._lock:
            if self.renew is not None and time.time() >= self._renew_at:
                self.properties = self.renew()
                self._renew_at = _renewal(self.properties)
                self._cached.cache_clear()
            return self._cached(scheme, netloc)


def _renewal(properties: Properties) -> float:
    """Return when (seconds since 1970) to request new keys: after two thirds of their life."""
    now = time.time()
    stated = properties.get("s3.session-token-expires-at-ms")
    left = float(stated) / 1000 - now if stated else VENDED_SECONDS
    return now + max(0.0, left * 2 / 3)
