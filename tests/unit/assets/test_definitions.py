"""The code location loads with nothing running, and has what it should have."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from botocore.exceptions import EndpointConnectionError
from memory_instance import memory_instance
from pyiceberg.exceptions import ServerError

from definitions import defs
from topicberg.checks.check import computation_command
from topicberg.checks.derived import derived_check
from topicberg.documents import ROUTE, docs_folder
from topicberg.errors import SpecError
from topicberg.iceberg.hours import BEFORE_EVERYTHING, Hours
from topicberg.orchestration.assets import Lake, find_derived, lake_assets, lake_checks
from topicberg.orchestration.assets.derived import DerivedTable, derivation, derived_table
from topicberg.orchestration.jobs.pipelines import everything, pipeline_jobs
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.orchestration.jobs.watches import watches
from topicberg.orchestration.resources import RESOURCES, Lakehouse
from topicberg.settings import settings
from topicberg.topics import load_topics
from topicberg.topics.event_time import EventTimeSpec
from topicberg.topics.spec import DerivedPartitions, TableflowSpec
from topicberg.transforms.unread import SourceTable
from topicberg.transforms.windows import FOREVER
from topicberg_deploy.graph.definitions import platform_assets
from topicberg_deploy.platform import resources

REPOSITORY = defs.get_repository_def()
GRAPH = REPOSITORY.asset_graph


def table_names() -> set[str]:
    topics = {spec.table_name for spec in load_topics() if spec.tableflow.enabled}
    histories = {f"{spec.asset_name}_history" for spec in load_topics() if spec.history}
    views = {view for spec in load_topics() for view in spec.upsert_views}
    return topics | histories | views | {table.name for table in find_derived()}


def test_asset_keys() -> None:
    assert {key.to_user_string() for key in GRAPH.get_all_asset_keys()} == (
        {f"alerts/{settings().prefix}"}
        | {f"kafka/{spec.asset_name}" for spec in load_topics()}
        | {f"{s}/{name}" for name in table_names() for s in ("iceberg", "glue", "snowflake")}
    )


def test_platform_assets_are_only_of_the_cloud_deployment() -> None:
    config, specs = settings(), load_topics()
    assert platform_assets(config, specs) == []
    config = config.model_copy(update={"deployment": "cloud"})
    graph = dg.Definitions(platform_assets(config, specs)).get_repository_def().asset_graph
    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == {
        f"platform/{resource.key}" for resource in resources(config, specs) if resource.wanted
    }
    assert all(graph.get(key).is_executable for key in graph.get_all_asset_keys())


@pytest.mark.parametrize("key", sorted(GRAPH.get_all_asset_keys()), ids=str)
def test_every_asset_explains_itself(key: dg.AssetKey) -> None:
    node = GRAPH.get(key)
    assert node.description
    page = str(node.metadata["documentation"].value).removeprefix(f"{ROUTE}/")
    folder = docs_folder()
    assert folder is not None
    assert (folder / page).is_file()
    assert node.group_name != "default"
    assert node.kinds
    assert node.owners
    assert node.group_name == "operation" or "dagster/table_name" in node.metadata


def test_the_graph_reads_from_kafka_to_snowflake() -> None:
    def parents(key: str) -> set[str]:
        return {p.to_user_string() for p in GRAPH.get(dg.AssetKey(key.split("/"))).parent_keys}

    assert parents("iceberg/stock_trades") == {"kafka/stock_trades"}
    assert parents("glue/stock_trades") == {"iceberg/stock_trades"}
    assert parents("snowflake/stock_trades") == {"glue/stock_trades"}
    assert parents("iceberg/stock_trades_with_totals") == {"iceberg/stock_trades"}
    assert parents("kafka/stock_trades_with_totals") == {"iceberg/stock_trades_with_totals"}
    assert parents("iceberg/flight") == {"iceberg/airline_sunset", "iceberg/airline_skyone"}
    assert parents("iceberg/flyer_stats") == {"iceberg/flight"}


def test_every_table_is_checked() -> None:
    checks = {(*key.asset_key.path, key.name) for key in GRAPH.asset_check_keys}
    for name in table_names():
        assert {
            ("snowflake", name, "parity"),
            ("glue", name, "pointer"),
            ("iceberg", name, "equality_deletes"),
            ("iceberg", name, "readable_by"),
        } <= checks
    for spec in (table.root for table in LAKE.tables if table.reported):
        of_topic = {
            name
            for system, table, name in checks
            if (system, table) == ("iceberg", spec.asset_name)
        }
        assert {"tableflow", "skipped_rows", "volume"} <= of_topic
        assert ("freshness" in of_topic) == (spec.freshness is not None)
        assert ("kafka_lag" in of_topic) == (spec.checks.max_lag_records is not None)
        assert ("not_null" in of_topic) == bool(spec.checks.not_null)
    for derived in LAKE.derived:
        assert ("iceberg", derived.name, "up_to_date") in checks


def test_every_check_explains_itself_and_the_job_has_all_but_those_on_spark() -> None:
    of_authors = {check.__name__ for derived in LAKE.derived for check in derived.checks}
    in_job = REPOSITORY.get_job("check_tables").asset_layer.asset_graph.asset_check_keys
    for key in GRAPH.asset_check_keys:
        assert GRAPH.get(key).description
        assert (key in in_job) == (key.name not in of_authors)


def test_a_sensor_skips_while_the_stack_is_down() -> None:
    sensor = REPOSITORY.get_sensor_def("snapshots")
    with memory_instance() as instance:  # Dagster's own would stay the current one
        tick = sensor.evaluate_tick(
            dg.build_sensor_context(
                instance=instance,
                repository_def=REPOSITORY,
                resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
            )
        )
    assert "not running" in (tick.skip_message or "")


@pytest.mark.parametrize(
    ("error", "skips"),
    [
        (EndpointConnectionError(endpoint_url="x"), True),  # no OSError, as all of botocore
        (ServerError("500"), True),
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation"), True),
        (ValueError("x"), False),
    ],
)
@pytest.mark.parametrize("name", ["snapshots", "catalogs"])
def test_a_sensor_skips_while_a_service_is_silent(
    name: str, error: Exception, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks tell of it; each sensor would as well."""

    def fail(_: Lakehouse) -> None:
        raise error

    monkeypatch.setattr(Lakehouse, "peek", fail)
    sensor = REPOSITORY.get_sensor_def(name)
    with memory_instance() as instance:
        context = dg.build_sensor_context(
            instance=instance,
            repository_def=REPOSITORY,
            resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
        )
        if skips:
            assert str(error) in (sensor.evaluate_tick(context).skip_message or "")
        else:
            with pytest.raises(ValueError, match="x"):
                sensor.evaluate_tick(context)


