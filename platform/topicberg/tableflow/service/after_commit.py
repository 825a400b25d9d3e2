"""What follows a commit to a topic's table: its Delta log, and the report of its lineage."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyiceberg.table import Table

from topicberg.clients.lineage import TopicLineage
from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError, safe
from topicberg.iceberg import delta
from topicberg.tableflow.batch.batch_plan import Commit
from topicberg.tableflow.service.status import FailingFormat
from topicberg.topics import TopicSpec
from topicberg.topics.spec import metadata_description

logger = logging.getLogger(__name__)


def sync_delta(spec: TopicSpec, load_table: Callable[[], Table]) -> list[FailingFormat]:
    """Update the Delta log, if the topic has one; its failure does not stop Iceberg.

    :returns: Delta, if it failed
    :raises TopicbergError: the table cannot be read, which is not a failure of Delta
    """
    if "DELTA" not in spec.tableflow.table_formats:
        return []
    table = load_table()
    try:
        delta.sync(table, spec)
    except TopicbergError as error:
        logger.warning("topic %s: %s", spec.name, error)
        return [FailingFormat(format="DELTA", error_message=str(error))]
    return []


class LineageReporter:
    """Reports the commits of one topic to the receiver of lineage, if there is one."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints) -> None:
        self._topic, self._endpoints = spec.name, endpoints
        self._lineage: TopicLineage | None = None

    def report(self, commit: Commit, load_table: Callable[[], Table]) -> None:
        """Report a commit that has records; nothing of it may fail."""
        if not commit.records:
            return
        try:
            if self._lineage is None:
                self._lineage = TopicLineage(self._topic, self._endpoints.kafka_bootstrap)
            if not self._lineage.is_due(commit.rows, commit.bytes):
                return
            table = load_table()
            names = [field.name for field in table.schema().fields]
            of_record = [name for name in names if metadata_description(name) is None]
            self._lineage.report(table, of_record)
        except Exception as error:  # the batch is committed
            logger.warning("topic %s: its lineage is not reported: %s", self._topic, safe(error))
