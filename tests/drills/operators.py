"""Who runs the checks and the alerts in a drill, and reads what they say."""

from __future__ import annotations

import re
import time

import dagster as dg

from topicberg.alerts.alert import Notice
from topicberg.alerts.channels import alerts_file
from topicberg.orchestration.assets import Lake, lake_assets, lake_checks
from topicberg.orchestration.assets.derived import DerivedTable
from topicberg.orchestration.jobs.alerts import alert_sensor
from topicberg.orchestration.jobs.catalogs import catalog_sensor
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.orchestration.jobs.table_jobs import check_job
from topicberg.orchestration.resources import RESOURCES
from topicberg.settings import settings
from topicberg.topics import TopicSpec

PATIENCE_SECONDS = 600.0
COMMAND = re.compile(r"`((?:topicberg|dagster) [^`]+)`")


class Operator:
    """Runs checks and the alert sensor as the daemon does, and reads what they say."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        spec: TopicSpec,
        *derived: DerivedTable,
        services: bool = False,
    ) -> None:
        """:param services: whether what the engine's watch over the services sends is read"""
        lake = Lake(settings(), (spec,), derived)
        self.defs = dg.Definitions(
            assets=list(lake_assets(lake)),
            asset_checks=list(lake_checks(lake)),
            jobs=[check_job(lake)],
            sensors=[alert_sensor(), snapshot_sensor(lake), catalog_sensor(lake)],
            resources=RESOURCES,
            executor=dg.in_process_executor,
        )
        self.instance, self.services = instance, services
        self.cursor: str | None = None
        self.seen = 0
        self.alerts()

    def check(self) -> dg.ExecuteInProcessResult:
        """A run of the checks; of one that fails some came to no verdict."""
        job = self.defs.resolve_job_def("check_tables")
        return job.execute_in_process(instance=self.instance, raise_on_error=False)

    def look(self) -> None:
        """A tick of each other sensor; one that fails is reported.

        :raises Exception: it fails
        """
        repository = self.defs.get_repository_def()
        for sensor in repository.sensor_defs:
            if sensor.name != "alerts":
                context = dg.build_sensor_context(
                    instance=self.instance,
                    repository_def=repository,
                    resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
                )
                sensor.evaluate_tick(context)

    def failing(self) -> dict[str, dg.AssetCheckEvaluation]:
        """``asset:check`` → what the check says, of those of the topic that fail."""
        found = self.check().get_asset_check_evaluations()
        assert {f"{e.asset_key.path[0]}" for e in found} == {"iceberg", "glue", "snowflake"}
        return {f"{e.asset_key.to_user_string()}:{e.check_name}": e for e in found if not e.passed}

    def alerts(self) -> list[Notice]:
        """What the next tick of the alert sensor tells."""
        repository = self.defs.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, repository_def=repository
        )
        tick = repository.get_sensor_def("alerts").evaluate_tick(context)
        self.cursor = tick.cursor or self.cursor
        file = alerts_file(settings())
        lines = file.read_text().splitlines() if file.exists() else []
        fresh, self.seen = lines[self.seen :], len(lines)
        notices = [Notice.model_validate_json(line) for line in fresh]
        return [
            notice
            for notice in notices
            if self.services or not notice.alert.key.startswith("service ")
        ]

    def diagnose(self, check: str, says: str) -> str:
        """The fault is reported by that check, and paged once; the command that resolves it."""
        failing = self.failing()
        assert check in failing, failing
        text = failing[check].description or ""
        assert re.search(says, text), text
        assert "Since 20" in text
        reported = [n for n in self.alerts() if n.state == "firing"]
        assert [n.alert.key for n in reported] == [f"check {check}"], reported
        assert not self.alerts()
        assert reported[0].alert.link.startswith("http://")
        (command, *_) = COMMAND.findall(reported[0].alert.remediation or "")
        assert command in text
        return str(command)

    def await_green(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while failing := self.failing():
            if time.monotonic() > deadline:
                raise AssertionError({key: found.description for key, found in failing.items()})
            time.sleep(2)
        reported = self.alerts()
        assert reported
        assert all(n.state == "resolved" for n in reported), reported
