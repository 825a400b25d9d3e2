"""How long commits of a topic take while another one has ten percent malformed records.

    python tests/benchmarks/neighbours.py [--records 20000000]

needs a running stack with nothing else to do. The engine has a topic with a commit interval of ten
seconds and a hundred records a second. For a minute it is alone; then the engine also ingests a
topic of which one record in ten is malformed (mode SKIP), until its table has all of them. Printed
are the seconds between two commits of the first topic: the 99th percentile should stay within twice
the interval.
"""

from __future__ import annotations

import argparse
import time

from compaction import ALONE_SECONDS, Load
from rich.console import Console
from workloads import ATTACKED, Topic, drop, fill_topic

from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings, settings
from topicberg.tableflow.service import control
from topicberg.tableflow.values import commit


def attack(endpoints: Endpoints, config: Settings, topic: Topic) -> None:
    """Let the engine ingest a topic, and wait until its table has all records."""
    spec = topic.spec
    control.enable(config, spec.name, spec.tableflow.model_dump(exclude_defaults=True))
    ends, catalog = kafka.end_offsets(endpoints, spec.name), endpoints.catalog(config)
    name, offsets = spec.table_identifier(config), None
    while offsets != ends:
        time.sleep(1)
        if catalog.table_exists(name):
            table = catalog.load_table(name)
            offsets = commit.committed(table, table.current_snapshot()).offsets


def main(records: int) -> None:
    endpoints, config = load_endpoints(), settings()
    topic = fill_topic(endpoints, ATTACKED, records)
    load = Load(endpoints, config, {"100 a second": (100, 1)})
    load.during("nothing", lambda: time.sleep(ALONE_SECONDS))
    start = time.perf_counter()
    load.during("malformed records", lambda: attack(endpoints, config, topic))
    seconds = time.perf_counter() - start
    load.stop()
    console = Console(width=120)
    console.print(load.shown)
    console.print(f"{records:,} records, a tenth of them malformed: {seconds:.0f} s")
    control.disable(config, topic.spec.name)
    drop(endpoints, topic.spec, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=20_000_000)
    main(parser.parse_args().records)
