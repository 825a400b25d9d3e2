"""The kinds of tables: of a topic, its history, an upsert view of it, and a derived table.

All that differs between kinds is in the class of the kind; assets, checks, jobs and sensors take
:attr:`.assets.lake.Lake.tables` and never ask for a kind. A further kind is one more class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from topicberg.checks.check import TableCheck
from topicberg.checks.derived import ALLOWED_MINUTES, derived_check, published_check, view_check
from topicberg.checks.rules import rule_checks
from topicberg.checks.table import (
    equality_deletes_check,
    partition_values_check,
    readable_by_check,
    volume_check,
)
from topicberg.checks.topic import history_checks, topic_checks
from topicberg.orchestration.assets import topics
from topicberg.orchestration.assets.derived import DerivedTable, derived_asset
from topicberg.orchestration.assets.partitions import partition_keys, time_partitions
from topicberg.orchestration.assets.tables import LakeTable, own_operation
from topicberg.tableflow.service.history import history_table, ingest_history
from topicberg.topics.spec import asset_name
from topicberg.transforms.upsert_view import UpsertView

if TYPE_CHECKING:
    import dagster as dg

    from topicberg.iceberg.maintenance import MaintenanceReport
    from topicberg.orchestration.assets.lake import Lake
    from topicberg.orchestration.resources import Lakehouse
    from topicberg.settings import Settings
    from topicberg.topics import Rules, TopicSpec


@dataclass(frozen=True, kw_only=True)
class Table(LakeTable, ABC):
    """A table of the lake: its names, and what its kind says of it."""

    root: TopicSpec  # The topic of its rows: the spec gives pipeline, partitions and owners.
    time: str | None  # The column of its event time; None: it has none that others could rely on.
    source: str | None  # The name by which derived tables read it; None: they cannot.

    described: ClassVar[str]  # The kind, for messages; ``{topic}`` is the root's name.
    has_snapshot_sensor: ClassVar[bool] = False
    """Whether a sensor watches its snapshots and requests what is derived from it."""
    reported: ClassVar[bool] = False
    """Whether that sensor reports its snapshots: no run does, as the engine commits them."""
    requested_with_topic: ClassVar[Literal["nothing", "catalogs", "all"]] = "nothing"
    """Which of its assets are requested when the topic's own table has a new snapshot."""
    reports_drop: ClassVar[bool] = False  # Whether its check ``up_to_date`` fails after a drop.

    @property
    def retention_ms(self) -> int | None:
        """For how long it keeps rows, which what is derived from them outlives; None: for ever."""
        return None

    @abstractmethod
    def iceberg_asset(self, lake: Lake) -> dg.AssetsDefinition:
        """Return the asset that fills it."""

    def is_independent(self, lake: Lake) -> bool:
        """Return whether no step of a run waits for its assets: see :mod:`.assets.sharing`."""
        return False

    def iceberg_spec(self) -> dg.AssetSpec:
        """Return the asset of an independent table."""
        raise NotImplementedError

    def materialize(
        self, context: dg.AssetExecutionContext, lakehouse: Lakehouse
    ) -> dg.MaterializeResult:
        """Materialize the asset of an independent table."""
        raise NotImplementedError

    @abstractmethod
    def checks(self, lake: Lake) -> Iterator[TableCheck]:
        """Return the checks of that asset."""

    def upsert_view(self, config: Settings) -> UpsertView | None:
        """Return what it is computed by, if that is no function of a pipeline."""
        return None

    def create(self, lakehouse: Lakehouse) -> None:
        """Create the table, if a run of a table that reads it may do so."""

    def maintain(self, lakehouse: Lakehouse) -> MaintenanceReport | None:
        """Do what is due; None: another service maintains it."""
        from topicberg.iceberg.maintenance import MaintenancePolicy, maintain_table, topic_policy

        iceberg = lakehouse.catalog().load_table(self.identifier)
        policy = MaintenancePolicy(retention=topic_policy(self.root, iceberg).retention)
        return maintain_table(iceberg, lakehouse.endpoints(), policy, time=self.time)

    @property
    def _allowed_minutes(self) -> int:
        """How stale it may be that is computed from the topic."""
        return self.root.freshness.warn_minutes if self.root.freshness else ALLOWED_MINUTES

    def _row_checks(
        self, rules: Rules, spec: TopicSpec | None, defined_in: str, *, of_confluent: bool = False
    ) -> Iterator[TableCheck]:
        """Return the checks of manifests, and those of the rules of a spec."""
        yield readable_by_check()
        yield equality_deletes_check(of_confluent=of_confluent)
        if rules.volume_factor is not None:
            yield volume_check(rules.volume_factor)
        yield from rule_checks(rules, spec, defined_in)


