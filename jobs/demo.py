"""Every pipeline from Kafka to Snowflake and back to Kafka, in the terminal: ``make demo``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from topicberg.cli import run
from topicberg.cli.output import cell, load_lake
from topicberg.errors import TopicbergError
from topicberg.security.text import terminal
from topicberg_deploy.cli.runs import materialize
from topicberg_local.cli.stack import start

if TYPE_CHECKING:
    from rich.console import Console

    from topicberg.endpoints import Endpoints
    from topicberg.orchestration.assets.tables import LakeTable
    from topicberg.query import Engine
    from topicberg.settings import Settings

TOPIC = "stock_trades"
TOTALS = "stock_trades_with_totals"
OTHER_TOPICS_RECORDS = 1_000
"""For each topic with a generator except the stock trades, whose number is an option."""
ENGINES: tuple[Engine, ...] = ("spark", "duckdb", "snowflake")


@dataclass
class _Steps:
    """Prints each step with its duration."""

    console: Console
    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        with self.console.status(title):
            yield
        self.done(title, began)

    def done(self, title: str, began: float) -> None:
        self.console.print(f"[green]✓[/] {title} [dim]{time.monotonic() - began:.0f} s[/]")


def demo(
    records: Annotated[int, typer.Option(min=1, help="stock trades to produce")] = 100_000,
    keep: Annotated[bool, typer.Option("--keep", help="leave the stack running")] = False,
) -> None:
    """Run every pipeline from Kafka to Iceberg, Glue, Snowflake and Kafka; then query all tables.

    The counts of all engines are compared.
    """
    from rich.console import Console

    from topicberg.settings import settings
    from topicberg_local import stack

    config = settings()
    console = Console()
    was_running = all(service.running for service in stack.status(config))
    steps = _Steps(console)
    try:
        agree = _run(config, console, steps, records)
    finally:
        if not (keep or was_running):
            with steps.step("stop the stack (its data stays in .topicberg)"):
                stack.down(config)
    console.print(f"\ndone in {time.monotonic() - steps.began:.0f} s")
    if was_running or keep:
        console.print(
            "the stack is running: `make ui` opens the asset graph, `topicberg down` stops it"
        )
    else:
        console.print("run `make ui` to start the stack again and open the asset graph in Dagster")
    if not agree:
        raise TopicbergError(
            "the counts differ",
            hint="read `topicberg logs` and the checks in the UI for the reason",
        )


def _run(config: Settings, console: Console, steps: _Steps, records: int) -> bool:
    from rich.markup import escape

    from topicberg.kafka import topics as kafka
    from topicberg_local.datagen.runner import run_here

    began = time.monotonic()
    endpoints = start(config, console)
    steps.done("start Kafka, registry, S3, Iceberg catalog, Spark, AWS and Snowflake", began)
    since = datetime.now(UTC)
    was_complete = _is_complete(config, endpoints)
    generated = [spec for spec in load_lake(config).topics if spec.generator]
    amounts = {spec.name: OTHER_TOPICS_RECORDS for spec in generated} | {TOPIC: records}
    for spec in generated:
        kafka.ensure_topic(spec, endpoints, config, recreate=True)
        with steps.step(f"produce {amounts[spec.name]:,} records to {spec.name}"):
            run_here(config, spec.name, rate=0, count=amounts[spec.name])
    with steps.step("materialize the asset graph with Dagster and Spark"):
        checks = materialize(config, endpoints, since if was_complete else None)
    for name, passed, description in checks:
        mark = "[green]✓[/]" if passed else "[red]✗[/]"
        console.print(f"  {mark} check {name}: {escape(terminal(description))}")
    with steps.step("query the tables through Spark, DuckDB and Snowflake"):
        offsets = _end_offsets(config, endpoints)
        tables = list(load_lake(config).tables)
        engine_counts = {engine: _counts(tables, engine, endpoints, config) for engine in ENGINES}
    counts = {
        table.name: {engine: engine_counts[engine][table.name] for engine in ENGINES}
        for table in tables
    }
    _print_counts(console, offsets, counts)
    for name, reason in _differences(config, offsets, counts):
        console.print(f"  {name}: {reason}")
    _print_totals(console, config, endpoints)
    same = all(len(set(row.values())) == 1 for row in counts.values())
    produced = offsets[TOPIC]
    same &= produced == counts[TOPIC]["duckdb"] == counts[TOTALS]["duckdb"]
    return same and all(passed for _, passed, _ in checks)


def _is_complete(config: Settings, endpoints: Endpoints) -> bool:
    """Return whether every trade has its total; not so after a killed run."""
    from topicberg.iceberg.snapshots import report
    from topicberg.iceberg.tables import find_table

    lake, catalog = load_lake(config), endpoints.catalog(config)

    def rows(name: str) -> int:
        table = find_table(catalog, lake.origin(name).identifier)
        head = table.current_snapshot() if table else None
        return report(head).total_records if head else 0

    return rows(TOPIC) == rows(TOTALS)


def _end_offsets(config: Settings, endpoints: Endpoints) -> dict[str, int]:
    """Return the sum of each topic's end offsets by its asset name: records, and markers."""
    from topicberg.kafka import topics as kafka

    return {
        spec.asset_name: sum(kafka.end_offsets(endpoints, spec.name).values())
        for spec in load_lake(config).topics
    }