def test_the_catalogs_are_asked_for_once_at_a_time() -> None:
    """Where the run waits in the queue, as many would wait as tables were maintained meanwhile."""
    sensor = REPOSITORY.get_sensor_def("catalogs")
    with memory_instance() as instance:
        run = instance.create_run_for_job(
            REPOSITORY.get_job("maintain_tables"),
            tags={"topicberg/kind": "catalogs"},
            status=dg.DagsterRunStatus.STARTED,
        )

        def skipped() -> str:
            context = dg.build_sensor_context(
                instance=instance,
                repository_def=REPOSITORY,
                resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
            )
            return sensor.evaluate_tick(context).skip_message or ""

        assert run.run_id in skipped()
        instance.report_run_canceled(run)
        assert "not running" in skipped()


def test_a_derived_table_of_no_topic_is_refused() -> None:
    (derived, *_) = find_derived()
    with pytest.raises(SpecError, match=derived.sources[0]):
        Lake(settings(), (), (derived,))


LAKE = Lake(settings(), tuple(load_topics()), tuple(find_derived()))


@pytest.mark.parametrize("derived", LAKE.derived, ids=lambda table: table.name)
def test_lineage_names_columns_that_there_are(derived: DerivedTable) -> None:
    lineage = GRAPH.get(LAKE.table(derived).key("iceberg")).metadata["dagster/column_lineage"]
    assert lineage.deps_by_column
    columns = {
        origin.key("iceberg"): set(spec.columns())
        for name, spec in ((name, table.root) for name, table in LAKE.ingested.items())
        if (origin := LAKE.origin(name))
    } | {LAKE.table(table).key("iceberg"): set(table.lineage) for table in LAKE.derived}
    for dependencies in lineage.deps_by_column.values():
        for each in dependencies:
            assert each.column_name in columns[each.asset_key]


