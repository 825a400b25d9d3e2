"""The sensor of the alerts: reads the state of everything from Dagster, and the engine's statuses.

Which faults there are, and what is sent, is decided in :mod:`topicberg.alerts`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import dagster as dg
from pydantic import ValidationError

from topicberg.alerts.observation import (
    ActiveRun,
    Automation,
    CheckRuns,
    EndedRun,
    FailedCheck,
    Observation,
    QueuedRuns,
    SharedTables,
    StaleAsset,
    StepError,
)
from topicberg.checks.finding import Finding
from topicberg.checks.topic import ENGINE_CHECK, check_engine, status_findings
from topicberg.dagster.locations import (
    location_of_automation,
    location_of_run,
    location_of_sensor,
    location_tags,
)
from topicberg.dagster.run_assets import assets_of_run
from topicberg.dagster.run_process import frozen_process
from topicberg.documents import RUNBOOK, address_of
from topicberg.endpoints import runtime_file
from topicberg.orchestration.assets.alerts import alerts_event, alerts_key
from topicberg.orchestration.assets.partitions import requested_range
from topicberg.orchestration.checks.evaluations import Evaluation, last_evaluations
from topicberg.orchestration.jobs.checks import CHECK
from topicberg.orchestration.jobs.schedules import duration, schedule_name
from topicberg.orchestration.jobs.snapshot_store import SENSOR as SNAPSHOTS
from topicberg.orchestration.jobs.snapshot_store import known_names
from topicberg.settings import Settings, settings
from topicberg.tableflow.status import TopicStatus, observed_at, read_status, status_file
from topicberg.topics import TopicSpec
from topicberg.topics.kept import specs_in_use

if TYPE_CHECKING:
    from dagster_shared.error import SerializableErrorInfo

    from topicberg.alerts.active import ActiveAlert
    from topicberg.alerts.alert import AlertState

INTERVAL_SECONDS = 15
"""With :data:`topicberg.checks.topic.PATIENCE_MS`, a failure of the engine is sent in a minute."""
LONG_SECONDS, REST_SECONDS = 5.0, 60.0
"""After an evaluation that took so long, as of thousands of tables, the next one begins a minute
later: they take a tenth of the time."""
OBSERVED_SECONDS = 30.0
"""The statuses of an engine that has not read the ends of the logs for longer are not judged."""
SENSOR, ENGINE_SENSOR = "alerts", "engine"
MAX_ACTIVE = 50
"""Runs in progress that are looked at, the oldest first."""
MAX_RUNS = 200
"""How many ended runs one tick reads; the next tick continues there."""
UNLOADED_SECONDS = 600
"""After so long without a tick of its snapshot sensor, a code location counts as removed: Dagster
remembers the sensors of those that were renamed."""
DEFAULT_INTERVAL_SECONDS = 30
"""Dagster's, of a sensor that has none."""
EVERYTHING_BEFORE = "0"
"""Begins the range of a run that computes the first partition: sorts before all keys."""
_TICKS = 10
"""How many ticks are read to find the last one that ended: few can be in progress."""
_SCHEDULE = schedule_name(CHECK)
_BLOCKED = "DagsterAssetCheckFailedError"
_ACTIVE_RUNS = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_ENDED_RUNS = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
_EXPLAINING = ("freshness", "up_to_date")
"""Names of checks that say why their asset is stale."""


