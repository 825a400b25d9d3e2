"""OpenLineage events of the engine's commits and of derived tables, by the standard client.

Off unless ``TOPICBERG_LINEAGE_URL`` is set. An event that cannot be sent is lost: neither a commit
nor a run waits for the receiver or fails with it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from topicberg.errors import SpecError, TopicbergError, safe
from topicberg.project import env_file
from topicberg.security.models import HoldsSecrets
from topicberg.settings import settings
from topicberg.settings.environment import Concern, EnvironmentSettings, read_settings
from topicberg.version import VERSION

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent
    from pyiceberg.table import Table

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
MAX_WAITING = 1_000  # Events that wait for the receiver; further ones are lost.
INTERVAL_SECONDS = 60.0
"""The engine sends one event of a topic in this time at most, for all commits in it."""
PRODUCER = "https://pypi.org/project/topicberg"


class LineageSettings(HoldsSecrets, EnvironmentSettings):
    """``TOPICBERG_LINEAGE_<FIELD>`` in the environment or in ``.env``."""

    model_config = SettingsConfigDict(env_prefix="TOPICBERG_LINEAGE_")
    concern = Concern.LINEAGE

    url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """The receiver of OpenLineage events, such as Marquez; without it, none are sent. A path of it
    replaces ``/api/v1/lineage``."""
    api_key: SecretStr | None = None
    """The bearer token of the receiver, if it wants one."""
    namespace: str | None = None
    """The namespace of the jobs; default: the prefix of the project."""


def lineage_settings() -> LineageSettings:
    """:raises TopicbergError: a setting is wrong"""
    hint = f"correct them in the environment or in {env_file()}"
    return read_settings(LineageSettings, "invalid settings of lineage", hint)


@dataclass(frozen=True)
class DatasetName:
    """A data set as OpenLineage names it."""

    namespace: str
    name: str


def topic_dataset(bootstrap: str, topic: str) -> DatasetName:
    """Return the name of a topic; source: OpenLineage, "Naming conventions", Kafka."""
    return DatasetName(f"kafka://{bootstrap.partition(',')[0]}", topic)


def table_dataset(location: str) -> DatasetName:
    """Return the name of a table: that of its folder; source: the same page, S3."""
    parts = urlsplit(location)
    return DatasetName(f"{parts.scheme or 'file'}://{parts.netloc}", parts.path.strip("/") or "/")


@dataclass(frozen=True)
class TableState:
    """A table that is read or written."""

    dataset: DatasetName
    identifier: str  # Its name in the catalog.
    columns: tuple[tuple[str, str, str | None], ...]  # Name, type and description.
    version: str | None = None  # The snapshot.

    @staticmethod
    def of(table: Table) -> TableState:
        head = table.current_snapshot()
        return TableState(
            table_dataset(table.location()),
            ".".join(table.name()),
            tuple((each.name, str(each.field_type), each.doc) for each in table.schema().fields),
            str(head.snapshot_id) if head else None,
        )


@dataclass
class JobRun:
    """One run of a job, of which events are sent."""

    name: str
    id: str
    inputs: tuple[DatasetName | TableState, ...] = ()
    origins: Mapping[str, tuple[tuple[DatasetName, str], ...]] = field(default_factory=dict)
    """Column of the output → the columns that it is computed from."""
    parent: tuple[str, str] | None = None
    """Id and name of the job of the run that this one is a part of."""
    window: tuple[datetime, datetime] | None = None  # The event time that it computes.


def run_id(*parts: str) -> str:
    """Return the id of a run: the same for the same parts."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join((PRODUCER, *parts))))


def event(
    state: str,
    run: JobRun,
    namespace: str,
    moment: datetime,
    output: TableState | None = None,
    rows: int | None = None,
    size: int | None = None,
    error: str | None = None,
) -> RunEvent:
    """Return an event: START, COMPLETE or FAIL, with what was written or the error."""
    from openlineage.client import event_v2 as events
    from openlineage.client import facet_v2 as facets
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage

    of_run: dict[str, Any] = {
        "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
            version=VERSION, name="topicberg", openlineageAdapterVersion=VERSION
        )
    }
    if run.parent:
        of_run["parent"] = facets.parent_run.ParentRunFacet(
            run=facets.parent_run.Run(run.parent[0]),
            job=facets.parent_run.Job(namespace, run.parent[1]),
        )
    if run.window:
        times = (each.astimezone(UTC).isoformat() for each in run.window)
        of_run["nominalTime"] = facets.nominal_time_run.NominalTimeRunFacet(*times)
    if error:
        of_run["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(error, "PYTHON")
    inputs = [
        events.InputDataset(name.namespace, name.name, facets=_facets(each))
        for each in run.inputs
        for name in [each if isinstance(each, DatasetName) else each.dataset]
    ]
    outputs = []
    if output is not None:
        written = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=rows, size=size
        )
        statistics: dict[str, Any] = {} if rows is None else {"outputStatistics": written}
        own = _facets(output)
        columns = {
            column: lineage.Fields(
                inputFields=[
                    lineage.InputField(of.namespace, of.name, name) for of, name in origins
                ]
            )
            for column, _, _ in output.columns
            if (origins := run.origins.get(column))
        }
        if columns:
            own["columnLineage"] = lineage.ColumnLineageDatasetFacet(fields=columns)
        outputs = [
            events.OutputDataset(
                namespace=output.dataset.namespace,
                name=output.dataset.name,
                facets=own,
                outputFacets=statistics,
            )
        ]
    return events.RunEvent(
        eventType=events.RunState[state],
        eventTime=moment.astimezone(UTC).isoformat(),
        run=events.Run(runId=run.id, facets=of_run),
        job=events.Job(namespace=namespace, name=run.name),
        inputs=inputs,
        outputs=outputs,
        producer=PRODUCER,
    )


