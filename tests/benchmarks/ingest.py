"""How fast a topic becomes a table: unusual topics beside clean ones, other engines, and limits.

    python tests/benchmarks/ingest.py [--records 2000000] [--wide-records 500000] [--rounds 2]
        [--only WORKLOAD ...] [--flink] [--json FILE]

Against the running local stack. A workload is a topic (``workloads.py``), and each contender
(``contenders.py``, with its settings) reads it from its beginning into a new Iceberg table. In each
round topicberg also reads the clean topic of the workload's format, so that what else the machine
does hits both; the best time of each counts. The rows and a checksum of every table are compared
with what was produced, and the records that are left out and the dead letters are counted.

Three limits are measured in the same rounds: reading the topic by librdkafka without decoding or
writing anything; the same while Arrow's Parquet writer writes the table's rows, which are in memory
already; and copying the table by Spark.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import flink
from contenders import CONTENDERS, LIMITS, OURS, Lab, contenders, engine, verify
from kafka_java import java_config
from rich import box
from rich.console import Console
from rich.table import Table
from workloads import WIDE, WORKLOADS, Topic, Workload, drop, fill_topic, make_topic, produce

from topicberg.endpoints import load_endpoints
from topicberg.settings import settings
from topicberg.tableflow.values.compiling import wait_ready

logger = logging.getLogger("ingest")

CLEAN = "clean topic"
WARM = 2
"""How many jobs warm each JVM before the first workload."""


class Rounds:
    """The best times of the contenders and limits on one topic."""

    def __init__(self, lab: Lab, topic: Topic) -> None:
        self._lab, self._topic = lab, topic
        self.best: dict[str, float] = {}
        self._wrong: set[str] = set()

    def run(self, name: str) -> None:
        """Measure a contender and verify its table; after topicberg, also the limits."""
        table = self._timed(name, CONTENDERS[name], self._topic)
        assert table is not None
        if name == OURS:
            source = self._lab.catalog.load_table(table)
            self._lab.source = table
            if self._lab.rows is None:
                self._lab.rows = source.scan().to_arrow()
            for limit, work in LIMITS.items():
                if copy := self._timed(limit, work, self._topic):
                    self._lab.catalog.purge_table(copy)
        self._verify(name, self._topic, table)
        self._lab.catalog.purge_table(table)

    def run_clean(self, clean: Topic) -> None:
        table = self._timed(CLEAN, engine, clean)
        assert table is not None
        self._verify(CLEAN, clean, table)
        self._lab.catalog.purge_table(table)

    def _timed(
        self, name: str, work: Callable[[Lab, Topic], tuple[str, ...] | None], topic: Topic
    ) -> tuple[str, ...] | None:
        start = time.perf_counter()
        table = work(self._lab, topic)
        seconds = time.perf_counter() - start
        self.best[name] = min(self.best.get(name, seconds), seconds)
        logger.info("%s: %s in %.2f s", self._topic.workload.name, name, seconds)
        return table

    def _verify(self, name: str, topic: Topic, table: tuple[str, ...]) -> None:
        contender = OURS if name == CLEAN else name
        try:
            verify(self._lab, topic, table, contender)
        except RuntimeError as error:
            logger.error("%s", error)
            self._wrong.add(name)

    def verified(self) -> dict[str, float]:
        """Return the best seconds; a contender with a wrong table is left out."""
        return {name: seconds for name, seconds in self.best.items() if name not in self._wrong}


def compare(lab: Lab, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return for each workload its records, their bytes, and the best seconds of each contender."""
    only = arguments.only or [one.name for one in WORKLOADS]
    found: dict[str, Any] = {}
    clean: Topic | None = None
    for workload in (one for one in WORKLOADS if one.name in only):
        if clean is None:
            warm = fill(lab, WORKLOADS[0], arguments)
            for _ in range(WARM):
                for name in contenders(lab, warm):
                    Rounds(lab, warm).run(name)
            delete(lab, warm)
        if clean is None or clean.workload.name != workload.clean:
            if clean is not None:
                delete(lab, clean)
            (of_format,) = (one for one in WORKLOADS if one.name == workload.clean)
            clean = fill(lab, of_format, arguments)
        topic = clean if workload is clean.workload else fill(lab, workload, arguments)
        lab.rows = None
        rounds = Rounds(lab, topic)
        names = contenders(lab, topic)
        for _ in range(arguments.rounds):
            if topic is not clean:
                rounds.run_clean(clean)
            for name in names:
                rounds.run(name)
        about = {"records": topic.records, "bytes": topic.bytes, "clean_records": clean.records}
        found[workload.name] = {**about, "format": workload.kind, "seconds": rounds.verified()}
        if topic is not clean:
            delete(lab, topic)
    if clean is not None:
        delete(lab, clean)
    return found


def fill(lab: Lab, workload: Workload, arguments: argparse.Namespace) -> Topic:
    records = arguments.wide_records if workload.shape is WIDE else arguments.records
    start = time.perf_counter()
    topic = fill_topic(lab.endpoints, workload, records)
    seconds = time.perf_counter() - start
    logger.info("%s: %d records produced in %.0f s", workload.name, topic.records, seconds)
    return topic


def delete(lab: Lab, topic: Topic) -> None:
    admin = lab.endpoints.kafka_admin()
    dead_letters = topic.spec.tableflow.error_handling.target
    names = [topic.spec.name] + ([dead_letters] if dead_letters else [])
    for deleted in admin.delete_topics(names).values():
        deleted.result(30)