def test_a_run_reaches_everything_that_follows_without_a_lookback() -> None:
    assert [t.name for t in LAKE.downstream("airline.sunset")] == ["flight", "flyer_stats"]


def test_a_lookback_reaches_into_later_partitions() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    hour = int(now.timestamp()) // 3600
    moving, running = source_of(LAKE, "flagged_stock_trades"), source_of(LAKE, "flyer_totals")
    assert moving.reached(range(hour - 9, hour - 8), now) == range(hour - 9, hour - 7)
    assert running.reached(range(hour - 9, hour - 8), now) == range(hour - 9, hour + 1)


def source_of(lake: Lake, name: str) -> SourceTable:
    """Return the only source of a derived table."""
    table: Any = object()
    (source,) = lake.plan_of(name).source_tables(lambda _: table).values()
    return source


def with_large_trades(retention_ms: int | None, **arguments: Any) -> Lake:
    """Return the lake with one derived table of the stock trades more."""

    def large_trades(trades: Any) -> Any:
        return trades

    table = derived_table(source="stock_trades", time_column="at", **arguments)(large_trades)
    (spec,) = (spec for spec in LAKE.topics if spec.name == "stock_trades")
    kept = spec.tableflow.model_copy(update={"data_retention_ms": retention_ms})
    topics = (spec.model_copy(update={"tableflow": kept}),)
    return Lake(LAKE.config, topics, (table,))


@pytest.mark.parametrize(
    ("arguments", "earlier", "later"),
    [
        ({"lookahead": timedelta(minutes=90)}, 2, 0),
        ({"lookahead": timedelta(hours=3), "lookback": timedelta(hours=1)}, 3, 1),
        ({"lookback": timedelta(0)}, 0, 0),
    ],
)
def test_lookahead_reaches_into_earlier_partitions(
    arguments: dict[str, Any], earlier: int, later: int
) -> None:
    lake, now = with_large_trades(None, **arguments), datetime(2026, 1, 2, tzinfo=UTC)
    hour = int(now.timestamp()) // 3600
    expected = range(hour - 9 - earlier, hour - 8 + later)
    assert source_of(lake, "large_trades").reached(range(hour - 9, hour - 8), now) == expected


def test_table_that_is_source_and_lookup_reaches_as_both() -> None:
    arguments: dict[str, Any] = {"lookups": ("stock_trades",), "lookahead": timedelta(hours=8)}
    lake, now = with_large_trades(None, **arguments), datetime(2026, 1, 2, tzinfo=UTC)
    hour, source = int(now.timestamp()) // 3600, source_of(lake, "large_trades")
    assert source.reached(Hours(hour - 3, hour - 2), now) == range(hour - 11, hour + 1)
    assert not source.whole


def test_version_of_a_table_changes_with_the_event_time_of_its_source() -> None:
    def trades_of_hour(trades: Any) -> Any:
        return trades

    (spec,) = (spec for spec in LAKE.topics if spec.name == "stock_trades")
    table = derived_table(source="stock_trades", time_column="at")(trades_of_hour)
    plans = [
        derivation(table, Lake(LAKE.config, (changed,), (table,)))
        for column in ("$$timestamp", "traded_at")
        for changed in [spec.model_copy(update={"event_time_rule": EventTimeSpec(field=column)})]
    ]
    codes, others = zip(*(str(plan.version).split(".") for plan in plans), strict=True)
    assert (len({*codes}), len({*others})) == (1, 2)