def _counts(
    tables: Sequence[LakeTable], engine: Engine, endpoints: Endpoints, config: Settings
) -> dict[str, int]:
    """Return table → rows, of all tables with one query."""
    from topicberg.catalogs.snowflake.names import table_path
    from topicberg.endpoints import CATALOG
    from topicberg.query import run_query

    def called(table: LakeTable) -> str:
        if engine == "snowflake":
            return table_path(config, table.snowflake_name, table.snowflake_source).sql
        quote = '"' if engine == "duckdb" else "`"
        return ".".join(f"{quote}{name}{quote}" for name in (CATALOG, *table.identifier))

    sql = " UNION ALL ".join(
        f"SELECT '{table.name}', count(*) FROM {called(table)}"  # noqa: S608  names of tables
        for table in tables
    )
    return {str(name): int(rows) for name, rows in run_query(sql, engine, endpoints, config).rows}


def _differences(
    config: Settings, offsets: dict[str, int], counts: dict[str, dict[Engine, int]]
) -> Iterator[tuple[str, str]]:
    """Yield the tables that have another number of rows than their topic has offsets, and why."""
    for spec in load_lake(config).topics:
        name = spec.asset_name
        if name not in counts or offsets[name] == counts[name]["duckdb"]:
            continue
        if spec.write_mode == "upsert":
            yield name, "an upsert table has one row for each key"
        if spec.publishes:
            yield name, "the offsets also count a marker for each transaction and partition"


def _print_counts(
    console: Console, offsets: dict[str, int], counts: dict[str, dict[Engine, int]]
) -> None:
    from rich.table import Table

    heads = ("table", "offsets", *ENGINES)  # 80 columns
    table = Table(*heads, title="offsets in Kafka, and rows in each engine")
    for name, row in counts.items():
        kafka = f"{offsets[name]:,}" if name in offsets else ""
        table.add_row(name, kafka, *(f"{row[engine]:,}" for engine in ENGINES))
    console.print(table)


def _print_totals(console: Console, config: Settings, endpoints: Endpoints) -> None:
    from rich.table import Table

    from topicberg.query import run_query

    sql = (
        "SELECT symbol, side, count(*) AS trades, sum(total_price) AS total_pennies "  # noqa: S608
        f"FROM {TOTALS} GROUP BY symbol, side ORDER BY total_pennies DESC LIMIT 6"
    )
    result = run_query(sql, "snowflake", endpoints, config)
    table = Table(*result.columns, title=f"{TOTALS} in Snowflake")
    for row in result.rows:
        table.add_row(*map(cell, row))
    console.print(table)


if __name__ == "__main__":
    run(demo)
