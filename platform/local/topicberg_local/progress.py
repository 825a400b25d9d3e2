"""Progress of a start or a stop: for a terminal (``cli/stack.py``), or as log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from topicberg.wording import listed

logger = logging.getLogger(__name__)
MAX_SHOWN = 10
"""Services and runs that a line names."""
OnBytes = Callable[[int], None]
"""Called with the bytes since the last call; negative if they have to be downloaded again."""


class Report(Protocol):
    """Receives the progress of a start or a stop; called from several threads."""

    def downloading(self, files: int, size: int) -> OnBytes:
        """Report that ``files`` jars of ``size`` bytes together are missing."""

    def answers(self, service: str, count: int, total: int) -> None:
        """Report that ``service`` answers, the ``count``-th of ``total``."""

    def stopping(self, names: Sequence[str]) -> None:
        """Report what has not ended yet, whenever that changes."""


class LogReport:
    """Reports the progress as log lines."""

    def downloading(self, files: int, size: int) -> OnBytes:
        logger.info("downloading %d jars, %.0f MB", files, size / 1e6)
        done = 0
        quarter = 1

        def count(more: int) -> None:
            nonlocal done, quarter
            done += more
            if done * 4 >= size * quarter:
                logger.info("downloaded %.0f of %.0f MB", done / 1e6, size / 1e6)
                quarter += 1

        return count

    def answers(self, service: str, count: int, total: int) -> None:
        logger.info("%s is up (%d of %d)", service, count, total)

    def stopping(self, names: Sequence[str]) -> None:
        logger.info("stopping %s", listed(names, MAX_SHOWN))
