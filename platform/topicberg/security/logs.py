"""Log lines that records cannot forge, and that contain no secrets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from topicberg.security import text
from topicberg.security.redaction import redact


class SafeFormatter(logging.Formatter):
    """Redacts secrets, shows control characters, and indents the further lines of a message."""

    def format(self, record: logging.LogRecord) -> str:
        return text.log(redact(super().format(record)))


def log_to_stderr(
    level: int, form: str = "%(message)s", levels: Mapping[str, int] | None = None
) -> None:
    """Send the log of this process to its standard error.

    :param form: format of a line, see :class:`logging.Formatter`
    :param levels: name of a logger → its own level
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])
    for name, own in (levels or {}).items():
        logging.getLogger(name).setLevel(own)