@dataclass(frozen=True, kw_only=True)
class TableOfTopic(Table, ABC):
    """A table that the spec of a topic asks for; its kind is in :data:`OF_TOPICS`."""

    needs_spark: ClassVar[bool] = False  # Whether a deployment without Spark Connect leaves it out.

    @classmethod
    @abstractmethod
    def of(cls, spec: TopicSpec, config: Settings) -> Iterator[Table]:
        """Yield the tables of this kind that a spec asks for."""

    @classmethod
    def _of(
        cls,
        spec: TopicSpec,
        name: str,
        identifier: tuple[str, str],
        time: str | None,
        source: str | None,
    ) -> Self:
        return cls(
            name=name,
            group=spec.pipeline,
            identifier=identifier,
            owners=spec.owners,
            root=spec,
            time=time,
            source=source,
        )

    @classmethod
    def source_names(cls, topic: str) -> frozenset[str]:
        """Return the names by which derived tables may read it, of a topic with an invalid spec."""
        return frozenset()


@dataclass(frozen=True, kw_only=True)
class TopicTable(TableOfTopic):
    """The table of a topic, which Tableflow writes."""

    described = "topic {topic}"
    has_snapshot_sensor = True
    reported = True
    requested_with_topic = "catalogs"

    @classmethod
    def of(cls, spec: TopicSpec, config: Settings) -> Iterator[TopicTable]:
        if spec.has_table(config):
            # A topic that is published has the name of the derived table.
            source = spec.table_name if spec.publishes else spec.name
            identifier = spec.table_identifier(config)
            yield cls._of(spec, spec.table_name, identifier, spec.event_time, source)

    @classmethod
    def source_names(cls, topic: str) -> frozenset[str]:
        return frozenset({topic, f"{asset_name(topic)}_topic"})

    def iceberg_asset(self, lake: Lake) -> dg.AssetsDefinition:
        return own_operation(
            self.iceberg_spec(), lambda context, lakehouse, _: self.materialize(context, lakehouse)
        )

    def is_independent(self, lake: Lake) -> bool:
        spec = self.root
        is_read = bool(spec.publishes or spec.upsert_views) or self.source in lake.read
        is_blocking = spec.checks.blocking or any(own.blocking for own in lake.checks_of(self))
        return not (is_read or is_blocking)

    def iceberg_spec(self) -> dg.AssetSpec:
        return topics.topic_spec(self.root, self)

    def materialize(
        self, context: dg.AssetExecutionContext, lakehouse: Lakehouse
    ) -> dg.MaterializeResult:
        return topics.wait_for_topic(context, self.root, self, lakehouse)

    def checks(self, lake: Lake) -> Iterator[TableCheck]:
        defined_in = f"`checks:` in {lake.config.topics_dir.name}/{self.root.name}.yaml"
        yield from topic_checks(self.root)
        yield from self._row_checks(
            self.root.checks, self.root, defined_in, of_confluent=not lake.config.own_engine
        )
        if any(field.transform == "identity" for field in self.root.table.partition_fields):
            yield partition_values_check(self.root.name)

    @property
    def retention_ms(self) -> int | None:
        return self.root.tableflow.data_retention_ms

    def create(self, lakehouse: Lakehouse) -> None:
        lakehouse.ingest(self.root, lambda missing: None)

    def maintain(self, lakehouse: Lakehouse) -> MaintenanceReport | None:
        return lakehouse.maintain(self.root)