@pytest.mark.parametrize(
    ("hours", "ahead"), [(None, 0), (48, 48), (24 * 15 - 1, 24 * 15 - 1), (24 * 365, 0)]
)
def test_event_time_ahead_of_kafka_shortens_what_can_be_computed(
    hours: float | None, ahead: int
) -> None:
    """The retention counts by Kafka's time: rows are deleted before their hour is as old."""

    def trades_of_hour(trades: Any) -> Any:
        return trades

    (spec,) = (spec for spec in LAKE.topics if spec.name == "stock_trades")
    kept = spec.tableflow.model_copy(update={"data_retention_ms": 30 * 86_400_000})
    rule = EventTimeSpec(field="account", format="iso", max_ahead_hours=hours)
    spec = spec.model_copy(update={"tableflow": kept, "event_time_rule": rule})
    table = derived_table(source="stock_trades", time_column="at")(trades_of_hour)
    plan = derivation(table, Lake(LAKE.config, (spec,), (table,)))
    now = datetime(2026, 3, 1, tzinfo=UTC)
    first = now - timedelta(days=30) + timedelta(hours=1 + ahead)
    assert plan.first_hour(now) == int(first.timestamp()) // 3600


def test_retention_of_a_source_limits_only_tables_that_read_it() -> None:
    """Although another one joins a topic that keeps its rows for 30 days."""

    def plain(trades: Any) -> Any:
        return trades

    def joined(trades: Any, users: Any) -> Any:
        return trades, users

    topics = {spec.name: spec for spec in LAKE.topics}
    trades, users = topics["stock_trades"], topics["sample_data_users"]
    kept = users.tableflow.model_copy(update={"data_retention_ms": 30 * 86_400_000})
    users = users.model_copy(
        update={"derived_partitions": trades.derived_partitions, "tableflow": kept}
    )
    tables = (
        derived_table(source="stock_trades", time_column="at")(plain),
        derived_table(source=(trades.name, users.name), time_column="at")(joined),
    )
    lake, now = Lake(LAKE.config, (trades, users), tables), datetime.now(UTC)
    assert derivation(tables[0], lake).first_hour(now) == BEFORE_EVERYTHING
    assert derivation(tables[1], lake).first_hour(now) > BEFORE_EVERYTHING


def test_watched_tables_are_read_by_what_is_computed() -> None:
    watched = watches(LAKE)
    for name, watch in watched.items():
        for reader in watch.readers:
            read = {source.table for source in LAKE.plan_of(reader).sources}
            assert watch.origin.identifier in read
            assert [*watched].index(name) < [*watched].index(reader)


@pytest.mark.parametrize(
    ("hours", "arguments", "message"),
    [
        (24, {"lookahead": timedelta(hours=30)}, "a source keeps its rows for 1 day"),
        (24, {"lookahead": FOREVER}, "with its lookahead, a window needs them for ever"),
        (24, {"lookahead": timedelta(hours=12), "lookback": timedelta(hours=12)}, "keeps its rows"),
        (720, {"lookback": timedelta(days=30)}, "with its lookback, .* than 30 days, 1:00:00"),
        (720, {"lookback": timedelta(days=29, hours=23)}, "needs them for longer than 30 days"),
        (720, {"lookback": timedelta(days=90)}, "keeps its rows for 30 days"),
        (720, {"lookback": FOREVER}, "with its lookback, a window needs them for ever"),
        (None, {"lookback": timedelta(hours=-1)}, "lookback is datetime.timedelta"),
        (None, {"lookahead": lambda _: 5}, "lookahead is 5"),
    ],
)
def test_window_longer_than_what_the_source_keeps_is_refused(
    hours: int | None, arguments: dict[str, Any], message: str
) -> None:
    lake = with_large_trades(hours and hours * 3_600_000, **arguments)
    with pytest.raises(SpecError, match=message):
        derivation(lake.derived[0], lake)
    allowed = with_large_trades(hours and hours * 3_600_000, lookahead=timedelta(hours=2))
    (source,) = derivation(allowed.derived[0], allowed).sources
    assert source.lookahead == timedelta(hours=2)


