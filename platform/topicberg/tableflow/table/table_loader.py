"""The table of one topic, as its schemas want it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.errors import UnreachableError
from topicberg.errors.aws import refusal_of
from topicberg.errors.meaning import explain, explained
from topicberg.iceberg.versions import require_written
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.batch.batch_start import check_kept
from topicberg.tableflow.layout.identity_columns import identity_columns
from topicberg.tableflow.layout.layout import Layout, table_schema
from topicberg.tableflow.table.table import ensure_table
from topicberg.topics import TopicSpec


class TableLoader:
    """Loads the table; creates or evolves it when it is new or the schemas have changed."""

    def __init__(
        self, spec: TopicSpec, config: Settings, catalog: Catalog, held_ms: int | None
    ) -> None:
        """:param held_ms: when the topic was known to have a table with records; None: never"""
        self._spec, self._config, self._catalog = spec, config, catalog
        self.held_ms = held_ms
        self.location: str | None = None
        """Where the table was when it was loaded last."""
        self._fitted: tuple[object, uuid.UUID, int] | None = None
        """:attr:`.Layout.fitted` of a layout, and the columns that it has; None: not known."""

    def forget(self) -> None:
        """Read everything about the table and its schemas again in the next step."""
        self._fitted = None

    @contextmanager
    def explained(self, endpoints: Endpoints) -> Iterator[None]:
        """Raise errors of the catalog and the store as messages; a bucket that does not exist is
        named, for which a catalog that reads a table's metadata tries for minutes.

        :raises TopicbergError: the catalog or the store refuses, or does not answer
        """
        subject = f"topic {self._spec.name}"
        try:
            with explained(subject):
                yield
        except UnreachableError as error:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError

            once = Config(connect_timeout=3, read_timeout=3, retries={"total_max_attempts": 1})
            bucket = urlsplit(self.location or self._config.warehouse).netloc
            with suppress(BotoCoreError):  # the store does not say either
                try:
                    endpoints.boto3("s3", self._config, once).head_bucket(Bucket=bucket)
                except ClientError as refused:
                    if refusal_of(refused)[2] == HTTPStatus.NOT_FOUND:
                        reason = OSError("AWS Error NO_SUCH_BUCKET during HeadBucket operation")
                        raise explain(subject, reason) from error
            raise

    def load(self, layout: Layout, beginning: Offsets | None = None) -> Table:
        """Return the table with the columns of a layout.

        :param beginning: the first offsets that Kafka has; None: records are not read into it now
        :raises TableflowError: the table is gone, and a new one would lack what it held
        """
        table = None
        if self._fitted is not None and self._fitted[0] == layout.fitted:
            table = self._catalog.load_table(self._spec.table_identifier(self._config))
        if table is None or self._fitted != (layout.fitted, *_columns(table)):
            if beginning is not None and self.held_ms is not None:
                check_kept(self._catalog, self._spec, self._config, beginning, self.held_ms)
            schema = table_schema(self._spec, layout)
            identity, older = identity_columns(self._spec, layout), layout.older_columns()
            table = ensure_table(self._catalog, self._spec, self._config, schema, identity, older)
            self._fitted = layout.fitted, *_columns(table)
        if self._spec.write_mode == "upsert":  # position deletes are written by topicberg
            require_written(table)
        self.location = table.location()
        return table


def _columns(table: Table) -> tuple[uuid.UUID, int]:
    """Return which columns a table has: others may change them between two batches."""
    return table.metadata.table_uuid, table.metadata.current_schema_id