@dataclass(frozen=True, kw_only=True)
class HistoryTable(TableOfTopic):
    """Every record of an upsert topic, see :mod:`topicberg.tableflow.service.history`."""

    described = "history of topic {topic}"
    needs_spark = True
    has_snapshot_sensor = True
    requested_with_topic = "all"

    @classmethod
    def of(cls, spec: TopicSpec, config: Settings) -> Iterator[HistoryTable]:
        if spec.has_table(config) and spec.history:
            _, name = identifier = history_table(spec, config)
            yield cls._of(spec, name, identifier, spec.event_time, name)

    @classmethod
    def source_names(cls, topic: str) -> frozenset[str]:
        return frozenset({f"{asset_name(topic)}_history"})

    def iceberg_asset(self, lake: Lake) -> dg.AssetsDefinition:
        return topics.history_asset(self.root, self)

    def checks(self, lake: Lake) -> Iterator[TableCheck]:
        yield from history_checks(self.root, self._allowed_minutes)
        yield readable_by_check()
        yield equality_deletes_check()

    def create(self, lakehouse: Lakehouse) -> None:
        ingest_history(self.root, lakehouse.endpoints(), lakehouse.config)


@dataclass(frozen=True, kw_only=True)
class UpsertViewTable(TableOfTopic):
    """The newest records of a topic by key, see :mod:`topicberg.transforms.upsert_view`."""

    described = "upsert view of topic {topic}"
    requested_with_topic = "all"

    @classmethod
    def of(cls, spec: TopicSpec, config: Settings) -> Iterator[UpsertViewTable]:
        names, space = spec.upsert_views if spec.has_table(config) else (), spec.namespace(config)
        return (cls._of(spec, name, (space, name), None, None) for name in names)

    def iceberg_asset(self, lake: Lake) -> dg.AssetsDefinition:
        (topic,) = TopicTable.of(self.root, lake.config)
        return topics.upsert_view_asset(self.root, topic, self, self.upsert_view(lake.config))

    def upsert_view(self, config: Settings) -> UpsertView:
        spec = self.root
        order = (spec.event_time, spec.metadata_column("partition"), spec.metadata_column("offset"))
        keys, version = tuple(spec.upsert_views[self.name]), spec.table.format_version
        return UpsertView(spec.table_identifier(config), self.identifier, keys, order, version)

    def checks(self, lake: Lake) -> Iterator[TableCheck]:
        yield view_check(self.root, self._allowed_minutes, self.upsert_view(lake.config))
        yield readable_by_check()
        yield equality_deletes_check()


@dataclass(frozen=True, kw_only=True)
class ComputedTable(Table):
    """A derived table: a function of a pipeline computes it from others."""

    described = "derived table"
    reports_drop = True
    derived: DerivedTable

    @classmethod
    def of(cls, derived: DerivedTable, root: TopicSpec, config: Settings) -> ComputedTable:
        return cls(
            name=derived.name,
            group=root.pipeline,
            identifier=(root.namespace(config), derived.name),
            owners=derived.owners or root.owners,
            root=root,
            time=derived.time_column,
            source=derived.name,
            derived=derived,
        )

    def iceberg_asset(self, lake: Lake) -> dg.AssetsDefinition:
        return derived_asset(self.derived, self, lake)

    def checks(self, lake: Lake) -> Iterator[TableCheck]:
        defined_in = f"`rules=Rules(…)` of {self.name} in {self.derived.file}"
        published = {spec.name: spec.asset_name for spec in lake.published(self.derived)}
        keys, assets = partial(partition_keys, time_partitions(self.root)), [*published.values()]
        allowed, plan = self._allowed_minutes, lake.plan_of(self.name)
        yield derived_check(self.name, self.derived.reads, allowed, plan, keys, assets)
        if published:
            yield published_check(self.name, published, self._allowed_minutes)
        yield from self._row_checks(self.derived.rules, None, defined_in)


OF_TOPICS: tuple[type[TableOfTopic], ...] = (TopicTable, HistoryTable, UpsertViewTable)
"""The kinds that the spec of a topic asks for."""