@pytest.mark.parametrize(
    ("days", "arguments"),
    [
        (30, {"lookback": timedelta(days=29, hours=22, minutes=59)}),
        (30, {"lookahead": timedelta(days=29, hours=22, minutes=59)}),
        (2**63 // 86_400_000, {"lookback": FOREVER, "lookahead": FOREVER}),
        (30, {}),
    ],
)
def test_window_that_the_source_keeps_is_allowed(days: int, arguments: dict[str, Any]) -> None:
    lake = with_large_trades(days * 86_400_000, **arguments)
    (source,) = derivation(lake.derived[0], lake).sources
    assert source.lookback == arguments.get("lookback")


@pytest.mark.parametrize(
    ("days", "arguments"),
    [(2, {"lookahead": timedelta(days=1)}), (8, {"lookback": timedelta(days=7)})],
)
def test_daily_window_that_can_be_computed_is_allowed(days: int, arguments: dict[str, Any]) -> None:
    """Although a partition has more hours, and event times may be ahead of Kafka's."""

    def trades_of_day(trades: Any) -> Any:
        return trades

    (spec,) = (spec for spec in LAKE.topics if spec.name == "stock_trades")
    spec = spec.model_copy(
        update={
            "tableflow": spec.tableflow.model_copy(update={"data_retention_ms": days * 86_400_000}),
            "event_time_rule": EventTimeSpec(field="account", format="iso", max_ahead_hours=23),
            "derived_partitions": DerivedPartitions(granularity="daily", start=date(2026, 1, 1)),
        }
    )
    table = derived_table(source="stock_trades", time_column="at", **arguments)(trades_of_day)
    plan = derivation(table, Lake(LAKE.config, (spec,), (table,)))
    assert plan.hours == 24
    back = arguments.get("lookback", timedelta())
    assert plan.kept == timedelta(days=days, hours=-23) - back


def test_command_that_computes_a_published_table_publishes_it() -> None:
    assert {
        table.name
        for table in LAKE.tables
        for check in table.checks(LAKE)
        if check.name == "published"
    } == {spec.publishes for spec in LAKE.topics if spec.publishes}
    command = computation_command("stock_total_trades", "", ["stock_total_trades"])
    select, graph = command.partition("--select '")[2].partition("'")[0], REPOSITORY.asset_graph
    keys = dg.AssetSelection.from_coercible(select.split(",")).resolve(graph)
    assert {key.to_user_string() for key in keys} == {
        "iceberg/stock_total_trades",
        "kafka/stock_total_trades",
    }
    # Otherwise `dagster asset materialize --partition-range` refuses an asset.
    assert {graph.get(key).backfill_policy for key in keys} == {dg.BackfillPolicy.single_run()}


def test_derivation_has_a_window_for_each_source() -> None:
    def paid(trades: Any, users: Any) -> Any:
        return trades

    topics = {spec.name: spec for spec in LAKE.topics}
    trades, users = topics["stock_trades"], topics["sample_data_users"]
    users = users.model_copy(update={"derived_partitions": trades.derived_partitions})
    arguments: dict[str, Any] = {"source": (trades.name, users.name), "time_column": "at"}
    days = timedelta(days=2)
    table = derived_table(**arguments, lookahead={users.name: days}, max_lateness=days)(paid)
    lake = Lake(LAKE.config, (trades, users), (table,))
    plan = derivation(table, lake)
    assert [each.lookahead for each in plan.sources] == [None, days]
    assert plan.reads_around
    described = derived_check("paid", plan.name, 30, plan, lambda *_: []).description
    read = f"reads rows of `{users.name}` up to 2.0 days after it, and joins no later ones."
    assert described.endswith(read)
    assert [plan.ahead(each) for each in plan.sources] == [timedelta(), days]
    for wrong, message in (
        ({"lookahead": {"trades": days}}, "lookahead has trades, which is not in `source`"),
        ({"lookback": {users.name: 5}}, f"lookback of {users.name} is 5"),
        ({"lookahead": days, "max_lateness": timedelta(days=1)}, "max_lateness of 1 day, .* short"),
        ({"max_lateness": timedelta(days=-1)}, "max_lateness is datetime.timedelta"),
    ):
        with pytest.raises(SpecError, match=message):
            derivation(derived_table(**{**arguments, **wrong})(paid), lake)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": ("nothing",)}, "nothing"),
        ({"sources": ("flyer_stats",), "name": "flight"}, "comes from itself"),
        ({"name": "stock_trades"}, "another table has already"),
        ({"name": "airline_sunset_by_route"}, "another table has already"),
    ],
)
def test_a_wrong_derivation_is_refused(change: dict[str, Any], message: str) -> None:
    tables = {table.name: table for table in LAKE.derived}
    wrong = replace(tables["flight"], **change)
    with pytest.raises(SpecError, match=message):
        Lake(LAKE.config, LAKE.topics, tuple((tables | {wrong.name: wrong}).values()))


