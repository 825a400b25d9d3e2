"""What runs the graph: jobs, schedules and sensors."""

from __future__ import annotations

from topicberg.orchestration.jobs.alerts import alert_sensor
from topicberg.orchestration.jobs.catalogs import catalog_sensor
from topicberg.orchestration.jobs.checks import check_job, check_schedule
from topicberg.orchestration.jobs.engine import engine_sensor
from topicberg.orchestration.jobs.maintenance import maintenance_job, maintenance_schedule
from topicberg.orchestration.jobs.pipelines import everything, pipeline_jobs
from topicberg.orchestration.jobs.retention import retention_schedule
from topicberg.orchestration.jobs.rotation import rotation_schedule
from topicberg.orchestration.jobs.sensors import snapshot_sensor

__all__ = [
    "alert_sensor",
    "catalog_sensor",
    "check_job",
    "check_schedule",
    "engine_sensor",
    "everything",
    "maintenance_job",
    "maintenance_schedule",
    "pipeline_jobs",
    "retention_schedule",
    "rotation_schedule",
    "snapshot_sensor",
]