def _facets(each: DatasetName | TableState) -> dict[str, Any]:
    from openlineage.client import facet_v2 as facets

    if isinstance(each, DatasetName):
        return {}
    columns = [
        facets.schema_dataset.SchemaDatasetFacetFields(name=name, type=kind, description=text)
        for name, kind, text in each.columns
    ]
    identifier = facets.symlinks_dataset.Identifier("iceberg", each.identifier, "TABLE")
    version = facets.dataset_version_dataset.DatasetVersionDatasetFacet(each.version or "")
    return {
        "schema": facets.schema_dataset.SchemaDatasetFacet(fields=columns),
        "symlinks": facets.symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier]),
        **({"version": version} if each.version else {}),
    }


@cache
def client() -> OpenLineageClient | None:
    """Return the client; None: lineage is off.

    :raises TopicbergError: a setting is wrong, or the client is not installed
    """
    chosen = lineage_settings()
    if chosen.url is None:
        return None
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.transport.http import (
            ApiKeyTokenProvider,
            HttpConfig,
            HttpTransport,
            TokenProvider,
        )
    except ImportError:
        raise SpecError(
            "TOPICBERG_LINEAGE_URL is set, and the client of OpenLineage is not installed",
            hint="install `topicberg[lineage]`, or remove the setting",
        ) from None
    key = chosen.api_key.get_secret_value() if chosen.api_key else None
    auth = TokenProvider({}) if key is None else ApiKeyTokenProvider({"apiKey": key})
    address = urlsplit(chosen.url)
    transport = HttpConfig(
        url=f"{address.scheme}://{address.netloc}",
        endpoint=address.path.strip("/") or "api/v1/lineage",
        timeout=TIMEOUT_SECONDS,
        auth=auth,
        retry={"total": 0},
    )
    return OpenLineageClient(transport=HttpTransport(transport))


def namespace() -> str:
    """Return the namespace of the jobs."""
    return lineage_settings().namespace or settings().prefix


def send(make: Callable[[], RunEvent]) -> None:
    """Send an event if lineage is on; it raises nothing."""
    try:
        if (known := client()) is not None:
            known.emit(make())
    except Exception as error:  # whatever the receiver or the client does
        logger.warning("an OpenLineage event is lost: %s", safe(error))


def is_on() -> bool:
    """Return whether events are sent; a wrong setting is reported, and none are."""
    try:
        return client() is not None
    except TopicbergError as error:
        logger.warning("no OpenLineage events are sent: %s", error)
        return False


class Sender(threading.Thread):
    """Sends events from a queue: who reports one does not wait."""

    def __init__(self) -> None:
        super().__init__(name="lineage", daemon=True)
        self._waiting: queue.Queue[Callable[[], RunEvent]] = queue.Queue(MAX_WAITING)
        self._lost = 0

    def run(self) -> None:
        while True:
            send(self._waiting.get())
            self._waiting.task_done()

    def put(self, make: Callable[[], RunEvent]) -> None:
        """Send an event soon, or lose it if too many wait."""
        try:
            self._waiting.put_nowait(make)
        except queue.Full:
            self._lost += 1
            if self._lost.bit_count() == 1:  # 1, 2, 4, 8 …: a receiver may be down for days
                logger.warning("OpenLineage events lost so far, as too many wait: %d", self._lost)

    def wait(self) -> None:
        """Wait until all events were sent, or lost."""
        self._waiting.join()


@cache
def _sender() -> Sender:
    sender = Sender()
    sender.start()
    return sender


class TopicLineage:
    """Events of the commits of one topic: one in :data:`INTERVAL_SECONDS` at most."""

    def __init__(self, topic: str, bootstrap: str) -> None:
        self._source = topic_dataset(bootstrap, topic)
        self._topic = topic
        self._rows = self._bytes = 0
        self._began = datetime.now(UTC)
        self._sent_at = -INTERVAL_SECONDS
        self._is_on = is_on()

    def is_due(self, rows: int, size: int) -> bool:
        """Count a commit; return whether to report it, and those since the last report."""
        self._rows, self._bytes = self._rows + rows, self._bytes + size
        return self._is_on and time.monotonic() - self._sent_at >= INTERVAL_SECONDS

    def report(self, table: Table, of_record: Iterable[str]) -> None:
        """Send the events of the commits since the last report; ``of_record``: the columns that are
        fields of the record."""
        state, now, sender = TableState.of(table), datetime.now(UTC), _sender()
        run = JobRun(
            name=f"tableflow.{self._topic}",
            id=run_id(self._topic, str(state.version)),
            inputs=(self._source,),
            origins={name: ((self._source, name),) for name in of_record},
        )
        sender.put(partial(event, "START", run, namespace(), self._began))
        complete = partial(event, "COMPLETE", run, namespace(), now, state)
        sender.put(partial(complete, rows=self._rows, size=self._bytes))
        self._rows = self._bytes = 0
        self._began, self._sent_at = now, time.monotonic()


@contextmanager
def reported(run: JobRun) -> Iterator[dict[str, Any]]:
    """Report a run, unless lineage is off: its start, and its end or failure. Yield a dictionary
    for ``output`` (:class:`TableState`), ``rows`` and ``size``."""
    result: dict[str, Any] = {}
    if not is_on():
        yield result
        return

    def report(state: str, **more: Any) -> None:
        send(lambda: event(state, run, namespace(), datetime.now(UTC), **more))

    report("START")
    try:
        yield result
    except BaseException as error:
        report("FAIL", error=str(safe(error)))
        raise
    report("COMPLETE", **result)