def test_a_published_topic_can_have_a_table() -> None:
    """Like any topic, and beside the derived table of the same name."""
    topics = [
        spec.model_copy(update={"tableflow": TableflowSpec()}) if spec.publishes else spec
        for spec in LAKE.topics
    ]
    lake = Lake(LAKE.config, tuple(topics), LAKE.derived)
    graph = dg.Definitions([*lake_assets(lake)], resources=RESOURCES).resolve_asset_graph()
    derived, table = (
        dg.AssetKey(["iceberg", name])
        for name in ("stock_trades_with_totals", "stock_trades_with_totals_topic")
    )
    topic = dg.AssetKey(["kafka", "stock_trades_with_totals"])
    assert graph.get(topic).parent_keys == {derived}
    assert graph.get(table).parent_keys == {topic}
    assert lake.origin("stock_trades_with_totals").identifier[0] == "stock_trades"
    assert {"stock_trades", "stock_trades_with_totals_topic"} <= watches(lake).keys()


def test_tables_of_different_partitions_have_jobs_of_their_own() -> None:
    daily = DerivedPartitions(granularity="daily", start=date(2026, 1, 1))
    topics = [
        spec.model_copy(update={"derived_partitions": daily})
        if spec.name == "stock_trades"
        else spec
        for spec in LAKE.topics
    ]
    lake = Lake(LAKE.config, tuple(topics), LAKE.derived)
    mixed = dg.Definitions(
        assets=[*lake_assets(lake)],
        asset_checks=[*lake_checks(lake)],
        jobs=[*pipeline_jobs(lake)],
        sensors=[snapshot_sensor(lake)],
        resources=RESOURCES,
    )
    dg.Definitions.validate_loadable(mixed)
    jobs = [mixed.resolve_job_def(name) for name in everything(lake)]
    assert len({job.partitions_def for job in jobs}) == len(jobs) == 2
    selected = [job.asset_layer.executable_asset_keys for job in jobs]
    assert set().union(*selected) == mixed.resolve_asset_graph().materializable_asset_keys
    computation = watches(lake)["trades_by_region"].computation
    assert isinstance(computation.partitions, dg.DailyPartitionsDefinition)


def test_a_topic_of_no_table_is_refused() -> None:
    (topic,) = (spec for spec in LAKE.topics if spec.name == "airline.flight")
    with pytest.raises(SpecError, match="is not a derived table"):
        Lake(LAKE.config, (topic.model_copy(update={"publishes": "nothing"}),), ())


def test_wrong_parameters_are_refused() -> None:
    (table,) = (table for table in LAKE.derived if table.name == "flagged_stock_trades")
    wrong = LAKE.root(table).model_copy(update={"parameters": {table.name: {"z_score": -1}}})
    with pytest.raises(SpecError, match="z_score"):
        table.parameters_of(wrong)