def speeds(about: dict[str, Any]) -> dict[str, float]:
    """Return the records a second of each contender and limit."""
    return {
        name: about["clean_records" if name == CLEAN else "records"] / seconds
        for name, seconds in about["seconds"].items()
    }


def show(measured: dict[str, Any]) -> Table:
    """Return the comparison as one table: a workload a row."""
    all_speeds = {workload: speeds(about) for workload, about in measured.items()}
    others = [
        name
        for name in CONTENDERS
        if name != OURS and any(name in one for one in all_speeds.values())
    ]
    shown = Table(
        *("workload", "records/s", "MB/s", "share of the clean topic"),
        *(f"{name}, records/s" for name in others),
        *(f"share of {name}" for name in LIMITS),
        box=box.MARKDOWN,
    )
    for workload, found in all_speeds.items():
        if (ours := found.get(OURS)) is None:  # its table is wrong
            shown.add_row(workload, "wrong")
            continue
        about = measured[workload]
        shown.add_row(
            workload,
            f"{ours:,.0f}",
            f"{about['bytes'] / about['seconds'][OURS] / 1e6:.1f}",
            f"{ours / found[CLEAN]:.2f}" if CLEAN in found else "",
            *(f"{found[name]:,.0f}" if name in found else "" for name in others),
            *(f"{ours / found[name]:.0%}" for name in LIMITS),
        )
    return shown


UPSERTS = "upserts"
MODES = ("append", "upsert")


def upsert_benchmark(lab: Lab, rows: int, changed: int, rounds: int) -> Iterator[tuple[str, Any]]:
    """Yield what was measured, and its seconds by write mode.

    :param rows: of the upsert table, and up to :data:`MOST_APPENDED` of the append table
    :param changed: records of a batch, whose keys are spread over all rows
    """
    endpoints = lab.endpoints
    for mode in MODES:  # what the first batch of each mode starts stays open
        warm = _topic_of(make_topic(endpoints, "avro", range(200_000), mode), 200_000)
        engine(lab, warm)
        drop(endpoints, warm.spec, lab.config)
    sizes = {"append": min(rows, MOST_APPENDED), "upsert": rows}
    topics, loaded = dict[str, Topic](), dict[str, float]()
    for mode in MODES:
        spec = make_topic(endpoints, "avro", range(sizes[mode]), mode)
        topics[mode] = _topic_of(spec, sizes[mode])
        loaded[mode] = _seconds(lab, topics[mode])
    if rows <= MOST_APPENDED:
        yield f"first load of {rows:,} rows", loaded
    best = dict.fromkeys(MODES, float("inf"))
    for number in range(rounds):
        for mode, topic in topics.items():
            step = range(number, rows, rows // changed)
            produce(endpoints, topic.spec, "avro", step)
            best[mode] = min(best[mode], _seconds(lab, topic))
    yield f"{changed:,} records into {rows:,} rows", best
    for topic in topics.values():
        drop(endpoints, topic.spec, lab.config)


MOST_APPENDED = 20_000_000
"""An append costs the same whatever the table has."""


def _seconds(lab: Lab, topic: Topic) -> float:
    start = time.perf_counter()
    engine(lab, topic)
    return time.perf_counter() - start


def _topic_of(spec: Any, rows: int) -> Topic:
    return Topic(WORKLOADS[0], spec, rows, 0, rows, 0, 0)


@contextmanager
def laboratory(arguments: argparse.Namespace) -> Iterator[Lab]:
    """Start what the contenders need, and stop it at the end of the block."""
    lab = Lab(load_endpoints(), settings())
    with ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
        bin_dir = flink.jdk() if arguments.flink else None
        if arguments.flink and bin_dir is None:
            Console().print(
                "Flink is left out: it needs a JDK (javac), on the PATH or as JAVA_HOME"
            )
        elif bin_dir is not None:
            (folder / "flink").mkdir()
            client = java_config(lab.endpoints)
            catalog = flink.rest_catalog(lab.endpoints, lab.config)
            cluster = flink.cluster(folder / "flink", bin_dir, client, catalog)
            lab.flink = started.enter_context(cluster)
        yield lab


def main() -> None:
    names = [one.name for one in WORKLOADS] + [UPSERTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000, help="small ones")
    parser.add_argument("--wide-records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=names,
        metavar="WORKLOAD",
        help=f"one of {', '.join(names)}",
    )
    parser.add_argument("--upsert-rows", type=int, default=0, help="also upserts, e.g. 10000000")
    parser.add_argument("--upserts", type=int, default=0, help="records of a batch; 1 %% of them")
    parser.add_argument("--flink", action="store_true", help="also Flink; fetches its jars")
    parser.add_argument("--json", type=Path, help="also write the numbers to a file")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logger.setLevel(logging.INFO)
    with laboratory(arguments) as lab:
        numbers: dict[str, Any] = {}
        wait_ready()
        if arguments.only != [UPSERTS]:
            numbers["workloads"] = compare(lab, arguments)
            Console(width=240).print(show(numbers["workloads"]))
        if rows := arguments.upsert_rows:
            changed = arguments.upserts or rows // 100
            for what, seconds in upsert_benchmark(lab, rows, changed, arguments.rounds):
                upsert, append = seconds["upsert"], seconds["append"]
                Console(width=160).print(
                    f"{what}: upsert {upsert:.2f} s, append {append:.2f} s, "
                    f"{upsert / append:.2f} times"
                )
                numbers[what] = seconds
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2))


if __name__ == "__main__":
    main()
