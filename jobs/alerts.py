"""The sensor that tells people what is wrong, and when it is mended.

Every minute it looks at the state of everything, not at events: checks and freshness as they
are now, what failed runs were to do and none has done since, the last tick of each sensor and
schedule. So nothing is missed while the daemon was down, nothing is told twice, and what is mended
is told as well. While the checks do not run, it tells that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import dagster as dg

from assets.checks import CAUSE, MEND, SINCE, last_evaluated, last_evaluations
from assets.partitions import asked_range
from jobs.checks import CHECK
from jobs.schedules import schedule_name

if TYPE_CHECKING:
    from dagster._core.scheduler.instigation import InstigatorState, InstigatorTick
    from dagster_shared.error import SerializableErrorInfo

    from topicberg.alerts import Alert, Told, Work

INTERVAL_SECONDS = 60
MAX_RUNS = 200
MAX_UNDONE = 100
"""Failed runs whose work is remembered; of older ones, that their kind failed."""
CHECKED_WITHIN = timedelta(minutes=10)
"""The schedule of the checks asks for them every five minutes."""
UNCHECKED_TICKS = 10
"""So many minutes more they may not run. Of this sensor, not of the clock: a daemon that begins, or
was down all night, finds no check of late, and its schedule needs a moment as well."""
QUEUED_TOO_LONG = timedelta(minutes=30)
_SCHEDULE = schedule_name(CHECK)
_BLOCKED = "DagsterAssetCheckFailedError"


def alert_sensor(wrong: str | None = None) -> dg.SensorDefinition:
    """:param wrong: what was wrong with the topic specs when the code location was loaded"""

    @dg.sensor(
        name="alerts",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Tells of checks that fail, tables that are late, runs, sensors and schedules "
        "that fail: once, and once more when it is mended. Always to `alerts.jsonl` in the state "
        "directory; to a webhook, to Slack or by e-mail if TOPICBERG_ALERT_… says so.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from topicberg.alerts import Told, alert_settings, channels, tell
        from topicberg.settings import settings

        assert context.repository_def is not None  # noqa: S101  the daemon always gives it
        chosen, told = alert_settings(), Told.parse(context.cursor)
        state = State(context.instance, context.repository_def, chosen.ui_url, wrong)
        told, now = state.faults(told)
        told, problems = tell(told, now, channels(settings(), chosen))
        for problem in problems:
            context.log.warning(problem)
        context.update_cursor(told.model_dump_json())
        said = ", ".join(sorted(told.alerts)) or "nothing is wrong"
        return dg.SkipReason("; ".join([said, *problems]))

    return alerts


class State:
    """What is wrong now, as the instance knows it."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        repository: dg.RepositoryDefinition,
        ui_url: str,
        wrong: str | None = None,
    ) -> None:
        self.instance = instance
        self.wrong = wrong
        self.repository = repository
        self.graph = repository.asset_graph
        self.ui = ui_url.rstrip("/")

    def faults(self, told: Told) -> tuple[Told, dict[str, Alert]]:
        """Key → fault; and the memory, with what was seen now."""
        told, runs = self._runs(told)
        told, unchecked = self._unchecked(told)
        found = [*self._checks(), *unchecked, *self._freshness(), *runs, *self._queue()]
        found += [*self._ticks(), *self._specs()]
        return told, {alert.key: alert for alert in found}

    def _checks(self) -> Iterator[Alert]:
        from topicberg.alerts import Alert

        for key, found in last_evaluations(self.instance, self.graph.asset_check_keys).items():
            if found.passed:
                continue
            asset = key.asset_key.to_user_string()
            known = {name: str(found.metadata[name].value) for name in (MEND, SINCE, CAUSE)
                     if name in found.metadata}  # fmt: skip
            begun = known.get(SINCE)
            at = found.target_materialization_data
            yield Alert(
                key=f"check {asset}:{key.name}",
                title=f"check {key.name} of {asset}",
                what=(found.description or "failed").partition("  \n")[0],
                severity="warning" if found.severity == dg.AssetCheckSeverity.WARN else "error",
                since=datetime.fromtimestamp(float(begun), UTC)
                if begun
                else datetime.fromtimestamp(at.timestamp, UTC)
                if at
                else datetime.now(UTC),
                link=f"{self._asset(key.asset_key)}?view=checks&checkDetail={key.name}",
                mend=known.get(MEND),
                cause=f"check {known[CAUSE]}" if CAUSE in known else None,
            )

    def _unchecked(self, told: Told) -> tuple[Told, list[Alert]]:
        """The checks do not run: all of them stay as they were, whatever becomes of the tables.

        A local stack that does not run was stopped, or never started, by whoever would be told.
        """
        from topicberg.alerts import Alert
        from topicberg.endpoints import runtime_file
        from topicberg.settings import settings

        config = settings()
        stopped = config.deployment == "local" and not runtime_file(config).exists()
        unchecked = told.unchecked + 1 if self._blind and not stopped else 0
        told = told.model_copy(update={"unchecked": unchecked})
        if unchecked < UNCHECKED_TICKS:
            return told, []
        what, mend = self._why_unchecked()
        return told, [
            Alert(
                key="checks",
                title="the checks do not run",
                what=f"no table is checked: {what}",
                severity="error",
                since=self._checked or datetime.now(UTC),
                link=f"{self.ui}/automation",
                mend=mend or f"see {_SCHEDULE} (Automation) and the runs of {CHECK}",
                cause=f"tick {_SCHEDULE}",
            )
        ]

    def _why_unchecked(self) -> tuple[str, str | None]:
        """And the mend, if it is known."""
        for state, tick in self._instigators:
            if state.instigator_name != _SCHEDULE:
                continue
            if not state.is_running:
                return f"{_SCHEDULE} is off", f"turn it on: Automation, {_SCHEDULE}"
            if tick and tick.skip_reason:
                said, hint = _said(tick.skip_reason)
                return f"{_SCHEDULE} was skipped: {said}", hint
        return f"no run of {CHECK} ends", None

    @cached_property
    def _checked(self) -> datetime | None:
        """When the checks ran last, well or not: a run that fails is told by itself."""
        statuses = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
        ended = dg.RunsFilter(job_name=CHECK, statuses=statuses)
        newest = self.instance.get_run_records(ended, limit=1)
        return newest[0].update_timestamp if newest else None

    @property
    def _blind(self) -> bool:
        """Whether the checks were to run, and have not for long."""
        if not self.repository.has_schedule_def(_SCHEDULE):
            return False
        return self._checked is None or datetime.now(UTC) - self._checked > CHECKED_WITHIN

    def _freshness(self) -> Iterator[Alert]:
        from dagster._core.definitions.freshness import FreshnessState

        from topicberg.alerts import Alert

        keys = [
            key for key in self.graph.get_all_asset_keys() if self.graph.get(key).freshness_policy
        ]
        late = {
            key: record
            for key, record in self.instance.get_freshness_state_records(keys).items()
            if record.freshness_state in (FreshnessState.WARN, FreshnessState.FAIL)
        }
        explained = self._explained_by_checks({key: late[key].updated_at for key in late})
        for key, record in late.items():
            if key in explained:
                continue
            asset = key.to_user_string()
            yield Alert(
                key=f"freshness {asset}",
                title=f"{asset} is late",
                what=f"{asset} was not materialized within its freshness policy",
                severity="error" if record.freshness_state == FreshnessState.FAIL else "warning",
                since=record.updated_at,
                link=self._asset(key),
                mend=f"see its checks, and why the last run of {CHECK} did not evaluate them",
            )

    def _explained_by_checks(self, late: Mapping[dg.AssetKey, datetime]) -> set[dg.AssetKey]:
        """Assets with a check that says why they are late, or will within :data:`CHECKED_WITHIN`.

        One that is content all the same means that nothing came: the check of the topic says so.
        That checks do not run is told by itself.

        :param late: asset → since when
        """
        own = {
            dg.AssetCheckKey(key, name): key
            for key in late
            for name in ("freshness", "up_to_date")
            if dg.AssetCheckKey(key, name) in self.graph.asset_check_keys
        }
        evaluated = last_evaluated(self.instance, own.keys())
        now = datetime.now(UTC)
        return {
            key
            for check, key in own.items()
            if self._blind
            or now - late[key] < CHECKED_WITHIN
            or (check in evaluated and evaluated[check][1] > late[key])
        }

    def _runs(self, told: Told) -> tuple[Told, list[Alert]]:
        """The kinds of runs that failed, until what they were to do is done."""
        from topicberg.alerts import Work

        began = told.runs_until or datetime.now(UTC).timestamp()
        alerts = {key: alert for key, alert in told.alerts.items() if key.startswith("run ")}
        forgotten = alerts.keys() - {work.kind for work in told.undone}
        known = {key.to_user_string() for key in self.graph.get_all_asset_keys()}
        wanted = [work for work in told.undone if not work.assets or work.assets & known]
        undone = [*(Work(kind=key) for key in sorted(forgotten)), *wanted]
        mended: set[str] = set()
        records = self.instance.get_run_records(
            dg.RunsFilter(
                statuses=[dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE],
                updated_after=datetime.fromtimestamp(began, UTC),
            ),
            limit=MAX_RUNS,
            order_by="update_timestamp",
            ascending=True,
        )
        for record in records:
            run = record.dagster_run
            key = f"run {_kind(run)}"
            succeeded = run.status == dg.DagsterRunStatus.SUCCESS
            if succeeded and not undone:
                continue
            done, failed = self._work(run, key)
            undone = [left for work in undone if (left := work.after(done))]
            mended |= alerts.keys() - {work.kind for work in undone}
            if succeeded or run.tags.get("dagster/will_retry") == "true":
                continue
            if alert := self._failure(run, key, record.end_time):
                others = [work for work in undone if work.kind != key or work.after(failed)]
                undone, alerts[key] = [*others, failed], alert
        until = max((r.update_timestamp.timestamp() for r in records), default=began)
        faults = [alerts[kind] for kind in dict.fromkeys(work.kind for work in undone)]
        anew = mended & {alert.key for alert in faults}  # another fault: it is told by itself
        remembered = {
            "alerts": {key: alert for key, alert in told.alerts.items() if key not in anew},
            "runs_until": until,
            "undone": undone[-MAX_UNDONE:],
        }
        return told.model_copy(update=remembered), faults

    def _work(self, run: dg.DagsterRun, kind: str) -> tuple[Work, Work]:
        """What a run has done, and what it has left undone; one that failed has done no kind."""
        from topicberg.alerts import Work

        kinds = dg.DagsterEventType
        keys = self.instance.get_asset_keys_for_run(run.run_id, kinds.ASSET_MATERIALIZATION_PLANNED)
        planned = made = frozenset(key.to_user_string() for key in keys)
        succeeded = run.status == dg.DagsterRunStatus.SUCCESS
        if not succeeded:
            events = {kinds.ASSET_MATERIALIZATION, kinds.ASSET_OBSERVATION}
            keys = self.instance.get_asset_keys_for_run(run.run_id, events)
            made = planned & {key.to_user_string() for key in keys}
        first, last = asked_range(run.tags) or ("", "")
        return (
            Work(kind=kind if succeeded else "", assets=made, first=first, last=last),
            Work(kind=kind, assets=planned - made, first=first, last=last),
        )

    def _queue(self) -> Iterator[Alert]:
        """Runs that do not begin: others, of a higher priority, keep their places."""
        from topicberg.alerts import Alert

        queued = dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED])
        oldest = self.instance.get_run_records(queued, limit=1, ascending=True)
        if not oldest or datetime.now(UTC) - oldest[0].create_timestamp < QUEUED_TOO_LONG:
            return
        run, since = oldest[0].dagster_run, oldest[0].create_timestamp
        yield Alert(
            key="queue",
            title="runs wait",
            what=f"runs in the queue: {self.instance.get_runs_count(queued):,}; the oldest, of "
            f"{_kind(run)}, does not begin",
            severity="warning",
            since=since,
            link=f"{self.ui}/runs/{run.run_id}",
            mend="see what runs instead (Runs, In progress); it is too much for this machine: "
            "longer commit intervals or fewer pipelines, or more cores and places (`concurrency` "
            "in dagster.yaml)",
        )

    def _failure(self, run: dg.DagsterRun, key: str, ended: float | None) -> Alert | None:
        """None: a blocking check failed, and that is told by itself."""
        from topicberg.alerts import Alert

        errors = list(self._errors(run.run_id))
        if errors and all(error.cls_name == _BLOCKED for error in errors):
            return None
        what, mend = _explained(errors)
        return Alert(
            key=key,
            title=f"a run of {_kind(run)} failed",
            what=what or "the run failed before its first step: see its log",
            severity="error",
            since=datetime.fromtimestamp(ended or datetime.now(UTC).timestamp(), UTC),
            link=f"{self.ui}/runs/{run.run_id}",
            mend=mend or "the run's page shows what failed; re-execute it from failure",
        )

    def _errors(self, run_id: str) -> Iterator[SerializableErrorInfo]:
        records = self.instance.get_records_for_run(
            run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=20
        ).records
        for record in records:
            event = record.event_log_entry.dagster_event
            if event and event.step_failure_data.error:
                yield event.step_failure_data.error

    @cached_property
    def _instigators(self) -> list[tuple[InstigatorState, InstigatorTick | None]]:
        """The sensors and schedules, those that are on with the last tick that came to an end.

        Dagster also knows those that are gone, with a topic for example.
        """
        from dagster._core.scheduler.instigation import TickStatus

        ended = [TickStatus.SUCCESS, TickStatus.SKIPPED, TickStatus.FAILURE]
        found: list[tuple[InstigatorState, InstigatorTick | None]] = []
        for state in self.instance.all_instigator_state():
            name, origin = state.instigator_name, state.instigator_origin_id
            if self.repository.has_sensor_def(name) or self.repository.has_schedule_def(name):
                ticks = (
                    self.instance.get_ticks(origin, state.selector_id, limit=1, statuses=ended)
                    if state.is_running
                    else []
                )
                found.append((state, ticks[0] if ticks else None))
        return found

    def _ticks(self) -> Iterator[Alert]:
        from dagster._core.scheduler.instigation import TickStatus

        from topicberg.alerts import Alert

        for state, tick in self._instigators:
            if tick is None or tick.status != TickStatus.FAILURE:
                continue
            name, kind = state.instigator_name, state.instigator_type.value.lower()
            what, mend = _explained([tick.error] if tick.error else [])
            yield Alert(
                key=f"tick {name}",
                title=f"{kind} {name} fails",
                what=what or f"the last tick of {kind} {name} failed",
                severity="error",
                since=datetime.fromtimestamp(tick.timestamp, UTC),
                link=f"{self.ui}/automation",
                mend=mend or f"its page in the UI shows the error of the tick: Automation, {name}",
            )

    def _specs(self) -> Iterator[Alert]:
        """Topic specs that are wrong, now or when the code location was loaded."""
        from topicberg.alerts import Alert
        from topicberg.settings import settings
        from topicberg.topics.kept import wrong_specs

        wrong = wrong_specs(settings())
        if not wrong and not self.wrong:
            return
        yield Alert(
            key="specs",
            title="a topic spec is wrong",
            what=f"the last good topic specs stay in use: {wrong or self.wrong}",
            severity="error",
            since=datetime.now(UTC),
            link=f"{self.ui}/deployment/locations",
            mend="fix the file: `topicberg topics validate` shows every mistake"
            if wrong
            else "reload the code location: Deployment, Reload",
        )

    def _asset(self, key: dg.AssetKey) -> str:
        return f"{self.ui}/assets/{'/'.join(key.path)}"


def _kind(run: dg.DagsterRun) -> str:
    """What a run is one of: its job, or the sensor that asked for it, or its assets."""
    if not run.job_name.startswith("__"):
        return run.job_name
    if sensor := run.tags.get("dagster/sensor_name"):
        return f"{sensor} ({run.tags.get('topicberg/kind', 'run')})"
    keys = sorted(key.to_user_string() for key in run.asset_selection or ())
    return ", ".join(keys) or run.job_name


def _explained(errors: Iterable[SerializableErrorInfo]) -> tuple[str, str | None]:
    """What the first error says, and its hint: that of the innermost cause.

    Or of the innermost that is topicberg's own: it says what those below it mean.
    """
    for error in errors:
        chain = [error]
        while chain[-1].cause:
            chain.append(chain[-1].cause)
        own = [each for each in chain if each.message.startswith("topicberg.")]
        error = (own or chain)[-1]
        name, _, text = error.message.strip().partition(": ")
        said, hint = _said(text)
        return said or " ".join(name.split()), hint
    return "", None


def _said(text: str) -> tuple[str, str | None]:
    """The message of an error that topicberg raised, and its hint."""
    message, _, hint = text.partition("\n  → ")
    return " ".join(message.split())[:500], hint.strip() or None
