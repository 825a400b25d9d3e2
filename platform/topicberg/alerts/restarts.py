"""Whether a process ends again and again: what starts it each time lets it answer now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from topicberg.files import replace_file
from topicberg.settings import Settings
from topicberg.wording import count

STARTS = 3
"""A process that was started again so often within :data:`WINDOW_SECONDS` ends again and again."""
WINDOW_SECONDS = 300.0
STABLE_SECONDS = 90.0
"""One that has run for so long since does not any more."""


def restart_problem(starts: Iterable[float], now: float) -> str | None:
    """Return that a process ends again and again; None: it does not.

    :param starts: when it was started again, in seconds since 1970
    """
    recent = _recent(starts, now)
    if len(recent) < STARTS or now - recent[-1] > STABLE_SECONDS:
        return None
    return f"it ends again and again: {_counted(recent, now)}"


def with_restarts(why: str, starts: Iterable[float], now: float) -> str:
    """Return why a process does not answer, with how often it was started again before."""
    recent = _recent(starts, now)
    return f"{why}; {_counted(recent, now)}" if recent else why


def _recent(starts: Iterable[float], now: float) -> list[float]:
    # One in the future is of a clock that was wrong.
    return sorted(start for start in starts if 0 <= now - start <= WINDOW_SECONDS)


def _counted(recent: Sequence[float], now: float) -> str:
    return f"it was started again {count(len(recent), 'time')} in {now - recent[0]:.0f} s"


def with_start(starts: Sequence[float], started: float, now: float) -> list[float]:
    """Return the starts of a process with one that was seen, of the others those that count.

    :param starts: the first one is not a restart, and stays
    """
    if started in starts:
        return [*starts]
    return [*starts[:1], *_recent(starts[1:], now), started]


def starts_file(config: Settings) -> Path:
    """Return the file in which the engine of the local stack notes its starts.

    It watches the other services, and nothing in it remembers that it ended.
    """
    return config.state_dir / "engine-starts.json"


def note_start(config: Settings) -> None:
    """Write that the engine is started now."""
    path, now = starts_file(config), time.time()
    replace_file(path, json.dumps(with_start(_read_starts(path), now, now)))


def read_restarts(config: Settings) -> list[float]:
    """Return when the engine was started again since the stack was started."""
    return _read_starts(starts_file(config))[1:]


def _read_starts(path: Path) -> list[float]:
    try:
        return [float(start) for start in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError):
        return []  # it is missing or damaged: the next starts are noted again
