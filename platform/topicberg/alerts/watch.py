"""The engine's watch over the services beside it, and over the daemon, whose sensors send alerts.

A service that is stopped by a signal or hangs causes no error for minutes: who waits for it waits.
So each service is sent a request every ten seconds, with a deadline, and an alert is sent when it
has not answered for a while. The daemon of Dagster is one of them: its sensors cannot report that
it does not run. The sensor ``engine`` watches the engine, and so does whoever expects the requests
to ``TOPICBERG_ALERT_HEARTBEAT_URL``.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import requests
from pydantic import SecretStr

from topicberg.alerts.alert import Alert, AlertState, Outage, read_decisions
from topicberg.alerts.channels import channels, deliver
from topicberg.alerts.outages import DISK, LEFTOVER, MARGIN
from topicberg.alerts.settings import alert_settings
from topicberg.clients.liveness import SECONDS, Check
from topicberg.documents import RUNBOOK, address_of
from topicberg.errors import TopicbergError, split_hint
from topicberg.files import replace_file
from topicberg.settings import Settings
from topicberg.wording import count

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
NO_ANSWER = "no answer"
PATIENCE_SECONDS = 20.0
"""A service that ended is started again in this time. With the interval and the deadline of a
request, an alert is sent 40 seconds after a service froze, at the latest."""
HEARTBEAT_SECONDS, HEARTBEAT_TIMEOUT = 60.0, 10.0
STATE_FILE = "watch.json"
MIN_FREE_BYTES = 32 * 1024**2  # With less, SQLite may not write.
STARTS = 3  # Started again so often within :data:`WINDOW_SECONDS`, it ends again and again.
WINDOW_SECONDS = 300.0
STABLE_SECONDS = 90.0  # One that has run for so long since does not any more.


@dataclass(frozen=True)
class Watched:
    """Something that has to answer."""

    name: str  # Of the process, as in `topicberg status`.
    check: Check
    """What it returns may end with a hint, as an error's text does: that is the remediation then,
    in place of the one here."""
    remediation: str
    title: str = ""  # What it is, in a sentence; by default its name.
    patience: float | Callable[[str], float] = PATIENCE_SECONDS
    """For how many seconds it may not answer, or what returns that for a reason."""
    causes: tuple[str, ...] = ()
    """The names of those without which it cannot answer: its patience begins when they do."""


def fault(
    name: str,
    why: str,
    since: datetime,
    remediation: str,
    title: str = "",
    verb: str = "does not answer",
) -> Alert:
    """Return the alert of something that does not answer."""
    return Alert(
        key=f"service {name}",
        title=f"{name} {verb}",
        what=f"{title or name} {verb}: {why}",
        since=since,
        link="",
        remediation=remediation,
    )


def disk_fault(config: Settings) -> Alert | None:
    """Return the alert of the state directory if its disk is full."""
    if (full := full_disk(config.state_dir)) is None:
        return None
    why, hint = split_hint(full)
    texts = {"title": "the disk is full", "what": f"the state directory: {why}"}
    return fault("disk", why, datetime.now(UTC), hint or "").model_copy(update=texts)


def full_disk(folder: Path) -> str | None:
    """Return which disk has no space left: a transaction that writes nothing succeeds there."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    left = disk.f_bavail * disk.f_frsize
    if left < MIN_FREE_BYTES:
        return (
            f"its disk is full: {left // 1024**2} MB are left in {folder}\n  → free some space; "
            f"`du -x -d 2 {folder.parent}` shows what takes it"
        )
    if disk.f_files and not disk.f_favail:
        return f"its disk has no room for another file: {folder}\n  → delete files of no use"
    return None


def how_to_restart(name: str) -> str:
    """Return the remediation of a service of the local stack that does not answer."""
    return (
        f"see `topicberg logs {name}`; if you end the process that `topicberg status` shows "
        "(`kill -9 PID`), the supervisor starts it again"
    )


