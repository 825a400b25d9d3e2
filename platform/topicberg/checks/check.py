"""A check of one table, and what the checks of one table have to inspect.

Each check is one function in this package that returns a :class:`TableCheck`: its name, its
description, what it inspects and how it judges are in one place. :mod:`topicberg.orchestration`
says which table has which checks, and makes asset checks of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from pyiceberg.exceptions import NoSuchTableError

from topicberg.checks.finding import Finding, good
from topicberg.errors import TableFormatError, TopicbergError
from topicberg.iceberg.tables import find_table
from topicberg.project import location_options
from topicberg.settings import settings

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from snowflake.connector import SnowflakeConnection

    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings
    from topicberg.tableflow.service.status import TopicStatus
    from topicberg.topics import TopicSpec

READABLE_BY = "readable_by"  # The check that reports a table that topicberg cannot read.


@dataclass(frozen=True)
class TableCheck:
    """A check of one asset of a table."""

    name: str
    description: str
    evaluate: Callable[[Probe], Finding]
    """May raise NoSuchTableError: a table that was not created yet is not a fault."""
    blocking: bool = False  # Whether a failure prevents the computation of what is downstream.


@dataclass(frozen=True)
class CheckedTable:
    """The names of one Iceberg table in every catalog."""

    name: str
    identifier: tuple[str, str]

    @property
    def sync(self) -> str:
        """What brings Glue and Snowflake to the table's current state."""
        return (
            f"materialize glue/{self.name} and snowflake/{self.name}, or `topicberg sync "
            f"{self.name}`"
        )

    @property
    def apply_deletes(self) -> str:
        """The statement that rewrites the table without its delete files."""
        return (
            "CALL lake.system.rewrite_data_files(table => "
            f"'`{self.identifier[0]}`.`{self.identifier[1]}`', options => map("
            "'delete-file-threshold', '1', 'remove-dangling-deletes', 'true'))"
        )

    @property
    def glue_table(self) -> tuple[str, str]:
        """Glue database and table, whose name Glue requires in lower case."""
        return self.identifier[0], self.identifier[1].lower()

    @property
    def snowflake_name(self) -> str:
        return self.name.upper()

    @property
    def snowflake_source(self) -> tuple[str, str]:
        """Namespace and table by which Snowflake finds it; in Glue, both are in lower case."""
        config = settings()
        in_glue = config.topics_in_glue or self.identifier[0] != config.topics_namespace
        return self.glue_table if in_glue else self.identifier


class Deployment(Protocol):
    """Clients of the deployment; a property or method connects when it is used."""

    @property
    def config(self) -> Settings: ...
    def endpoints(self) -> Endpoints: ...
    def glue(self) -> GlueClient: ...
    def status(self, spec: TopicSpec) -> TopicStatus | None:
        """Return what Tableflow reports of a topic; None: it reports nothing to topicberg."""


@dataclass
class Probe:
    """What the checks of one table inspect; each thing is fetched once."""

    table: CheckedTable
    deployment: Deployment
    snowflake: Callable[[], AbstractContextManager[SnowflakeConnection]]  # Opens a connection.
    last: Callable[[str], Finding | None]  # Name of a check of the asset → its last finding.
    reads_rows: bool = True  # False: rules that are not blocking use column statistics only.
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    _statuses: dict[str, TopicStatus | None] = field(default_factory=dict)

    @property
    def config(self) -> Settings:
        return self.deployment.config

    @cached_property
    def endpoints(self) -> Endpoints:
        return self.deployment.endpoints()

    @property
    def catalogs_patience(self) -> timedelta:
        """For how long Glue and Snowflake may lag behind the table."""
        return timedelta(seconds=self.config.catalogs_patience_seconds)

    @cached_property
    def iceberg(self) -> Table:
        """:raises NoSuchTableError: the table was not created yet"""
        return self.load(self.table.identifier)

    @property
    def catalog(self) -> Catalog:
        return self.endpoints.catalog(self.config)

    def load(self, identifier: tuple[str, str]) -> Table:
        """:raises NoSuchTableError: the table was not created yet"""
        return self.catalog.load_table(identifier)

    def find(self, identifier: tuple[str, str]) -> Table | None:
        """Return a table; None: it was not created yet, or was dropped."""
        return find_table(self.catalog, identifier)

    def status(self, spec: TopicSpec) -> TopicStatus | None:
        """Return what Tableflow reports of a topic; Confluent's is read over the network."""
        if spec.name not in self._statuses:
            self._statuses[spec.name] = self.deployment.status(spec)
        return self._statuses[spec.name]

    def engine_fault(self, spec: TopicSpec) -> str | None:
        """Return the check that explains why the topic's engine does not commit, if it does not."""
        with suppress(TopicbergError):  # the check itself reports why
            status = self.status(spec)
            if status is None or not status.error_message:
                return None
        return f"iceberg/{spec.table_name}:tableflow"


def evaluate(check: TableCheck, probe: Probe) -> Finding:
    """Return the finding; a table that was not created yet passes every check. That of a table that
    topicberg cannot read is caused by the check ``readable_by``."""
    try:
        return check.evaluate(probe)
    except NoSuchTableError:
        return good("the table was not created yet")
    except TableFormatError as error:
        cause = None if check.name == READABLE_BY else f"iceberg/{probe.table.name}:{READABLE_BY}"
        return Finding(error.message, error.hint, None, "warning", cause)


def delay_check(
    spec: TopicSpec,
    allowed_minutes: int,
    description: str,
    compare: Callable[[Table | None, Table, int, datetime, str], Finding],
) -> TableCheck:
    """A check that a table computed from a topic's own table does not lag behind it.

    :param compare: gets the table (None: not created yet), the topic's, the minutes, the present,
        and how to compute the table
    """

    def evaluate(probe: Probe) -> Finding:
        topic = probe.load(spec.table_identifier(probe.config))
        table = probe.find(probe.table.identifier)
        remediation = computation_remediation(probe.table.name)
        return compare(table, topic, allowed_minutes, probe.now, remediation)

    return TableCheck("up_to_date", description, evaluate)


def computation_remediation(name: str, partitions: str = "", topics: Sequence[str] = ()) -> str:
    """Return how to compute a table that its sensor should have computed.

    :param partitions: options of ``dagster asset materialize``; ``topics``: it is published to them
    """
    return (
        "see whether a run of its sensor is queued or in progress, or why it failed (Runs); to "
        f"compute manually what is missing: {computation_command(name, partitions, topics)}"
    )


def computation_command(name: str, partitions: str = "", topics: Sequence[str] = ()) -> str:
    """Return the commands that compute a table, see :func:`computation_remediation`."""
    assets = f"iceberg/{name}", *(f"kafka/{topic}" for topic in topics)
    return f"`{materialization(assets)}{partitions}`, then `topicberg sync {name}`"


def materialization(assets: Sequence[str]) -> str:
    """Return the command that materializes some assets."""
    keys, root = " or ".join(f'key:"{asset}"' for asset in assets), settings().project_root
    return f"dagster asset materialize {location_options(root)} --select '{keys}'"
