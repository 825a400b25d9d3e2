"""The name and the id of an engine: they outlive a restart.

Each engine locks a file of its own in the state directory: the first one of a machine the same file
after each start, a second one beside it another. Then the engine that starts in place of a killed
one is the same member of its group to Kafka, and continues with the same topics at once.
"""

from __future__ import annotations

import fcntl
import logging
import re
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from topicberg.settings import Settings

logger = logging.getLogger(__name__)

ENGINES_TOPIC = "topicberg.engines"
"""Internal topic whose partitions the engines share."""
MAX_ENGINES = 100
"""Of one machine with one state directory."""


def engine_group(config: Settings) -> str:
    """Return the consumer group of the engines that share the topics, by default of one catalog."""
    name = config.engine_group or f"{config.cluster_id}.{config.bucket}"
    return f"{ENGINES_TOPIC}.{name}"


class Identity:
    """``name``: for people, the host's name and from the second engine on a number."""

    def __init__(self, config: Settings) -> None:
        self.name = host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
        self._id = uuid.uuid4().hex
        self._file: TextIO | None = None
        folder = config.state_dir / "tableflow" / "engines"
        try:
            for number in range(1, MAX_ENGINES + 1):
                name = host if number == 1 else f"{host}-{number}"
                if self._lock(folder / f"{name}.id"):
                    self.name = name
                    return
        except OSError as error:  # e.g. a full disk, or a file system without locks
            logger.warning("the engine has no lasting identity: %s", error)
        self.name = f"{host}-{self._id[:6]}"

    def _lock(self, path: Path) -> bool:
        """Lock a file until this process ends; return False if another engine has it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return False
        except OSError:
            stream.close()
            raise
        self._file = stream
        stream.seek(0)
        if identity := re.fullmatch(r"[0-9a-f]{32}", stream.read().strip()):
            self._id = identity[0]
        else:
            self._write()
        return True

    def id(self, another: bool = False) -> str:
        """Return the id of this engine; from now on ``another`` if another process has it."""
        if another:
            self._id = uuid.uuid4().hex
            with suppress(OSError):
                self._write()
        return self._id

    def _write(self) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.write(self._id)
            self._file.flush()
