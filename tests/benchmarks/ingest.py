"""How fast a topic becomes a table: topicberg's engine beside what one would write instead.

    python tests/benchmarks/ingest.py [--records 1000000] [--wide-records 250000] [--rounds 3]
        [--only WORKLOAD|CONTENDER ...] [--flink] [--kafka-connect] [--json FILE]

Against the running local stack. A workload is a topic (``workloads.py``), and each contender
(``contenders.py``, with its settings) reads it from its beginning into a new Iceberg table. The
rounds take turns after one that is not measured, and the best time of each contender counts, so
that what else the machine does hits all alike. The rows and a checksum of every table are compared
with what was produced.

The last columns compare with two limits that are measured in the same rounds: reading the topic by
librdkafka without decoding or writing anything, and copying the table by Spark.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import flink
import kafka_connect
from contenders import CONTENDERS, LIMITS, OF_BATCHES, Lab, engine, is_available, verify
from rich.console import Console
from rich.table import Table
from workloads import FORMATS, SMALL, WIDE, Shape, Topic, drop, fill_topic, make_topic, produce

from topicberg.endpoints import CATALOG, load_endpoints
from topicberg.settings import settings
from topicberg.spark import quote
from topicberg.tableflow import columnar

logger = logging.getLogger("ingest")

BATCHES = (1_000, 20_000)
WARM_FLINK = 2
"""How many more jobs warm Flink's JVM for each workload."""
Workload = tuple[str, Shape, str, int]
"""Name, shape, format, records."""


def workloads(records: int, wide_records: int) -> list[Workload]:
    found: list[Workload] = []
    for shape, count in ((SMALL, records), (WIDE, wide_records)):
        found += [(f"{shape.name}-{kind}", shape, kind, count) for kind in FORMATS]
    return found + [(f"batch-{count}", SMALL, "avro", count) for count in BATCHES]


def measure(lab: Lab, topic: Topic, names: Sequence[str], rounds: int) -> dict[str, float]:
    """Return the best seconds of each contender and limit.

    All tables are verified: a contender with a wrong one is reported, and left out.
    """
    best: dict[str, float] = {}
    wrong: set[str] = set()

    def run(name: str, work: Callable[[Lab, Topic], tuple[str, ...] | None]) -> None:
        start = time.perf_counter()
        table = work(lab, topic)
        seconds = time.perf_counter() - start
        if is_measured:
            best[name] = min(best.get(name, seconds), seconds)
        if table is None:
            return
        try:
            verify(lab, topic, table, name)
        except RuntimeError as error:
            logger.error("%s", error)
            wrong.add(name)
        if name == names[0]:
            lab.source = f"{CATALOG}.{quote(*table)}"
            for limit, limit_work in LIMITS.items():
                run(limit, limit_work)
        lab.catalog.purge_table(table)

    is_measured = False
    for name in [*names, *[name for name in names if name.startswith("Flink")] * WARM_FLINK]:
        run(name, CONTENDERS[name][0])
    is_measured = True
    for number in range(rounds):
        for name in names:
            run(name, CONTENDERS[name][0])
        seconds = ", ".join(f"{name} {best[name]:.2f} s" for name in best)
        logger.info("%s %s, round %d: %s", topic.shape.name, topic.kind, number + 1, seconds)
    return {name: seconds for name, seconds in best.items() if name not in wrong}


def compare(lab: Lab, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return for each workload its records, their bytes, and the best seconds of each contender."""
    chosen = workloads(arguments.records, arguments.wide_records)
    only = set(arguments.only)
    of_workloads = only & {name for name, *_ in chosen}
    of_contenders = only & CONTENDERS.keys()
    found: dict[str, Any] = {}
    for workload, shape, kind, records in chosen:
        if of_workloads and workload not in of_workloads:
            continue
        is_batch = workload.startswith("batch")
        names = [
            name
            for name, (_, formats) in CONTENDERS.items()
            if kind in formats
            and (not of_contenders or name in of_contenders)
            and (not is_batch or name in OF_BATCHES)
            and is_available(name, lab)
        ]
        topic = fill_topic(lab.endpoints, shape, kind, records)
        rounds = 3 * arguments.rounds if is_batch else arguments.rounds
        best = measure(lab, topic, names, rounds)
        found[workload] = {"records": records, "bytes": topic.bytes, "seconds": best}
        admin = lab.endpoints.kafka_admin()
        admin.delete_topics([topic.spec.name])[topic.spec.name].result(30)
    return found


def show(measured: dict[str, Any]) -> Table:
    """Return the comparison as one table."""
    shown = Table(
        *("workload", "contender", "seconds", "records/s", "MB/s", "topicberg is"),
        *(f"share of {name}" for name in LIMITS),
    )
    for workload, about in measured.items():
        best = about["seconds"]
        ours = best.get("topicberg")
        for name, seconds in sorted(best.items(), key=lambda item: item[1]):
            shares = [
                f"{best[limit] / seconds:.0%}" if limit in best and name not in LIMITS else ""
                for limit in LIMITS
            ]
            ratio = f"{seconds / ours:.2f} times as fast" if ours and name != "topicberg" else ""
            shown.add_row(
                workload,
                name,
                f"{seconds:.2f}",
                f"{about['records'] / seconds:,.0f}",
                f"{about['bytes'] / seconds / 1e6:.1f}",
                ratio,
                *shares,
            )
        shown.add_section()
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
    return Topic(spec, SMALL, "avro", rows, 0, 0, 0)


@contextmanager
def laboratory(arguments: argparse.Namespace) -> Iterator[Lab]:
    """Start what the contenders need, and stop it at the end of the block."""
    lab = Lab(load_endpoints(), settings())
    with ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
        if arguments.kafka_connect:
            (folder / "connect").mkdir()
            worker = kafka_connect.worker(folder / "connect", lab.endpoints, lab.config)
            lab.connect = started.enter_context(worker)
        bin_dir = flink.jdk() if arguments.flink else None
        if arguments.flink and bin_dir is None:
            Console().print(
                "Flink is left out: it needs a JDK (javac), on the PATH or as JAVA_HOME"
            )
        elif bin_dir is not None:
            (folder / "flink").mkdir()
            kafka = lab.endpoints.kafka_java_config()
            catalog = kafka_connect.rest_catalog(lab.endpoints, lab.config)
            cluster = flink.cluster(folder / "flink", bin_dir, kafka, catalog)
            lab.flink = started.enter_context(cluster)
        yield lab


def main() -> None:
    names = [name for name, *_ in workloads(0, 0)] + list(CONTENDERS) + [UPSERTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="small ones")
    parser.add_argument("--wide-records", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=names,
        metavar="NAME",
        help=(f"workloads and contenders: {', '.join(names)}"),
    )
    parser.add_argument("--upsert-rows", type=int, default=0, help="also upserts, e.g. 10000000")
    parser.add_argument("--upserts", type=int, default=0, help="records of a batch; 1 %% of them")
    parser.add_argument("--flink", action="store_true", help="also Flink; fetches its jars")
    parser.add_argument(
        "--kafka-connect", action="store_true", help="also Iceberg's sink; fetches its jars"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to a file")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    with laboratory(arguments) as lab:
        numbers: dict[str, Any] = {}
        columnar.wait_ready()
        if arguments.only != [UPSERTS]:
            numbers["workloads"] = compare(lab, arguments)
            Console(width=160).print(show(numbers["workloads"]))
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
