"""The engine's watch over the services beside it, and over the daemon, whose sensors send alerts.

A service that is stopped by a signal or hangs causes no error for minutes: who waits for it waits.
So each service is sent a request every ten seconds, with a deadline, and an alert is sent when it
has not answered for a while. The daemon of Dagster is one of them: its sensors cannot report that
it does not run. The sensor ``engine`` watches the engine, and so does whoever expects the requests
to ``TOPICBERG_ALERT_HEARTBEAT_URL``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import requests
from pydantic import SecretStr, ValidationError

from topicberg.alerts.alert import Alert, AlertState, Outage
from topicberg.alerts.channels import channels, deliver
from topicberg.alerts.dagster_health import full_disk
from topicberg.alerts.decisions import read_decisions
from topicberg.alerts.outages import DISK, LEFTOVER, MARGIN
from topicberg.alerts.restarts import restart_problem, with_start
from topicberg.alerts.settings import alert_settings
from topicberg.clients.liveness import SECONDS, Check
from topicberg.documents import RUNBOOK, address_of
from topicberg.errors import TopicbergError, split_hint
from topicberg.files import replace_file
from topicberg.settings import Settings

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
NO_ANSWER = "no answer"
PATIENCE_SECONDS = 20.0
"""A service that ended is started again in this time. With the interval and the deadline of a
request, an alert is sent 40 seconds after a service froze, at the latest."""
HEARTBEAT_SECONDS = 60.0
HEARTBEAT_TIMEOUT = 10.0
STATE_FILE = "watch.json"


@dataclass(frozen=True)
class Watched:
    """Something that has to answer."""

    name: str
    """Of the process, as in `topicberg status`."""
    check: Check
    """What it returns may end with a hint, as an error's text does: that is the remediation then,
    in place of the one here."""
    remediation: str
    title: str = ""
    """What it is, in a sentence; by default its name."""
    patience: float | Callable[[str], float] = PATIENCE_SECONDS
    """For how many seconds it may not answer, or what returns that for a reason."""
    causes: tuple[str, ...] = ()
    """The names of those without which it cannot answer: its patience begins when they do."""


def fault(name: str, why: str, since: datetime, remediation: str, title: str = "") -> Alert:
    """Return the alert of something that does not answer."""
    return Alert(
        key=f"service {name}",
        title=f"{name} does not answer",
        what=f"{title or name} does not answer: {why}",
        severity="error",
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


def how_to_restart(name: str) -> str:
    """Return the remediation of a service of the local stack that does not answer."""
    return (
        f"see `topicberg logs {name}`; if you end the process that `topicberg status` shows "
        "(`kill -9 PID`), the supervisor starts it again"
    )


def restarting_fault(name: str, why: str, since: datetime, title: str = "") -> Alert:
    """Return the alert of a service of the local stack that ends again and again."""
    remediation = (
        f"`topicberg logs {name}` shows why it ends. If it does not, the kernel may have ended it "
        "because memory was short (`dmesg`), its disk may be full (`df -h`), or a user ended it"
    )
    alert = fault(name, why, since, remediation, title=title)
    text = f"{title or name} does not stay up: {why}"
    return alert.model_copy(update={"title": f"{name} does not stay up", "what": text})


@dataclass(frozen=True)
class _Failing:
    since: float
    """Monotonic."""
    at: datetime
    why: str


class ServiceWatch:
    """What does not answer, and since when; :meth:`look` asks all of them at once.

    :param start_times: returns name → when its process was started, in seconds since 1970, as far
        as that is known
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
        faults = {
            f"service {name}": self._fault(name, failing)
            for name, failing in self._failing.items()
            if self._now() - failing.since >= self._patience(name, failing.why)
            and not self._is_consequence(name)
        }
        return faults | self._restarting()

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
            return
        failure = self._failing.get(name)
        since, began_at = (
            (failure.since, failure.at) if failure else (self._now(), datetime.now(UTC))
        )
        self._failing[name] = _Failing(since, began_at, why)

    def _fault(self, name: str, failing: _Failing) -> Alert:
        one = self._watched[name]
        why, hint = split_hint(failing.why)
        return fault(name, why, failing.at, hint or one.remediation, title=one.title)


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
        self._config = config
        self._chosen = alert_settings()
        self._ui_url = ui_url
        self._watch = ServiceWatch(watched, start_times=start_times)
        self._report, self._is_healthy = report, is_healthy
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
        outage, now = self._state.outages.get(DISK), datetime.now(UTC)
        if disk := disk_fault(self._config):  # what all else follows from
            outage = Outage(alert=disk.model_copy(update=links), seen_at=now)
        if outage and now - outage.seen_at < LEFTOVER:  # who waited for space needs a moment
            for key, alert in faults.items():
                if alert.since <= outage.seen_at + MARGIN:
                    faults[key] = alert.model_copy(update={"cause": DISK})
            faults |= {DISK: outage.alert} if disk else {}
        known = self._state.model_copy(update={"outages": {DISK: outage} if outage else {}})
        decisions = read_decisions(self._config)
        state, problems = deliver(known, faults, channels(self._config, self._chosen), decisions)
        suspected = {k: fault for k, fault in self._watch.failing.items() if k not in faults}
        state = state.model_copy(update={"suspected": suspected})
        self._state = state  # which a full disk may not take: nothing is sent twice all the same
        for problem in {*problems} - self._complaints:
            logger.warning("%s", problem)
        self._complaints = {*problems}
        if state != known:
            replace_file(self._config.state_dir / STATE_FILE, state.model_dump_json())
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
    except (OSError, ValidationError, UnicodeDecodeError):
        return AlertState()


def send_heartbeat(url: SecretStr) -> None:
    """Request the heartbeat's address, which is a secret."""
    try:
        response = requests.get(url.get_secret_value(), timeout=HEARTBEAT_TIMEOUT)
        problem = None if response.ok else f"HTTP status {response.status_code}"
    except requests.RequestException as error:  # its text contains the address
        problem = type(error).__name__
    if problem:
        unsent = TopicbergError(
            f"the heartbeat is not accepted: {problem}", hint="check TOPICBERG_ALERT_HEARTBEAT_URL"
        )
        logger.warning("%s", unsent)
