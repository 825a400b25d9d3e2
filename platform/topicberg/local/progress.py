"""How far a start is: for a terminal (:mod:`topicberg.cli.stack`), or as lines in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

OnBytes = Callable[[int], None]
"""Progress of a download: bytes that came since the last call (negative: they are fetched anew)."""


class Report(Protocol):
    """Hears how far a start is; from several threads."""

    def downloading(self, files: int, size: int) -> OnBytes:
        """``files`` jars of ``size`` bytes together are missing."""

    def answers(self, service: str, count: int, total: int) -> None:
        """``service`` is the ``count``-th of ``total`` that answers."""


class LogReport:
    """A few plain lines."""

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