def restarting_fault(name: str, why: str, since: datetime, title: str = "") -> Alert:
    """Return the alert of a service of the local stack that ends again and again."""
    hint = (
        f"`topicberg logs {name}` shows why it ends. If it does not, the kernel may have ended it "
        "because memory was short (`dmesg`), its disk may be full (`df -h`), or a user ended it"
    )
    return fault(name, why, since, hint, title, "does not stay up")


@dataclass(frozen=True)
class _Failing:
    since: float  # Monotonic.
    at: datetime
    why: str


class ServiceWatch:
    """What does not answer, and since when; :meth:`look` asks all of them at once.

    :param start_times: returns name → when its process was started (seconds since 1970), if known
    """

    def __init__(
        self,
        watched: Iterable[Watched],
        now: Callable[[], float] = time.monotonic,
        start_times: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._watched = {service.name: service for service in watched}
        self._now, self._start_times = now, start_times
        self._failing: dict[str, _Failing] = {}
        self._requested: dict[str, Future[str | None]] = {}
        self._starts: dict[str, list[float]] = {}
        self._pool = ThreadPoolExecutor(max(1, len(self._watched)), "watch")

    @property
    def failing(self) -> dict[str, Alert]:
        """Key → fault of those that did not answer in the last look."""
        return {f"service {name}": self._fault(name, one) for name, one in self._failing.items()}

    def look(self) -> dict[str, Alert]:
        """Ask, and return key → fault of those that have not answered for their patience."""
        for name, watched in self._watched.items():
            if name not in self._requested or self._requested[name].done():
                self._requested[name] = self._pool.submit(watched.check, SECONDS)
        deadline = time.monotonic() + SECONDS + 1.0
        for name, answer in self._requested.items():
            self._note(name, answer, deadline)
        for name, failing in self._failing.items():
            if self._is_consequence(name):
                self._failing[name] = replace(failing, since=self._now())
        return {
            f"service {name}": self._fault(name, failing)
            for name, failing in self._failing.items()
            if self._now() - failing.since >= self._patience(name, failing.why)
            and not self._is_consequence(name)
        } | self._restarting()

    def _patience(self, name: str, why: str) -> float:
        patience = self._watched[name].patience
        return patience(why) if callable(patience) else patience

    def _restarting(self) -> dict[str, Alert]:
        """Return those that end again and again: they answer now and then, and lose their work."""
        now, faults = time.time(), {}
        for name, started in self._start_times().items():
            self._starts[name] = with_start(self._starts.get(name, ()), started, now)
        for name, watched in self._watched.items():
            restarts = self._starts.get(name, [])[1:]
            if (why := restart_problem(restarts, now)) is not None:
                faults[f"service {name}"] = restarting_fault(
                    name, why, datetime.fromtimestamp(restarts[0], UTC), watched.title
                )
        return faults

    def _is_consequence(self, name: str) -> bool:
        return any(cause in self._failing for cause in self._watched[name].causes)

    def _note(self, name: str, answer: Future[str | None], deadline: float) -> None:
        try:
            why = answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            why = f"{NO_ANSWER} within {SECONDS:.0f} s"
        except Exception as error:  # what cannot be asked does not answer
            why = f"{type(error).__name__}: {error}"
        if why is None:
            self._failing.pop(name, None)
        else:
            before = self._failing.get(name) or _Failing(self._now(), datetime.now(UTC), why)
            self._failing[name] = replace(before, why=why)

    def _fault(self, name: str, failing: _Failing) -> Alert:
        watched = self._watched[name]
        why, hint = split_hint(failing.why)
        return fault(name, why, failing.at, hint or watched.remediation, watched.title)


class Watcher(threading.Thread):
    """Looks again and again, and sends what changed.

    :param report: gets key → fault after each look
    :param is_healthy: whether this process works, as the heartbeat says
    :param ui_url: returns where the Dagster UI is, for links
    :param start_times: as of :class:`ServiceWatch`
    """

    def __init__(
        self,
        config: Settings,
        watched: Iterable[Watched],
        report: Callable[[Mapping[str, Alert]], None],
        is_healthy: Callable[[], bool],
        ui_url: Callable[[], str],
        start_times: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self._config, self._chosen = config, alert_settings()
        self._watch = ServiceWatch(watched, start_times=start_times)
        self._report, self._is_healthy, self._ui_url = report, is_healthy, ui_url
        self._heartbeat_at = -HEARTBEAT_SECONDS
        self._complaints: set[str] = set()
        self._state = read_state(config.state_dir / STATE_FILE)

    def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self.look()
            except Exception:  # the next look may succeed
                logger.exception("the services cannot be watched")
            time.sleep(max(1.0, INTERVAL_SECONDS - (time.monotonic() - began)))

    def look(self) -> None:
        """Look once, send what changed, and the heartbeat if it is due."""
        ui = self._ui_url()
        links = {"link": ui, "runbook": address_of(RUNBOOK, ui)}
        faults = {key: alert.model_copy(update=links) for key, alert in self._watch.look().items()}
        self._report(faults)
        now, known = datetime.now(UTC), self._state
        outages = {k: o for k, o in known.outages.items() if now - o.seen_at < LEFTOVER}
        if disk := disk_fault(self._config):  # what all else follows from
            outages[DISK] = Outage(alert=disk.model_copy(update=links), seen_at=now)
        if outage := outages.get(DISK):  # who waited for space needs a moment
            for key, alert in faults.items():
                if alert.since <= outage.seen_at + MARGIN:
                    faults[key] = alert.model_copy(update={"cause": DISK})
            faults |= {DISK: outage.alert} if disk else {}
        # The sensor reports what follows from an outage, and may not have run while it lasted.
        ended = {
            k: Outage(alert=a, seen_at=now) for k, a in known.alerts.items() if k not in faults
        }
        known = known.model_copy(update={"outages": {**outages, **ended}})
        decisions = read_decisions(self._config)
        state, problems = deliver(known, faults, channels(self._config, self._chosen), decisions)
        suspected = {k: fault for k, fault in self._watch.failing.items() if k not in faults}
        self._state = state = state.model_copy(update={"suspected": suspected})
        # A full disk may not take it: nothing is sent twice all the same.
        for problem in {*problems} - self._complaints:
            logger.warning("%s", problem)
        self._complaints = {*problems}
        try:
            if state != known:
                replace_file(self._config.state_dir / STATE_FILE, state.model_dump_json())
        finally:
            url = self._chosen.heartbeat_url
            if url and time.monotonic() - self._heartbeat_at >= HEARTBEAT_SECONDS:
                self._heartbeat_at = time.monotonic()
                if self._is_healthy():
                    send_heartbeat(url)


def reported_faults(states: Iterable[AlertState]) -> dict[str, Alert]:
    """Return key → fault of all that is active by these states, or is suspected."""
    return {
        key: alert
        for state in states
        for key, alert in {**state.suspected, **state.unsent, **state.alerts}.items()
    }


def read_state(path: Path) -> AlertState:
    """Return what was sent before."""
    try:
        return AlertState.parse(path.read_text())
    except (OSError, UnicodeDecodeError):
        return AlertState()


def send_heartbeat(url: SecretStr) -> None:
    """Request the heartbeat's address, which is a secret."""
    try:
        response = requests.get(url.get_secret_value(), timeout=HEARTBEAT_TIMEOUT)
        problem = None if response.ok else f"HTTP status {response.status_code}"
    except requests.RequestException as error:  # its text contains the address
        problem = type(error).__name__
    if problem:
        hint = "check TOPICBERG_ALERT_HEARTBEAT_URL"
        logger.warning("%s", TopicbergError(f"the heartbeat is not accepted: {problem}", hint=hint))


def restart_problem(starts: Iterable[float], now: float) -> str | None:
    """Return that a process ends again and again, by the times of its starts; None: it does not."""
    recent = _recent(starts, now)
    is_unstable = len(recent) >= STARTS and now - recent[-1] <= STABLE_SECONDS
    return f"it ends again and again: {_counted(recent, now)}" if is_unstable else None


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
    """Return the first start of a process, its restarts that count, and one that was seen."""
    return [*starts] if started in starts else [*starts[:1], *_recent(starts[1:], now), started]


def starts_file(config: Settings) -> Path:
    """Return the file in which the engine of the local stack notes its starts."""
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
