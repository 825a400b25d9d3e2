"""Whatever is killed while tables are computed, every derived table ends at its reference.

Copies of all derived tables, over sources of their own: records come late, twice, out of order and
with nulls; a process computes windows of any tables in any order until it or Spark is killed. Then
what a sensor would still ask for is computed, and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame, SparkSession
from test_derived_tables import (
    Row,
    ordered,
    reference_flagged,
    reference_flights,
    reference_flyer_totals,
    reference_stats,
    reference_totals,
    reference_with_totals,
)
from test_derived_tables import reference as reference_by_region

from assets.pipelines.airline import Consolidation
from assets.pipelines.stock_trades import AnomalyRules
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.assets.derived import derivation
from topicberg.settings import settings
from topicberg.testing import create_table, rows, spark_session, topic_frame
from topicberg.topics import load_topics
from topicberg.transforms.derivation import Derivation
from topicberg.transforms.derived import write_window
from topicberg.transforms.spark_tables import spark_name
from topicberg.transforms.windows import FOREVER, Window

if TYPE_CHECKING:
    from conftest import KillService

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]

START = datetime(2026, 11, 2, 10, tzinfo=UTC)
HOURS = 3
NAMESPACE = "kills"
USERS = "sample_data_users_history"
SOURCES = ("stock_trades", USERS, "airline.sunset", "airline.skyone")
KILLS = ("the run", "the run", "spark", "the run")


@dataclass
class Copies:
    """Copies of all derived tables and of their sources, named after a test."""

    name: str
    lake: Lake = field(
        default_factory=lambda: Lake(settings(), tuple(load_topics()), tuple(find_derived()))
    )

    def source(self, name: str) -> tuple[str, str]:
        return NAMESPACE, f"{self.name}_{name.replace('.', '_')}"

    @property
    def derivations(self) -> dict[str, Derivation]:
        """In the order in which they can be computed."""
        found: dict[str, Derivation] = {}
        for table in self.lake.derived:
            plan = derivation(table, self.lake)
            names = (*table.sources, *table.lookups)
            found[table.name] = replace(
                plan,
                sources=tuple(
                    replace(source, table=self.source(name))
                    for name, source in zip(names, plan.sources, strict=True)
                ),
                target=self.source(table.name),
            )
        return dict(sorted(found.items(), key=lambda item: len(self.above(item[0]))))

    def compute(self, spark: SparkSession, table: str, first: int, last: int) -> None:
        window = Window(START + timedelta(hours=first), START + timedelta(hours=last + 1))
        write_window(spark, load_endpoints().catalog(settings()), self.derivations[table], window)

    def reached(self, source: str, hours: Iterable[int]) -> dict[str, set[int]]:
        """Hours of derived tables that have to be computed after a change in hours of a source."""
        dirty: dict[str, set[int]] = defaultdict(set)
        for table in self.lake.derived:
            if source not in (*table.sources, *table.lookups):
                continue
            reach = table.reach("lookback", self.lake.root(table)) or timedelta()
            assert isinstance(reach, timedelta)
            for hour in hours:
                forever = reach == FOREVER or source in table.lookups
                end = HOURS - 1 if forever else hour + ceil(reach / timedelta(hours=1))
                dirty[table.name] |= set(range(hour, min(end, HOURS - 1) + 1))
            for below, more in self.reached(table.name, dirty[table.name]).items():
                dirty[below] |= more
        return dirty

    def above(self, table: str) -> set[str]:
        """The derived tables that a table comes from."""
        derived = self.lake.derived_by_name
        direct = {name for name in derived[table].sources if name in derived}
        return direct | {name for each in direct for name in self.above(each)}


def records(random: Random, source: str, number: int) -> list[Row]:
    """Near the borders of hours, often at the same time; some twice."""
    found = [_record(random, source) for _ in range(number)]
    return found + random.sample(found, number // 5)


def _record(random: Random, source: str) -> Row:
    minutes = random.randrange(HOURS) * 60 + random.choice([0, 0.5, 1, 30, 59, 59.5])
    record: Row = {"$$timestamp": START + timedelta(minutes=minutes)}
    if source == "stock_trades":
        return record | {
            "symbol": random.choice(["ZVV", "ZBZX", None]),
            "price": random.choice([None, -1, 2**31 - 1, *range(1, 1000, 90)]),
            "quantity": random.choice([None, 39, 4001]),
            "side": random.choice(["BUY", None]),
            "userid": random.choice(["User_1", "User_2", None]),
            "account": "ABC123",
        }
    if source == USERS:
        user = random.choice(["User_1", "User_2", None])
        return record | {
            "userid": user,
            "key": user,
            "regionid": random.choice(["Region_1", "Region_2", None]),
            "gender": random.choice(["MALE", None]),
        }

    def moment() -> str | None:
        late = START + timedelta(minutes=random.randrange(-100, 3000))
        return random.choice([f"{late:%Y-%m-%d %H:%M:%S}"] * 4 + ["2026-02-30 10:00:00", None])

    return record | {
        "email_address": random.choice(["A@email.com", "B@email.com", None]),
        "departure_time": moment(),
        "arrival_time": moment(),
        "departure_airport_code": random.choice(["ATL", None]),
        "arrival_airport_code": "DFW",
        "flight_number": "SUN1",
        "confirmation_code": "SUNABCDEF",
    }


def references(lake: Lake, records: dict[str, list[Row]]) -> dict[str, list[Row]]:
    trades, flagged = records["stock_trades"], lake.derived_by_name["flagged_stock_trades"]
    rules = flagged.parameters_of(lake.root(flagged))
    assert isinstance(rules, AnomalyRules)
    consolidation = lake.derived_by_name["flight"].parameters_of(
        lake.root(lake.derived_by_name["flight"])
    )
    assert isinstance(consolidation, Consolidation)
    flights = [
        row
        for source, airline in (("airline.sunset", "Sunset"), ("airline.skyone", "SkyOne"))
        for row in reference_flights(records[source], airline, consolidation.as_of)
    ]
    stats = reference_stats(flights)
    return {
        "stock_trades_with_totals": reference_with_totals(trades),
        "stock_total_trades": reference_totals(trades),
        "flagged_stock_trades": reference_flagged(trades, rules),
        "trades_by_region": reference_by_region(trades, records[USERS]),
        "flight": flights,
        "flyer_stats": stats,
        "flyer_totals": reference_flyer_totals(stats),
    }


CHILD = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/tests", {root!r} + "/tests/integration"]
from test_kills import compute_for_ever
compute_for_ever({name!r}, {seed!r})
"""


