"""What runs the graph: jobs, schedules and sensors."""

from __future__ import annotations

from jobs.alerts import alert_sensor
from jobs.catalogs import catalog_sensor
from jobs.checks import check_job, check_schedule
from jobs.engine import engine_sensor
from jobs.maintenance import maintenance_job, maintenance_schedule
from jobs.pipelines import everything, pipeline_jobs
from jobs.retention import retention_schedule
from jobs.rotation import rotation_schedule
from jobs.sensors import snapshot_sensor

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
