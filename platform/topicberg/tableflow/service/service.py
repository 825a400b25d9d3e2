"""The engine as a service: ingests each topic whose spec enables Tableflow.

Run as ``python -m topicberg.tableflow.service.service`` as a service of the local stack, and by
``topicberg tableflow serve`` elsewhere.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter

from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.errors import StackError, TopicbergError
from topicberg.kafka.discovery import keep_discovering
from topicberg.kafka.group import GroupMember
from topicberg.security.redaction import log_to_stderr
from topicberg.settings import Settings, settings
from topicberg.tableflow.service import control, metrics, status
from topicberg.tableflow.service.maintenance_scheduler import MaintenanceScheduler
from topicberg.tableflow.service.pool import Pool
from topicberg.tableflow.values.identity import ENGINES_TOPIC, Identity, engine_group
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
GIVE_UP_SECONDS = 20.0  # How long a running batch may take when its topic moves to another engine.
SPECS_SECONDS = 2.0
TICK_SECONDS = 0.2
HANGING_SECONDS = 180.0
"""After which a thread that does not work hangs: requests to Kafka have deadlines of 15 seconds, a
topic is given up in 25."""
LOGINS_SECONDS = 300.0  # How often the deployment's keys are read again.


def _wait_for_endpoints(config: Settings, stopping: threading.Event) -> Endpoints | None:
    while not stopping.wait(0.2):
        try:
            return load_endpoints(config)
        except StackError as error:
            logger.debug("%s", error)
    return None


def _watch_logins(endpoints: Endpoints, config: Settings, are_replaced: threading.Event) -> None:
    """Find whether `topicberg deploy rotate` replaced keys that this process uses.

    Its clients keep the keys that they began with, which are revoked a period after the rotation.

    :param are_replaced: is set when they are
    """
    logins = attrgetter("kafka_login", "registry_login")
    while not are_replaced.wait(LOGINS_SECONDS):
        try:
            if logins(load_endpoints(config)) != logins(endpoints):
                are_replaced.set()
        except TopicbergError as error:
            logger.warning("the keys of the deployment cannot be read again: %s", error)


def _in_background(name: str, work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, name=name, daemon=True).start()


@contextmanager
def _separately(topic: str) -> Iterator[None]:
    """Log what fails for a topic, which must not stop the others; it is tried again."""
    try:
        yield
    except Exception:
        logger.exception("topic %s: unexpected failure; trying again", topic)


class _Share:
    """The topics that this engine has; other engines of its group have the others."""

    def __init__(self, endpoints: Endpoints, config: Settings) -> None:
        self._config, self._identity = config, Identity(config)  # whose lock it has while it runs
        self.engine = self._identity.name
        self.pool = Pool(endpoints, config, self.engine)
        self.changed = threading.Event()  # Set when this engine has other topics.
        group, callbacks = (engine_group(config), ENGINES_TOPIC), (self._give_up, self.changed.set)
        self.member = GroupMember(endpoints, *group, self.engine, self._identity.id, *callbacks)
        self._is_stopping = False
        self._settled: set[str] = set()  # Topics of others, whose statuses do not name this engine.

    def _give_up(self, is_lost: bool) -> None:
        if is_lost:
            self.pool.pause()
        elif not self._is_stopping:
            names = [name for name in self.pool.queue.topics if not self.member.holds(name)]
            self.pool.give_up(names, GIVE_UP_SECONDS)

    def stop(self) -> None:
        """End the turns, then leave the topics to the other engines."""
        self._is_stopping = True
        self.pool.stop(STOP_SECONDS)
        self.member.stop()

    def converge(self, specs: Mapping[str, TopicSpec]) -> None:
        """Ingest the topics that this engine has, as far as that is known."""
        if not self.member.is_known:
            self._report(specs)
            return
        topics, holds = self.pool.queue.topics, self.member.holds
        self.pool.give_up([n for n in topics if n in specs and not holds(n)], STOP_SECONDS)
        for name in topics.keys() - specs.keys():
            with _separately(name):
                logger.info("topic %s: disabled", name)
                self.pool.remove(name, STOP_SECONDS)
                status.remove_status(self._config, name)
        for name, spec in specs.items():
            if name not in topics or (spec is not topics[name].spec and spec != topics[name].spec):
                with self.member.lock, _separately(name):
                    if holds(name):
                        logger.info("topic %s: enabled", name)
                        self.pool.add(spec)
        with self.member.lock:
            if self.member.is_known:
                self.pool.queue.resume()
        others = {name for name in specs if not holds(name)}
        for name in others - self._settled:  # statuses of an earlier process of this engine
            status.give_up_status(self._config, status.TopicStatus(topic=name, engine=self.engine))
        self._settled = others

    def _report(self, specs: Mapping[str, TopicSpec]) -> None:
        """Write why no topic is ingested into the statuses that no other engine writes."""
        if (problem := self.pool.missing or self.member.error) is None:
            return
        for name in specs.keys() - self.pool.queue.topics.keys():
            with suppress(OSError):
                known = status.read_status(self._config, name)
                shown = (
                    known.without(problem)
                    if isinstance(problem, status.Unavailable)
                    else known.failing(problem)
                )
                if known.engine in (None, self.engine) and shown != known:
                    status.write_status(self._config, shown)


def _usable(
    requested: control.Requested, known: Mapping[str, TopicSpec]
) -> tuple[Mapping[str, TopicSpec], dict[str, str]]:
    """Return the topics to materialize, and the errors of those whose spec is invalid, which stops
    neither its own topic nor any other.

    :param known: the topics that are ingested now
    """
    try:
        specs, wrong = requested.topics()
    except (TopicbergError, OSError) as error:
        return known, {"": str(error)}
    except Exception as error:  # what is in one topic's files must not end the others
        return known, {"": repr(error)}
    return specs | {name: spec for name, spec in known.items() if name in wrong}, wrong


class Engine:
    """The running engine, for whoever watches it and what it needs."""

    def __init__(self, config: Settings, pool: Pool) -> None:
        self.config, self.pool = config, pool
        self.looped_at = time.monotonic()  # When the loop that reads specs last worked.

    def is_healthy(self) -> bool:
        """Return whether the threads of the engine work."""
        return time.monotonic() - min(self.looped_at, self.pool.polled_at) < HANGING_SECONDS


def serve(
    config: Settings,
    stopping: threading.Event,
    metrics_port: int | None = None,
    metrics_host: str = metrics.LOOPBACK,
    started: Callable[[Engine], None] = lambda engine: None,
) -> bool:
    """Run until ``stopping``; new and changed specs and requests take effect at once.

    Several engines share the topics: see :mod:`topicberg.kafka.group`.

    :param metrics_port: port of the metrics endpoint; None: no endpoint
    :param metrics_host: address on which the endpoint listens
    :param started: is called once the engine works
    :returns: whether the process has to start again, as keys of the deployment were replaced
    :raises TopicbergError: the endpoint cannot listen
    """
    if (endpoints := _wait_for_endpoints(config, stopping)) is None:
        return False
    share = _Share(endpoints, config)
    pool, engine = share.pool, Engine(config, share.pool)
    if metrics_port is not None:  # an engine that cannot listen must not take topics from others
        metrics.serve_metrics(
            metrics_port,
            lambda: [topic.report.shown for topic in pool.queue.topics.values()],
            host=metrics_host,
            engine=share.engine,
            is_healthy=engine.is_healthy,
        )
    share.member.start()
    # Import it before any worker does: of two concurrent imports, one may see it incomplete.
    import pyspark.sql.connect.session  # noqa: F401

    ended, are_replaced = threading.Event(), threading.Event()
    pool.start()
    scheduler = MaintenanceScheduler(endpoints, config, pool.queue, ended)
    _in_background("tableflow-maintenance", scheduler.run)
    _in_background("topic-discovery", keep_discovering, endpoints, config, ended)
    try:
        started(engine)
    except TopicbergError as error:  # a wrong setting of alerts stops no topic
        logger.error("nothing is watched: %s", error)
    if config.deployment == "cloud":
        _in_background("tableflow-logins", _watch_logins, endpoints, config, are_replaced)
    requested, complaints = control.Requested(config), dict[str, str]()
    while not (stopping.is_set() or are_replaced.is_set()):
        engine.looped_at = time.monotonic()
        known = {name: topic.spec for name, topic in pool.queue.topics.items()}
        specs, wrong = _usable(requested, known)
        for name, reason in wrong.items() - complaints.items():
            then = "the last valid one stays in use" if name in known else "it is not ingested"
            logger.error("topic %s: the spec is invalid, %s: %s", name, then, reason)
        complaints = wrong
        share.converge(specs)
        for name, request in requested.changed().items():
            pool.wake(name, abandons=request.paused is not None)
        until = time.monotonic() + SPECS_SECONDS
        while time.monotonic() < until and not share.changed.is_set():
            for name in control.awaited(config, pool.queue.topics):
                pool.queue.wake(name)
            if stopping.wait(TICK_SECONDS):
                break
        share.changed.clear()
    if are_replaced.is_set():
        logger.info("keys of the deployment were replaced: the engine starts again with them")
    ended.set()
    share.stop()
    return are_replaced.is_set() and not stopping.is_set()


def main(
    metrics_port: int | None,
    metrics_host: str = metrics.LOOPBACK,
    started: Callable[[Engine], None] = lambda engine: None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    :param started: as of :func:`serve`
    :raises TopicbergError: settings of the deployment are missing, or see :func:`serve`
    """
    log_to_stderr(
        logging.INFO,
        "%(asctime)s %(levelname)s %(threadName)s %(message)s",
        {"httpx": logging.WARNING, "httpx2": logging.WARNING},  # a line for every request
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    if serve(settings(), stopping, metrics_port, metrics_host, started):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  this program
    # A worker may be waiting for a long Spark job; leaving it is safe, see commit.py.
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The Tableflow engine.")
    parser.add_argument("--metrics-port", type=int, help="answer on 127.0.0.1 with OpenMetrics")
    main(parser.parse_args().metrics_port)
