"""Whether the code is compiled that reads and decodes records."""

from __future__ import annotations

import threading
from functools import cache

from topicberg.errors import TopicbergError

_lock = threading.Lock()
ready = threading.Event()  # Set once the code is compiled.


def compile_all() -> None:
    """Compile what executes programs, or load it from disk: about 15 s, or half a second."""
    from topicberg.formats.check import check
    from topicberg.formats.columnar.framing import compile_framing
    from topicberg.kafka.librdkafka import compile_gather
    from topicberg.tableflow.values.key_hash import compile_keys

    check()
    compile_framing()
    compile_gather()
    compile_keys()


@cache
def _failure() -> str | None:
    """Compile the code once; return why that failed."""
    try:
        compile_all()
    except Exception as error:
        return str(error)
    ready.set()
    return None


def wait_ready() -> None:
    """Compile the code, or wait until another thread has; TopicbergError: it cannot be."""
    with _lock:
        if (failure := _failure()) is not None:
            raise TopicbergError(f"the decoder cannot be compiled: {failure}")