def compute_for_ever(name: str, seed: str) -> None:
    """Any windows of any tables; says of each one when it is computed."""
    random, copies = Random(seed), Copies(name)
    with spark_session() as spark:
        while True:
            table, first = random.choice(list(copies.derivations)), random.randrange(HOURS)
            last = random.randrange(first, HOURS)
            copies.compute(spark, table, first, last)
            sys.stdout.write(f"{table} {first} {last}\n")
            sys.stdout.flush()


@pytest.mark.parametrize("seed", [1])
def test_every_table_after_kills(
    stack: Endpoints, kill_service: KillService, seed: int, tmp_path: Path
) -> None:
    random, copies = Random(seed), Copies(f"t{uuid.uuid4().hex[:8]}")
    stack.catalog(settings()).create_namespace_if_not_exists(NAMESPACE)
    held: dict[str, list[Row]] = {source: [] for source in SOURCES}
    dirty: dict[str, set[int]] = defaultdict(set)

    def arrive(spark: SparkSession, source: str, number: int) -> None:
        more = records(random, source, number)
        for offset, row in enumerate(more, len(held[source])):
            row["$$offset"] = offset  # of a duplicate the second one's, as the two are one record
        _append(spark, copies, source, more)
        held[source] += [dict(row) for row in more]
        hours = {int((row["$$timestamp"] - START) / timedelta(hours=1)) for row in more}
        for table, touched in copies.reached(source, hours).items():
            dirty[table] |= touched

    with spark_session() as spark:
        for source in SOURCES:
            arrive(spark, source, 120 if source == "stock_trades" else 40)
        for table in copies.derivations:  # so that all of them exist
            copies.compute(spark, table, 0, 0)
    done = 0
    for number, killed in enumerate(KILLS):
        code = CHILD.format(
            root=str(settings().project_root), name=copies.name, seed=f"{seed}/{number}"
        )
        output = tmp_path / f"{number}.log"
        with output.open("w") as log:
            child = subprocess.Popen([sys.executable, "-c", code], stdout=log)
            while len(output.read_text().splitlines()) < 2:
                assert child.poll() is None
                time.sleep(0.2)
            time.sleep(random.uniform(0, 4))
            if killed == "spark":
                kill_service("spark")
            child.kill()
            child.wait()
        for line in output.read_text().splitlines():
            table, first, last = line.split()
            done += 1
            for hour in range(int(first), int(last) + 1):
                if not any(min(dirty[name], default=HOURS) <= hour for name in copies.above(table)):
                    dirty[table].discard(hour)
        with spark_session() as spark:
            for source in random.sample(SOURCES, 2):
                arrive(spark, source, random.randrange(1, 15))
    assert done > len(KILLS)
    with spark_session() as spark:
        for table in copies.derivations:
            for hour in sorted(dirty[table]):
                copies.compute(spark, table, hour, hour)
        for table, expected in references(copies.lake, held).items():
            found = rows(spark.table(spark_name(copies.source(table))))
            assert ordered(found) == ordered(expected), table
        assert set(references(copies.lake, held)) == set(copies.lake.derived_by_name)


def _append(spark: SparkSession, copies: Copies, source: str, more: list[Row]) -> None:
    topic = "sample_data_users" if source == USERS else source
    frame: DataFrame = topic_frame(spark, topic, more).drop("$$headers")
    if spark.catalog.tableExists(spark_name(copies.source(source))):
        frame.writeTo(spark_name(copies.source(source))).append()
    else:
        create_table(spark, frame, copies.source(source), "$$timestamp")
