"""The engine as a service: ingests each topic whose spec enables Tableflow.

Run as ``python -m topicberg.tableflow.service`` as a service of the local stack, and by
``topicberg tableflow serve`` elsewhere.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading

from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.errors import StackError, TopicbergError
from topicberg.security.logs import log_to_stderr
from topicberg.settings import Settings, settings
from topicberg.tableflow import control
from topicberg.tableflow.keeper import Keeper
from topicberg.tableflow.metrics import serve_metrics
from topicberg.tableflow.pool import Pool
from topicberg.tableflow.status import remove_status
from topicberg.topics import TopicSpec

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
SPECS_SECONDS = 2.0


def _wait_for_endpoints(config: Settings, stopping: threading.Event) -> Endpoints | None:
    while not stopping.wait(0.2):
        try:
            return load_endpoints(config)
        except StackError as error:
            logger.debug("%s", error)
    return None


def _converge(pool: Pool, specs: dict[str, TopicSpec], config: Settings) -> None:
    """Let the pool ingest exactly these topics."""
    topics = pool.topics
    for name, topic in topics.items():
        if name not in specs:
            logger.info("topic %s: disabled", name)
            pool.remove(name, STOP_SECONDS)
            remove_status(config, name)
        elif specs[name] != topic.spec:
            pool.add(specs[name])
    for name in specs.keys() - topics.keys():
        logger.info("topic %s: enabled", name)
        pool.add(specs[name])


def serve(config: Settings, stopping: threading.Event, metrics_port: int | None = None) -> None:
    """Run until ``stopping``; new and changed specs and requests take effect at once.

    :param metrics_port: port of the metrics endpoint; None: no endpoint
    """
    # Import it before any thread does: of two concurrent imports, one may see it incomplete.
    import pyspark.errors.utils as calls
    import pyspark.sql.connect.session  # noqa: F401

    # Otherwise each call of a function for columns inspects the stack, and tries to import IPython.
    calls._enable_debugging_cache = False  # type: ignore[assignment]
    endpoints = _wait_for_endpoints(config, stopping)
    if endpoints is None:
        return
    pool = Pool(endpoints, config)
    if metrics_port is not None:
        serve_metrics(metrics_port, lambda: [topic.status for topic in pool.topics.values()])
    keeper = Keeper(endpoints, config, pool)
    pool.start()
    keeper.start()
    requested = control.Requested(config)
    complaints: dict[str, str] = {}
    while not stopping.is_set():
        known = {name: topic.spec for name, topic in pool.topics.items()}
        try:
            specs, wrong = requested.topics()
            # An invalid spec stops neither its own topic nor any other.
            specs = specs | {name: spec for name, spec in known.items() if name in wrong}
        except (TopicbergError, OSError) as error:
            specs, wrong = known, {"": str(error)}
        for name, reason in wrong.items():
            if complaints.get(name) != reason:
                logger.error(
                    "topic %s: the spec is invalid, the last valid one stays in use: %s",
                    name,
                    reason,
                )
        complaints = wrong
        _converge(pool, specs, config)
        for name in requested.resumed():
            pool.wake(name)
        stopping.wait(SPECS_SECONDS)
    keeper.stop()
    pool.stop(STOP_SECONDS)


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
