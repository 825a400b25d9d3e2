"""What users decide about alerts: who works on one, and which are not sent for a while.

A file of the state directory, beside the alerts themselves, has it. Each decision expires.
"""

from __future__ import annotations

import getpass
import logging
import os
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from filelock import FileLock
from pydantic import BaseModel, ValidationError

from topicberg.errors import TopicbergError
from topicberg.files import replace_file

if TYPE_CHECKING:
    from topicberg.settings import Settings

logger = logging.getLogger(__name__)

FILE = "alert-decisions.json"
KEPT = timedelta(days=30)
"""How long an expired decision stays in the file."""


class Decision(BaseModel, frozen=True):
    """Who decided what, until when."""

    by: str
    reason: str = ""
    at: datetime
    until: datetime

    @property
    def by_whom(self) -> str:
        return f"{self.by} ({self.reason})" if self.reason else self.by


class Acknowledgement(Decision, frozen=True):
    """Someone works on a fault; it is sent again if it still exists when this expires."""


class Silence(Decision, frozen=True):
    """Alerts that match a pattern are not sent until it expires."""

    pattern: str

    def covers(self, key: str, assets: Collection[str]) -> bool:
        """Return whether the pattern, which may have ``*``, is the key, an asset or a table."""
        names = {key, *assets, *(asset.partition("/")[2] for asset in assets)}
        return any(fnmatchcase(name, self.pattern) for name in names)


class Decisions(BaseModel, frozen=True):
    """The decisions of a deployment."""

    acknowledged: dict[str, Acknowledgement] = {}
    """By the key of the alert."""
    silences: tuple[Silence, ...] = ()

    def silence_of(self, key: str, assets: Collection[str], moment: datetime) -> Silence | None:
        """Return the silence that covers an alert at a time, the longest one."""
        found = [one for one in self.silences if one.until > moment and one.covers(key, assets)]
        return max(found, key=lambda silence: silence.until, default=None)


def read_decisions(config: Settings) -> Decisions:
    """Return the decisions; none if the file is damaged, so that every alert is sent."""
    path = config.state_dir / FILE
    try:
        return Decisions.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        if not isinstance(error, FileNotFoundError):
            logger.warning("%s cannot be read, so no alert is silenced: %s", path, error)
        return Decisions()


def acknowledge(config: Settings, key: str, reason: str, lasting: timedelta) -> Acknowledgement:
    """Note that the user works on a fault; raise TopicbergError if the file cannot be written."""
    given = Acknowledgement(**_by_now(reason, lasting))
    _change(
        config,
        lambda known: known.model_copy(update={"acknowledged": {**known.acknowledged, key: given}}),
    )
    return given


def silence(config: Settings, pattern: str, reason: str, lasting: timedelta) -> Silence:
    """Silence alerts, in place of an earlier silence of the pattern, as :func:`acknowledge`."""
    given = Silence(pattern=pattern, **_by_now(reason, lasting))
    _change(config, lambda known: _silenced(known, pattern, (given,)))
    return given


def end_silence(config: Settings, pattern: str) -> None:
    """End the silence of a pattern now, if there is one, as :func:`acknowledge`."""
    _change(config, lambda known: _silenced(known, pattern))


def _silenced(known: Decisions, pattern: str, given: tuple[Silence, ...] = ()) -> Decisions:
    others = (one for one in known.silences if one.pattern != pattern)
    return known.model_copy(update={"silences": (*others, *given)})


def _by_now(reason: str, lasting: timedelta) -> dict[str, object]:
    now = datetime.now(UTC)
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # in a container, a user may have no name
        user = f"user {os.getuid()}"
    return {"by": user, "reason": reason, "at": now, "until": now + lasting}


def _change(config: Settings, change: Callable[[Decisions], Decisions]) -> None:
    path, oldest = config.state_dir / FILE, datetime.now(UTC) - KEPT
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            known = change(read_decisions(config))
            kept = Decisions(
                acknowledged={
                    k: acknowledgement
                    for k, acknowledgement in known.acknowledged.items()
                    if acknowledgement.until > oldest
                },
                silences=tuple(silence for silence in known.silences if silence.until > oldest),
            )
            replace_file(path, kept.model_dump_json(indent=2))
    except OSError as error:
        raise TopicbergError(
            f"{path} cannot be written: {error.strerror}",
            hint="free disk space or fix the permissions; TOPICBERG_STATE_DIR sets another folder",
        ) from None