def alert_sensor(wrong: str | None = None) -> dg.SensorDefinition:
    """Return the sensor.

    :param wrong: the mistakes in the topic specs when the code location was loaded
    """

    @dg.sensor(
        name=SENSOR,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports what keeps the engine from committing, failing checks, stale tables, "
        "failing runs, sensors and schedules: "
        "once when a fault begins and once when it is resolved. Always to `alerts.jsonl` in the "
        "state directory; to a webhook, Slack, Teams, PagerDuty or by e-mail if TOPICBERG_ALERT_… "
        "is set. The asset `alerts/…` lists the active ones, and so does `topicberg alerts`.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        # They are read by the daemon only, and take a while to import.
        from topicberg.alerts.active import active_alerts
        from topicberg.alerts.alert import AlertState
        from topicberg.alerts.channels import channels, deliver
        from topicberg.alerts.decisions import read_decisions
        from topicberg.alerts.evaluation import evaluate
        from topicberg.alerts.settings import alert_settings

        assert context.repository_def is not None  # noqa: S101  the daemon always gives it
        config, chosen, state = settings(), alert_settings(), AlertState.parse(context.cursor)
        began = time.time()
        if state.rests_until is not None and began < state.rests_until <= began + REST_SECONDS:
            return dg.SensorResult(skip_reason="the last evaluation took long")
        location = location_of_sensor(context)
        seen = ObservationReader(context.instance, context.repository_def, wrong, location).observe(
            state
        )
        state, faults = evaluate(state, seen, chosen.ui_url, address_of(RUNBOOK, chosen.ui_url))
        decisions = read_decisions(config)
        state, problems = deliver(state, faults, channels(config, chosen), decisions)
        for problem in problems:
            context.log.warning(problem)
        others = stored_states(context.instance, config, location)
        states = [state, *(other for name, other in others.items() if name != SENSOR)]
        listed = active_alerts(states, decisions, datetime.now(UTC))
        shown = _digest(listed)
        has_list = context.repository_def.asset_graph.has(alerts_key(config))
        events = [alerts_event(config, listed)] if has_list and shown != state.shown else []
        reported = ", ".join(sorted(state.alerts)) or "no active alerts"
        ended = time.time()
        rests_until = ended + REST_SECONDS if ended - began > LONG_SECONDS else None
        changes = {"shown": shown, "rests_until": rests_until}
        return dg.SensorResult(
            skip_reason="; ".join([reported, *problems]),
            cursor=state.model_copy(update=changes).model_dump_json(),
            asset_events=events,
        )

    return alerts


def _digest(alerts: Sequence[ActiveAlert]) -> str:
    """Return what is the same for the same list."""
    from topicberg.alerts.active import markdown

    return hashlib.sha256(markdown(alerts).encode()).hexdigest()[:16]


def stored_states(
    instance: dg.DagsterInstance, config: Settings, location: str | None = None
) -> dict[str, AlertState]:
    """Return what everything that sends alerts has stored: both sensors, and the engine's watch.

    :param location: the code location of the sensors; None: any
    """
    from topicberg.alerts.alert import AlertState
    from topicberg.alerts.watch import STATE_FILE, read_state

    states = {"watch": read_state(config.state_dir / STATE_FILE)}
    for state in instance.all_instigator_state():
        name = state.instigator_name
        if name in (SENSOR, ENGINE_SENSOR) and location in (None, location_of_automation(state)):
            with suppress(ValidationError):  # of another version
                cursor = getattr(state.instigator_data, "cursor", None)
                states[name] = AlertState.parse(cursor)
    return states


def evaluated_at(instance: dg.DagsterInstance) -> datetime | None:
    """Return when the sensor evaluated the alerts last; None: never."""
    times = [
        ticks[0].timestamp
        for state in instance.all_instigator_state()
        if state.instigator_name == SENSOR
        and (ticks := instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1))
    ]
    return datetime.fromtimestamp(max(times), UTC) if times else None


def _check_key(spec: TopicSpec, name: str) -> dg.AssetCheckKey:
    """Return the key of a check of a topic's table."""
    return dg.AssetCheckKey(dg.AssetKey(["iceberg", spec.table_name]), name)


