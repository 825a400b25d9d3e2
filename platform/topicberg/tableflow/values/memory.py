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
    """Limit how many bytes this process takes beyond what it has, where the system can (not macOS).

    :raises ExhaustedError: it was not enough
    """
    before, own = resource.getrlimit(resource.RLIMIT_AS), _address_space()
    if own is not None:
        limit = own + size if before[0] == resource.RLIM_INFINITY else min(before[0], own + size)
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
        has_no_thread = "can't start new thread" in str(error)
        if not (is_full or has_no_thread or isinstance(error, MemoryError)):
            raise
        raise ExhaustedError(f"decoding takes more than {size // 1024**2} MB of memory") from error
    finally:
        if own is not None:
            resource.setrlimit(resource.RLIMIT_AS, before)


def lacking_memory(size: int) -> ExhaustedError | None:
    """Return an error if not even a part of the bytes that decoding may take is there."""
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
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
