"""Which processes of this machine are writing a topic's table: a lock that each turn shares.

A batch that was begun before another writer committed the same records is refused, but its files
are in the table's folder until then. Who must find every file waits for such batches to end.
"""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from topicberg.files import topic_file
from topicberg.settings import Settings

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05


@contextmanager
def turn(config: Settings, table: str) -> Iterator[None]:
    """Let :func:`wait_for_turns` of a table wait until the end, or until this process is killed."""
    path = _file(config, table)
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.open("a")), fcntl.LOCK_SH)
        except OSError as error:  # e.g. a full disk: what waits finds nothing to wait for
            logger.debug("%s cannot be locked: %s", path, error)
        yield


def wait_for_turns(config: Settings, table: str, patience: float) -> bool:
    """Wait until the turns that run now have ended, of all processes with this state directory.

    :returns: False if one has not after ``patience`` seconds
    """
    path, deadline = _file(config, table), time.monotonic() + patience
    try:
        stream = path.open("a")
    except FileNotFoundError:
        return True
    with stream:
        path.unlink(missing_ok=True)  # later turns lock a new file
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL_SECONDS)
            else:
                return True


def _file(config: Settings, table: str) -> Path:
    return topic_file(config.state_dir / "tableflow" / "turns", table).with_suffix(".lock")
