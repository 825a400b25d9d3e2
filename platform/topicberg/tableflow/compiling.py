"""Whether the code is compiled that reads and decodes records."""

from __future__ import annotations

import threading
from functools import cache

from topicberg.errors import TopicbergError

_failed: list[str] = []


@cache
def _compiler() -> threading.Thread:
    thread = threading.Thread(target=compile_all, name="compile", daemon=True)
    thread.start()
    return thread


def compile_all() -> None:
    """Compile what executes programs, or load it from disk: about 15 s, or half a second."""
    try:
        from topicberg.formats.columnar.check import check
        from topicberg.formats.columnar.framing import compile_framing
        from topicberg.kafka.librdkafka import compile_gather
        from topicberg.tableflow.key_hash import compile_hashes
        from topicberg.tableflow.key_lookup import compile_lookup

        check()
        compile_framing()
        compile_gather()
        compile_hashes()
        compile_lookup()
    except Exception as error:
        _failed.append(str(error))


def wait_ready() -> None:
    """Wait for the compiler.

    :raises TopicbergError: the code cannot be compiled
    """
    _compiler().join()
    if _failed:
        raise TopicbergError(f"the decoder cannot be compiled: {_failed[0]}")