class ObservationReader:
    """Reads an :class:`topicberg.alerts.observation.Observation` from a Dagster instance."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        repository: dg.RepositoryDefinition,
        wrong: str | None = None,
        location: str | None = None,
    ) -> None:
        """:param location: the code location, whose runs are read; None: those of the instance"""
        self._instance, self._repository = instance, repository
        self._location = location
        self._graph, self._wrong = repository.asset_graph, wrong

    def observe(self, state: AlertState) -> Observation:
        """:param state: that of the last evaluation: until when ended runs were read"""
        now = datetime.now(UTC)
        runs, until = self._runs(state, now)
        specs, wrong = specs_in_use(settings())
        return Observation(
            at=now,
            check_runs=self._check_runs(),
            assets=frozenset(key.to_user_string() for key in self._graph.get_all_asset_keys()),
            owners={
                key.to_user_string(): tuple(owners)
                for key in self._graph.get_all_asset_keys()
                if (owners := self._graph.get(key).owners)
            },
            failed_checks=[*self._failed_checks(specs, now)],
            stale_assets=[*self._stale_assets()],
            runs=runs,
            materialized=self._materialized(state),
            runs_until=until,
            queued=self._queued(),
            active=[*self._active()],
            automations=[*self._automations()],
            shared=[*self._shared(now)],
            spec_errors=wrong,
            spec_errors_at_load=self._wrong,
        )

    def _failed_checks(self, specs: Iterable[TopicSpec], now: datetime) -> Iterator[FailedCheck]:
        keys = self._graph.asset_check_keys
        statuses = self._statuses(specs)
        current = self._engine_findings(statuses, now)
        stored = last_evaluations(self._instance, keys)
        outdated = {
            f"{key.asset_key.to_user_string()}:{key.name}"
            for key, finding in current.items()
            if finding.passed and key in stored and not stored[key].finding.passed
        }
        for key, finding in current.items():
            if not finding.passed:
                yield FailedCheck(key.asset_key.to_user_string(), key.name, finding)
        early = self._early_findings(statuses, stored, now)
        for key, finding in early.items():
            if not finding.passed:
                yield FailedCheck(key.asset_key.to_user_string(), key.name, finding, is_early=True)
        for key, evaluation in stored.items():
            finding = evaluation.finding
            if key in early and (finding.passed or early[key].passed):
                continue  # the status is newer
            # The next run of the checks says whether what followed from the engine's failure is
            # resolved as well.
            if finding.passed or key in current or finding.cause in outdated:
                continue
            if finding.since is None and (of := evaluation.event.target_materialization_data):
                finding = replace(finding, since=datetime.fromtimestamp(of.timestamp, UTC))
            yield FailedCheck(key.asset_key.to_user_string(), key.name, finding)

    def _statuses(self, specs: Iterable[TopicSpec]) -> list[tuple[TopicSpec, TopicStatus]]:
        """Return the topics of which an engine on this machine reports something, and what."""
        config = settings()
        if not config.own_engine:
            return []
        return [
            (spec, read_status(config, spec.name))
            for spec in specs
            if status_file(config, spec.name).exists()
        ]

    def _engine_findings(
        self, statuses: Iterable[tuple[TopicSpec, TopicStatus]], now: datetime
    ) -> dict[dg.AssetCheckKey, Finding]:
        """Return what the engine reports now, of the topics that have a check of it.

        The stored results of that check are as old as the last run of the checks.
        """
        findings: dict[dg.AssetCheckKey, Finding] = {}
        for spec, status in statuses:
            key = _check_key(spec, ENGINE_CHECK)
            if key in self._graph.asset_check_keys:
                findings[key] = check_engine(spec, status, now)
        return findings

    def _early_findings(
        self,
        statuses: Iterable[tuple[TopicSpec, TopicStatus]],
        stored: Mapping[dg.AssetCheckKey, Evaluation],
        now: datetime,
    ) -> dict[dg.AssetCheckKey, Finding]:
        """Return what the engine's statuses say of other checks, where that differs from the last
        evaluation and is newer: the checks run every five minutes.
        """
        findings: dict[dg.AssetCheckKey, Finding] = {}
        observed = observed_at(settings()) or 0.0
        if now.timestamp() - observed > OBSERVED_SECONDS:
            return findings
        for spec, status in statuses:
            for name, finding in status_findings(spec, status, now):
                key = _check_key(spec, name)
                if key not in self._graph.asset_check_keys:
                    continue
                last = stored.get(key)
                if last is None or last.finding.passed:
                    if not finding.passed:
                        findings[key] = finding
                elif finding.passed and observed > last.at.timestamp():
                    findings[key] = finding
        return findings

    def _check_runs(self) -> CheckRuns:
        config = settings()
        tags = location_tags(self._location)
        ended = dg.RunsFilter(job_name=CHECK, tags=tags, statuses=_ENDED_RUNS)
        newest = next(iter(self._instance.get_run_records(ended, limit=1)), None)
        return CheckRuns(
            job=CHECK,
            schedule=_SCHEDULE,
            scheduled=self._repository.has_schedule_def(_SCHEDULE),
            stack_stopped=config.deployment == "local" and not runtime_file(config).exists(),
            ended_at=newest.update_timestamp if newest else None,
            took=duration(newest) if newest else timedelta(),
        )

    def _stale_assets(self) -> Iterator[StaleAsset]:
        keys = [
            key for key in self._graph.get_all_asset_keys() if self._graph.get(key).freshness_policy
        ]
        stale = {
            key: record
            for key, record in self._instance.get_freshness_state_records(keys).items()
            if record.freshness_state.value in ("WARN", "FAIL")
        }
        checks = {
            key: [
                check
                for name in _EXPLAINING
                if (check := dg.AssetCheckKey(key, name)) in self._graph.asset_check_keys
            ]
            for key in stale
        }
        every = {check for of_asset in checks.values() for check in of_asset}
        evaluated = last_evaluations(self._instance, every)
        for key, record in stale.items():
            yield StaleAsset(
                asset=key.to_user_string(),
                severity="error" if record.freshness_state.value == "FAIL" else "warning",
                since=record.updated_at,
                checks=tuple(
                    evaluated[check].at if check in evaluated else None for check in checks[key]
                ),
            )

    def _runs(self, state: AlertState, now: datetime) -> tuple[list[EndedRun], float]:
        """Return the runs that ended since the last evaluation, and until when they were read."""
        began = state.runs_until or now.timestamp()
        records = self._instance.get_run_records(
            dg.RunsFilter(statuses=_ENDED_RUNS, updated_after=datetime.fromtimestamp(began, UTC)),
            limit=MAX_RUNS,
            order_by="update_timestamp",
            ascending=True,
        )
        unresolved = bool(state.pending) or any(key.startswith("run ") for key in state.alerts)
        runs: list[EndedRun] = []
        for record in records:
            if not self._is_own(record.dagster_run):
                continue
            unresolved |= record.dagster_run.status == dg.DagsterRunStatus.FAILURE
            if unresolved:  # else it succeeded, and its events need not be read
                runs.append(self._ended_run(record, now))
        until = max((each.update_timestamp.timestamp() for each in records), default=began)
        return runs, until

    def _materialized(self, state: AlertState) -> dict[str, datetime]:
        """Return when the assets that failed runs have left were materialized last."""
        names = {asset for work in state.pending if not work.first for asset in work.assets}
        keys = [dg.AssetKey.from_user_string(name) for name in sorted(names)]
        found: dict[str, datetime] = {}
        for record in self._instance.get_asset_records(keys) if keys else ():
            if (last := record.asset_entry.last_materialization) is not None:
                name = record.asset_entry.asset_key.to_user_string()
                found[name] = datetime.fromtimestamp(last.timestamp, UTC)
        return found

    def _is_own(self, run: dg.DagsterRun) -> bool:
        """Return whether a run is of the code location, or of a command that has run its assets."""
        location = location_of_run(run)
        if location is None and self._location is not None:
            planned = self._assets_of(run, {dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED})
            own = {key.to_user_string() for key in self._graph.get_all_asset_keys()}
            return bool(planned) and planned <= own
        return self._location in (None, location)

    def _ended_run(self, record: dg.RunRecord, now: datetime) -> EndedRun:
        run, kinds = record.dagster_run, dg.DagsterEventType
        succeeded = run.status == dg.DagsterRunStatus.SUCCESS
        planned = self._assets_of(run, {kinds.ASSET_MATERIALIZATION_PLANNED})
        materialized = planned
        if not succeeded:
            events = {kinds.ASSET_MATERIALIZATION, kinds.ASSET_OBSERVATION}
            materialized = planned & self._assets_of(run, events)
        first, last = self._covered(run, planned)
        ended = record.end_time
        return EndedRun(
            id=run.run_id,
            kind=_kind(run),
            succeeded=succeeded,
            retried=run.tags.get("dagster/will_retry") == "true",
            ended_at=datetime.fromtimestamp(ended, UTC) if ended else now,
            planned=planned,
            materialized=materialized,
            first=first,
            last=last,
            errors=() if succeeded else tuple(self._errors(run.run_id)),
        )

    def _covered(self, run: dg.DagsterRun, assets: frozenset[str]) -> tuple[str, str]:
        """Return the first and last partition of a run, as keys that sort as text.

        The first partition of a table has everything before it, also the partitions that the table
        had before ``derived_partitions.start`` became later.
        """
        first, last = requested_range(run.tags) or ("", "")
        keys = map(dg.AssetKey.from_user_string, assets if first else ())
        kinds = (self._graph.get(key).partitions_def for key in keys if self._graph.has(key))
        times = (each for each in kinds if isinstance(each, dg.TimeWindowPartitionsDefinition))
        begins = any(first == each.start.strftime(each.fmt) for each in times)
        return EVERYTHING_BEFORE if begins else first, last

    def _assets_of(self, run: dg.DagsterRun, events: set[dg.DagsterEventType]) -> frozenset[str]:
        keys = assets_of_run(self._instance, run.run_id, events)
        return frozenset(key.to_user_string() for key in keys)

    def _errors(self, run_id: str) -> Iterator[StepError]:
        """Yield the errors of a run's steps; if there are none, why the run failed."""
        steps = [
            _step_error(event.step_failure_data.error)
            for event in self._events(run_id, dg.DagsterEventType.STEP_FAILURE)
            if event.step_failure_data.error
        ]
        yield from steps
        for event in () if steps else self._events(run_id, dg.DagsterEventType.RUN_FAILURE):
            error = event.job_failure_data.error if event.event_specific_data else None
            if error is not None:
                yield _step_error(error)
            elif event.message:
                yield StepError((f"dagster.RunFailure: {event.message}",))

    def _events(self, run_id: str, kind: dg.DagsterEventType) -> list[dg.DagsterEvent]:
        found = self._instance.get_records_for_run(run_id, of_type=kind, limit=20).records
        events = (record.event_log_entry.dagster_event for record in found)
        return [event for event in events if event is not None]

    def _queued(self) -> QueuedRuns | None:
        tags = location_tags(self._location)
        queued = dg.RunsFilter(tags=tags, statuses=[dg.DagsterRunStatus.QUEUED])
        oldest = self._instance.get_run_records(queued, limit=1, ascending=True)
        if not oldest:
            return None
        run = oldest[0].dagster_run
        return QueuedRuns(
            count=self._instance.get_runs_count(queued),
            oldest=run.run_id,
            oldest_kind=_kind(run),
            since=oldest[0].create_timestamp,
        )

    def _active(self) -> Iterator[ActiveRun]:
        """Yield the oldest runs in progress, of every code location: they share the slots."""
        records = self._instance.get_run_records(
            dg.RunsFilter(statuses=_ACTIVE_RUNS), limit=MAX_ACTIVE, ascending=True
        )
        for record in records:
            run, began = record.dagster_run, record.start_time
            yield ActiveRun(
                id=run.run_id,
                kind=_kind(run),
                since=datetime.fromtimestamp(began, UTC) if began else record.create_timestamp,
                assets=tuple(sorted(key.to_user_string() for key in run.asset_selection or ())),
                frozen=frozen_process(run),
            )

    def _shared(self, now: datetime) -> Iterator[SharedTables]:
        """Return what the snapshot sensors of other code locations watch as well."""
        own = {
            f"{key.path[1]}_snapshots": key.to_user_string()
            for key in self._graph.get_all_asset_keys()
            if key.path[0] == "iceberg" and len(key.path) == 2
        }
        for state in self._instance.all_instigator_state():
            location = location_of_automation(state)
            if self._location in (None, location) or state.instigator_name != SNAPSHOTS:
                continue
            origin = state.instigator_origin_id
            ticks = self._instance.get_ticks(origin, state.selector_id, limit=1)
            if not ticks or now.timestamp() - ticks[0].timestamp > UNLOADED_SECONDS:
                continue
            if names := known_names(self._instance, own, location):
                yield SharedTables(location, tuple(sorted(own[name] for name in names)))

    def _automations(self) -> Iterator[Automation]:
        """Return sensors and schedules; Dagster also stores those of topics that are deleted."""
        for state in self._instance.all_instigator_state():
            name, origin = state.instigator_name, state.instigator_origin_id
            if self._location not in (None, location_of_automation(state)):
                continue
            if not (
                self._repository.has_sensor_def(name) or self._repository.has_schedule_def(name)
            ):
                continue
            kind: Literal["sensor", "schedule"] = (
                "schedule" if state.instigator_type.value == "SCHEDULE" else "sensor"
            )
            ticks = self._instance.get_ticks(
                origin, state.selector_id, limit=_TICKS if state.is_running else 1
            )
            known = Automation(
                name=name,
                kind=kind,
                running=state.is_running,
                is_on_by_default=self._is_on_by_default(name, kind),
                ticked_at=datetime.fromtimestamp(ticks[0].timestamp, UTC) if ticks else None,
                interval=self._interval(name) if kind == "sensor" else None,
                in_progress=bool(ticks) and ticks[0].status.value == "STARTED",
            )
            last = next((tick for tick in ticks if tick.status.value != "STARTED"), None)
            if last is None or not state.is_running:
                yield known
                continue
            failed, error = last.status.value == "FAILURE", last.error
            yield replace(
                known,
                failed_at=datetime.fromtimestamp(last.timestamp, UTC) if failed else None,
                error=_step_error(error) if error else None,
                skip_reason=last.skip_reason,
            )

    def _is_on_by_default(self, name: str, kind: Literal["sensor", "schedule"]) -> bool:
        """Return whether the code turns a sensor or schedule on."""
        if kind == "schedule":
            status = self._repository.get_schedule_def(name).default_status
            return status == dg.DefaultScheduleStatus.RUNNING
        default = self._repository.get_sensor_def(name).default_status
        return default == dg.DefaultSensorStatus.RUNNING

    def _interval(self, sensor: str) -> timedelta:
        """Return how often a sensor ticks."""
        seconds = self._repository.get_sensor_def(sensor).minimum_interval_seconds
        return timedelta(seconds=seconds or DEFAULT_INTERVAL_SECONDS)


def _kind(run: dg.DagsterRun) -> str:
    """Return what a run is one of: its job, the sensor that requested it, or its assets."""
    if not run.job_name.startswith("__"):
        return run.job_name
    if sensor := run.tags.get("dagster/sensor_name"):
        return f"{sensor} ({run.tags.get('topicberg/kind', 'run')})"
    keys = sorted(key.to_user_string() for key in run.asset_selection or ())
    return ", ".join(keys) or run.job_name


def _step_error(error: SerializableErrorInfo) -> StepError:
    chain, each = [error.message], error.cause
    while each:
        chain.append(each.message)
        each = each.cause
    return StepError(tuple(chain), of_blocking_check=error.cls_name == _BLOCKED)
