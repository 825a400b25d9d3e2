"""A limit of the memory that decoding takes: a record decides how large its row is.

Source: ``setrlimit(2)``, ``RLIMIT_AS``.
"""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topicberg.errors import TopicbergError


class ExhaustedError(TopicbergError):
    """Records take more memory than a process has that decodes them."""


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Limit what this process takes beyond what it has.

    Where the system has no such limit (macOS), there is none.

    :param size: bytes
    :raises ExhaustedError: it was not enough
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    own = _address_space()
    if own is not None:
        limit = own + size if before[0] == resource.RLIM_INFINITY else min(before[0], own + size)
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        raise ExhaustedError(f"decoding takes more than {size // 1024**2} MB of memory") from error
    finally:
        if own is not None:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _is_of_memory(error: Exception) -> bool:
    is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_full or isinstance(error, MemoryError) or "can't start new thread" in str(error)


def lacking_memory(size: int) -> ExhaustedError | None:
    """Return an error if not even a part of what decoding may take is there.

    :param size: bytes that it may take
    """
    try:
        with limited(size):
            bytearray(size // 4)
    except ExhaustedError as error:
        return error
    return None


def _address_space() -> int | None:
    """Return the bytes that this process has reserved; None: the system does not say it."""
    if not sys.platform.startswith("linux"):
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
