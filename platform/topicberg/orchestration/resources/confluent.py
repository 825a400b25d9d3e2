"""Confluent's Tableflow makes the tables: the cloud deployment, unless its settings say else."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyiceberg.table import Table

from topicberg.catalogs import glue
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.kafka import topics as kafka
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.service.wait import held_offsets, wait_for
from topicberg.topics import TopicSpec

PATIENCE_SECONDS = 20 * 60.0
"""Tableflow commits every 15 minutes or 250 MB."""


def ingest(
    spec: TopicSpec, endpoints: Endpoints, config: Settings, on_progress: Callable[[int], None]
) -> Table:
    """Wait for Confluent's Tableflow, whose table is its alone to make and to write.

    :raises TopicbergError: it made no progress for :data:`PATIENCE_SECONDS`
    """
    table = endpoints.catalog(config).load_table(spec.table_identifier(config))
    target = kafka.end_offsets(endpoints, spec.name)

    def held(table: Table) -> Offsets:
        return held_offsets(table, spec, endpoints, target)

    if not wait_for(table, target, PATIENCE_SECONDS, on_progress, held):
        raise TopicbergError(
            f"topic {spec.name}: Tableflow has not committed the records that were there at the "
            "start",
            hint="see the topic's Tableflow status in Confluent Cloud, then materialize again",
        )
    return table.refresh()


def signals(specs: Iterable[TopicSpec], endpoints: Endpoints, config: Settings) -> dict[str, str]:
    """Return what changes with each commit: the metadata file to which Tableflow points in Glue.

    A topic that is not in Glue is left out. The tables of a database are listed 100 at a time.
    Nothing is known of topics that Tableflow publishes to another catalog: Glue has what was
    registered last.
    """
    if endpoints.topics_rest:
        return {}

    tables = {(spec.table_identifier(config)[0], spec.glue_name): spec.name for spec in specs}
    client = endpoints.boto3("glue", config)
    return {
        tables[database, name]: location
        for database in sorted({database for database, _ in tables})
        for name, location in glue.pointers(client, database)
        if (database, name) in tables
    }
