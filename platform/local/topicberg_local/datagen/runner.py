"""Generators as background processes: start and stop them, and read their status.

``python -m topicberg_local.datagen.runner TOPIC RATE COUNT SEED`` is the process itself. It holds a
lock as long as it lives, so that a topic never has two generators.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from topicberg.endpoints import load_endpoints
from topicberg.errors import TopicbergError
from topicberg.security.logs import log_to_stderr
from topicberg.settings import Settings, settings
from topicberg.topics import load_topic
from topicberg_local.datagen.producer import GeneratorRun
from topicberg_local.datagen.status import (
    ALIVE,
    DatagenStatus,
    known_topics,
    process_of,
    read_status,
    status_file,
    write_status,
)

logger = logging.getLogger(__name__)
START_SECONDS = 45.0
STOP_SECONDS = 15.0


class DatagenError(TopicbergError):
    """A generator cannot be started or stopped."""


def log_file(config: Settings, topic: str) -> Path:
    return config.state_dir / "logs" / f"datagen-{topic}.log"


def run_here(
    config: Settings,
    topic: str,
    rate: float | None = None,
    count: int | None = None,
    seed: int | None = None,
    on_report: Callable[[DatagenStatus], None] = lambda status: None,
) -> DatagenStatus:
    """Run a generator in this process until it is done or gets SIGINT or SIGTERM.

    :param rate: records a second, 0 for as many as possible; None: the spec's
    :param seed: None: the spec's
    :raises TopicbergError: it could not run, or a record was not delivered
    """
    spec = load_topic(topic, config)
    if spec.generator is None:
        hint = "add `generator: {kind: …}` to its spec"
        raise DatagenError(f"topic {topic} has no generator", hint=hint)
    with _only_one(config, topic):
        before = read_status(config, topic)
        status = DatagenStatus(
            topic=topic,
            kind=spec.generator.kind,
            rate=spec.generator.rate if rate is None else rate,
            count=count,
            seed=spec.generator.seed if seed is None else seed,
            generation=before.generation + 1 if before else 0,
            first_iteration=before.first_iteration + before.sent if before else 0,
            pid=os.getpid(),
            pid_started=psutil.Process().create_time(),
            started_at=time.time(),
            updated_at=time.time(),
        )
        write_status(config, status)
        try:
            fields = {"rate", "count", "seed", "generation", "first_iteration"}
            chosen = status.model_dump(include=fields)
            run = GeneratorRun(spec, load_endpoints(config), config, **chosen)

            def report(sent: int) -> None:
                if status.state == "starting":
                    status.state, status.started_at = "running", time.time()
                status.sent = sent
                write_status(config, status)
                on_report(status)

            with _stopped_by_signals(run):
                run.run(report)
            status.state = "stopped" if run.stopped else "finished"
        except BaseException as error:
            reason = error.message if isinstance(error, TopicbergError) else str(error)
            status.state, status.error = "failed", reason or type(error).__name__
            raise
        finally:
            write_status(config, status)
        return status


def start(
    config: Settings,
    topic: str,
    rate: float | None = None,
    count: int | None = None,
    seed: int | None = None,
) -> DatagenStatus:
    """Start a generator in the background, until it produces; raises DatagenError: it fails."""
    load_topic(topic, config)
    load_endpoints(config)
    if (status := read_status(config, topic)) and status.state in ALIVE:
        raise _already_running(topic, status.pid)
    log = log_file(config, topic)
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [topic, *("" if value is None else str(value) for value in (rate, count, seed))]
    folders = {"STATE_DIR": config.state_dir, "PROJECT_ROOT": config.project_root}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "topicberg_local.datagen.runner", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | {f"TOPICBERG_{name}": str(path) for name, path in folders.items()},
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        exit_code, status = process.poll(), read_status(config, topic)
        mine = status if status and status.pid == process.pid else None
        if mine and (mine.state == "running" or exit_code == 0):
            return mine
        if exit_code is not None:
            tail = "\n".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            reason = (mine and mine.error) or tail or f"see {log}"
            raise DatagenError(f"the generator of {topic} did not start: {reason}")
        time.sleep(0.1)
    process.terminate()
    raise DatagenError(
        f"the generator of {topic} produced nothing within {START_SECONDS:.0f} s; it was ended",
        hint=f"read its log, {log}",
    )


def stop(config: Settings, topic: str) -> DatagenStatus:
    """End a topic's generator, which delivers what is in flight; raises DatagenError: it cannot."""
    status = read_status(config, topic)
    process = process_of(status) if status else None
    if status is None or process is None:
        last = f": the last one {status.state}" if status else ""
        raise DatagenError(f"no generator of {topic} is running{last}")
    try:
        with suppress(psutil.NoSuchProcess):  # it has ended by itself
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)
    except psutil.Error as error:
        raise DatagenError(
            f"the generator of {topic} (pid {status.pid}) does not end: {error}",
            hint="end the process as the user who started it",
        ) from error
    return read_status(config, topic) or status


def stop_all(config: Settings) -> list[DatagenStatus]:
    """End every running generator, as far as possible; return those that were ended."""
    ended = []
    for topic in known_topics(config):
        try:
            status = read_status(config, topic)
            if status is not None and status.state in ALIVE:
                ended.append(stop(config, topic))
        except TopicbergError as error:
            logger.warning("%s", error.message)
    return ended


@contextmanager
def _only_one(config: Settings, topic: str) -> Iterator[None]:
    path = status_file(config, topic).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            status = read_status(config, topic)
            raise _already_running(topic, status.pid if status else None) from None
        yield


@contextmanager
def _stopped_by_signals(run: GeneratorRun) -> Iterator[None]:
    signals = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, lambda *_: run.stop()) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _already_running(topic: str, pid: int | None) -> DatagenError:
    return DatagenError(
        f"a generator of {topic} is running already" + (f" (pid {pid})" if pid else ""),
        hint=f"run `topicberg datagen stop {topic}` to end it",
    )


def main(arguments: list[str]) -> int:
    """Run the background process; it reports to its log and its status file."""
    log_to_stderr(
        logging.INFO,
        "%(asctime)s %(levelname)s %(message)s",
        # The registry's client logs each request.
        {"httpx": logging.WARNING, "httpx2": logging.WARNING},
    )
    topic, rate, *numbers = arguments
    count, seed = (int(number) if number else None for number in numbers)
    try:
        status = run_here(settings(), topic, float(rate) if rate else None, count, seed)
    except TopicbergError as error:
        logger.error("%s", error)
        return 2
    logger.info(
        "%s: %s after %d records, %.0f/s", topic, status.state, status.sent, status.achieved_rate
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
