"""Every record of an upsert topic, in a table beside the topic's own, which keeps the newest ones.

The same engine reads the same topic into it, in write mode append: exactly once, by the offsets in
the table's snapshots. It keeps records that Kafka has compacted away since.
"""

from __future__ import annotations

from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.iceberg.tables import find_table
from topicberg.kafka import topics as kafka
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_plan import adopt_start
from topicberg.tableflow.values import skips
from topicberg.topics import TopicSpec


def history_table(spec: TopicSpec, config: Settings | None = None) -> tuple[str, str]:
    """Return the namespace and the name of the history table."""
    return spec.namespace(config), f"{spec.asset_name}_history"


def _appended(spec: TopicSpec, config: Settings) -> TopicSpec:
    """Return the spec by which every record is read into the history table."""
    from topicberg.tableflow.service.control import as_requested

    class HistorySpec(TopicSpec):
        def table_identifier(self, config: Settings | None = None) -> tuple[str, str]:
            return history_table(self)

    appended = {**as_requested(config, spec).model_dump(by_alias=True), "write_mode": "append"}
    # The ingest of the topic's own table logs them.
    if appended["tableflow"]["error_handling"]["mode"] == "LOG":
        appended["tableflow"]["error_handling"]["mode"] = "SKIP"
    return HistorySpec.model_validate(appended)


def find_history(
    spec: TopicSpec, endpoints: Endpoints, config: Settings
) -> tuple[Table, TopicSpec] | None:
    """Return the history table of a topic, if there is one, and its spec."""
    # Without one, a derived table may have the name.
    table = find_table(endpoints.catalog(config), history_table(spec)) if spec.history else None
    return None if table is None else (table, _appended(spec, config))


def ingest_history(spec: TopicSpec, endpoints: Endpoints, config: Settings) -> Table:
    """Commit every record that the topic holds now; return the table."""
    from topicberg.tableflow.service.engine import Ingestor, run_once

    kafka.ensure_topic(spec, endpoints, config)
    # With the derived tables: no other table may be where Confluent's Tableflow writes.
    beside = config.model_copy(update={"bucket": config.derived_bucket})
    history = _appended(spec, config)
    catalog = endpoints.catalog(config)
    own = find_table(catalog, spec.table_identifier(config))
    starts_later = history.tableflow.start_position != "earliest"
    if own is not None and (starts_later or skips.requested(own)):
        table = Ingestor(history, endpoints, beside).table()
        if starts_later:
            adopt_start(table, own)
        skips.adopt(table, own)  # the command `tableflow skip` is for the topic
    run_once(history, endpoints, beside)
    return catalog.load_table(history_table(spec))
