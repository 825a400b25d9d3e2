"""The engine as a service: one worker for each topic whose spec enables Tableflow.

Run as ``python -m topicberg.tableflow.service`` as a service of the local stack, and by
``topicberg tableflow serve`` elsewhere.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time

from topicberg import kafka
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.errors import StackError, TableflowError, TopicbergError
from topicberg.iceberg import delta
from topicberg.kafka.consumer import first_times
from topicberg.kafka.offsets import Offsets
from topicberg.security.logs import log_to_stderr
from topicberg.settings import Settings, settings
from topicberg.tableflow import control, failures
from topicberg.tableflow.engine import Commit, Ingestor
from topicberg.tableflow.keeper import Keeper
from topicberg.tableflow.metrics import serve_metrics
from topicberg.tableflow.status import (
    FailingFormat,
    OpenTransaction,
    TopicStatus,
    remove_status,
    write_status,
)
from topicberg.topics import TopicSpec, check_topics, requests

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
SUSPENDED_RETRY_SECONDS = 30.0
"""How often a suspended topic is tried again: once the cause is fixed, it resumes by itself."""
MAX_BACKOFF_SECONDS = 15.0
OPEN_SECONDS = 10.0
"""A transaction that has been open for less time is not reported."""
STOP_SECONDS = 5.0
SPECS_SECONDS = 2.0


class Worker(threading.Thread):
    """Ingests one topic: commits at its interval, suspends or retries after a failure."""

    def __init__(
        self,
        spec: TopicSpec,
        endpoints: Endpoints,
        config: Settings,
        counters: dict[str, int] | None = None,
    ) -> None:
        """:param counters: of the worker that this one replaces, by their names"""
        super().__init__(name=f"tableflow-{spec.name}", daemon=True)
        self.spec = spec
        self._endpoints = endpoints
        self._config = config
        self._stop_requested = threading.Event()
        self._woken = threading.Event()
        self._backoff = POLL_SECONDS
        self._committed_at = 0.0
        self._readable = 0
        self._stuck: dict[int, tuple[int, float]] = {}
        self._status = TopicStatus(
            topic=spec.name,
            write_mode=spec.write_mode.upper(),
            error_handling=spec.tableflow.error_handling.mode,
            **(counters or {}),
        )
        self._written = self._status

    @property
    def status(self) -> TopicStatus:
        """The newest status; for other threads."""
        return self._status

    def stop(self) -> None:
        self._stop_requested.set()
        self._woken.set()

    def wake(self) -> None:
        """Try again at once."""
        self._woken.set()

    def _wait(self, seconds: float) -> bool:
        """Wait until it is time for the next turn; return False if the worker has to stop."""
        self._woken.wait(seconds)
        self._woken.clear()
        return not self._stop_requested.is_set()

    def run(self) -> None:
        wait = 0.0
        ingestor: Ingestor | None = None
        while self._wait(wait):
            try:
                if ingestor is None:
                    self._ensure_topic()
                    ingestor = Ingestor(self.spec, self._endpoints, self._config)
                    ingestor.table()
                wait = self._turn(ingestor)
                self._backoff = POLL_SECONDS
            except TableflowError as error:
                logger.error("topic %s is suspended: %s", self.spec.name, error)
                self._failed(phase="FAILED", suspended=True, error_message=str(error))
                wait = SUSPENDED_RETRY_SECONDS
            except Exception as error:
                # Whatever failed (Spark, broker, catalog or store), the next turn starts from the
                # offsets that the table holds.
                if not isinstance(error, TopicbergError):
                    error = failures.explain(f"topic {self.spec.name}", error)
                logger.warning("%s; trying again", error)
                self._failed(phase="PENDING", suspended=False, error_message=str(error))
                if ingestor is not None:
                    ingestor.close()
                wait, self._backoff = self._backoff, min(self._backoff * 2, MAX_BACKOFF_SECONDS)

    def _ensure_topic(self) -> None:
        """Create the topic if it is missing; if it differs from its spec, ingest it as it is.

        A topic without a spec is not created: its number of partitions is not known.
        """
        described = self.spec.value_schema.file is not None
        if not described and self.spec.name not in {s.name for s in check_topics(self._config)[0]}:
            return
        try:
            kafka.ensure_topic(self.spec, self._endpoints, self._config)
        except TopicbergError as error:
            logger.warning("topic %s: %s", self.spec.name, error)

    def _turn(self, ingestor: Ingestor) -> float:
        """Commit if a commit is due; return the seconds until the next turn."""
        due = self._committed_at + self.spec.tableflow.commit_interval_seconds
        self._measure_lag()
        many = self._readable >= ingestor.max_records
        if (wait := due - time.monotonic()) > 0 and not many:
            return min(wait, POLL_SECONDS)
        commit = ingestor.step()
        if commit.records or self._status.phase != "RUNNING" or self._differs(commit):
            self._committed(commit)
            self._sync_delta(ingestor)
        if commit.records:
            self._committed_at = time.monotonic()
        return 0.0 if commit.backlog else POLL_SECONDS

    def _differs(self, commit: Commit) -> bool:
        """Return whether the table differs from the status although there are no new records."""
        known = self._status
        current = commit.rows_skipped, list(commit.skip_requests), commit.missed_deletes
        return current != (known.rows_skipped, known.skip_requests, known.missed_deletes)

    def _sync_delta(self, ingestor: Ingestor) -> None:
        """Update the Delta log, if the topic has one; its failure does not stop Iceberg.

        :raises TopicbergError: the table cannot be read, which is not a failure of Delta
        """
        failing: list[FailingFormat] = []
        if "DELTA" in self.spec.tableflow.table_formats:
            table = ingestor.table()
            try:
                delta.sync(table, self.spec)
            except TopicbergError as error:
                logger.warning("topic %s: %s", self.spec.name, error)
                failing.append(FailingFormat(format="DELTA", error_message=str(error)))
        self._report(failing_table_formats=failing)

    def _measure_lag(self) -> None:
        """Measure the records that wait, once the table's offsets are known.

        Up to the end of the log: records that an open transaction holds back count as waiting.
        """
        held = self._status.end_offsets
        if not held:
            return
        latest = kafka.high_watermarks(self._endpoints, self.spec.name)
        lag = {p: max(0, end - held.get(p, 0)) for p, end in latest.items()}
        stable = latest
        if any(lag.values()):
            stable = kafka.end_offsets(self._endpoints, self.spec.name)
        self._readable = sum(max(0, end - held.get(p, 0)) for p, end in stable.items())
        stuck = {p: stable[p] for p in latest if stable.get(p, latest[p]) < latest[p]}
        self._report(lag=lag, open_transactions=self._open_transactions(stuck))

    def _open_transactions(self, stuck: Offsets) -> dict[int, OpenTransaction]:
        """Return the transactions that have been open for :data:`OPEN_SECONDS`.

        :param stuck: partition → first offset that consumers cannot read
        """
        now = time.monotonic()
        self._stuck = {
            p: self._stuck[p] if self._stuck.get(p, (None,))[0] == offset else (offset, now)
            for p, offset in stuck.items()
        }
        known = self._status.open_transactions
        found = {p: known[p] for p, o in stuck.items() if p in known and known[p].offset == o}
        new = {
            p: offset
            for p, (offset, since) in self._stuck.items()
            if p not in found and now - since >= OPEN_SECONDS
        }
        if new:
            times = first_times(self._endpoints, self.spec.name, new)
            now_ms = int(time.time() * 1000)
            for partition, offset in new.items():
                since_ms = min(times.get(partition, now_ms), now_ms)
                found[partition] = OpenTransaction(offset=offset, since_ms=since_ms)
                logger.warning(
                    "topic %s, partition %d: a transaction has been open since offset %d",
                    *(self.spec.name, partition, offset),
                )
        return found

    def _committed(self, commit: Commit) -> None:
        if commit.records:
            logger.info(
                "topic %s: committed %d records in snapshot %s",
                self.spec.name,
                commit.records,
                commit.snapshot_id,
            )
        self._report(
            phase="RUNNING",
            suspended=False,
            error_message=None,
            failing_since_ms=None,
            snapshot_id=commit.snapshot_id,
            end_offsets=commit.end_offsets,
            rows_committed=self._status.rows_committed + commit.records,
            rows_skipped=commit.rows_skipped,
            skip_requests=list(commit.skip_requests),
            missed_deletes=commit.missed_deletes,
            bytes_committed=self._status.bytes_committed + commit.bytes,
            data_files=commit.data_files,
            commits=self._status.commits + bool(commit.records),
            committed_at_ms=int(time.time() * 1000)
            if commit.records
            else self._status.committed_at_ms,
        )

    def _failed(self, **changes: object) -> None:
        since = self._status.failing_since_ms or int(time.time() * 1000)
        self._report(**changes, failures=self._status.failures + 1, failing_since_ms=since)

    def _report(self, **changes: object) -> None:
        self._status = self._status.model_copy(update=changes)
        if self._status == self._written:
            return
        try:
            write_status(self._config, self._status)
        except OSError as error:  # e.g. a full disk; the next report writes it
            logger.warning("topic %s: the status cannot be written: %s", self.spec.name, error)
        else:
            self._written = self._status


def _wait_for_endpoints(config: Settings, stopping: threading.Event) -> Endpoints | None:
    while not stopping.wait(0.2):
        try:
            return load_endpoints(config)
        except StackError as error:
            logger.debug("%s", error)
    return None


def _resumed(config: Settings) -> dict[str, float]:
    """Return when each topic was last resumed.

    Unreadable requests are ignored here; they are reported elsewhere.
    """
    try:
        return {name: each.resumed_at for name, each in requests.read_requests(config).items()}
    except (TopicbergError, OSError):
        return {}


def _stop_outdated(
    workers: dict[str, Worker], specs: dict[str, TopicSpec], config: Settings
) -> dict[str, dict[str, int]]:
    """Stop and remove the workers whose spec changed or that ended; return their counters."""
    counters: dict[str, dict[str, int]] = {}
    for name, worker in list(workers.items()):
        if ended := not worker.is_alive():  # by an unexpected error, which is in the log
            logger.error("topic %s: the worker ended; starting a new one", name)
        if ended or specs.get(name) != worker.spec:
            worker.stop()
            counters[name] = workers.pop(name).status.counters()
            if name not in specs:
                logger.info("topic %s: disabled", name)
                worker.join(STOP_SECONDS)
                remove_status(config, name)
    return counters


def serve(config: Settings, stopping: threading.Event, metrics_port: int | None = None) -> None:
    """Run until ``stopping``; new and changed specs and requests take effect at once.

    :param metrics_port: port of the metrics endpoint; None: no endpoint
    """
    # Import it before any thread does: of two concurrent imports, one may see it incomplete.
    import pyspark.sql.connect.session  # noqa: F401

    endpoints = _wait_for_endpoints(config, stopping)
    workers: dict[str, Worker] = {}
    if metrics_port is not None:
        serve_metrics(metrics_port, lambda: [worker.status for worker in workers.copy().values()])
    complaints: dict[str, str] = {}
    resumed = _resumed(config)
    keeper = Keeper(endpoints, config) if endpoints else None
    if keeper:
        keeper.start()
    while endpoints is not None and not stopping.is_set():
        try:
            specs, wrong = control.usable_topics(config)
            # An invalid spec stops neither its own topic nor any other.
            specs |= {name: worker.spec for name, worker in workers.items() if name in wrong}
        except (TopicbergError, OSError) as error:
            specs, wrong = {name: worker.spec for name, worker in workers.items()}, {"": str(error)}
        for name, reason in wrong.items():
            if complaints.get(name) != reason:
                logger.error(
                    "topic %s: the spec is invalid, the last valid one stays in use: %s",
                    name,
                    reason,
                )
        complaints = wrong
        counters = _stop_outdated(workers, specs, config)
        for name, spec in specs.items():
            if name not in workers:
                logger.info("topic %s: enabled", name)
                workers[name] = Worker(spec, endpoints, config, counters.get(name))
                workers[name].start()
        for name, resumed_at in _resumed(config).items():
            if resumed_at > resumed.get(name, 0.0) and name in workers:
                resumed[name] = resumed_at
                workers[name].wake()
        stopping.wait(SPECS_SECONDS)
    if keeper:
        keeper.stop()
    for worker in workers.values():
        worker.stop()
    deadline = time.monotonic() + STOP_SECONDS
    for worker in workers.values():
        worker.join(max(0.0, deadline - time.monotonic()))


def main(metrics_port: int | None) -> None:
    """Serve until SIGTERM or SIGINT.

    :raises TopicbergError: settings of the deployment are missing
    """
    log_to_stderr(
        logging.INFO,
        "%(asctime)s %(levelname)s %(threadName)s %(message)s",
        {"httpx2": logging.WARNING},  # a line for every request
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    serve(settings(), stopping, metrics_port)
    # A worker may be waiting for a long Spark job; leaving it is safe, see commit.py.
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The Tableflow engine.")
    parser.add_argument("--metrics-port", type=int, help="answer on 127.0.0.1 with OpenMetrics")
    main(parser.parse_args().metrics_port)
