"""What runs the graph: jobs and sensors."""

from __future__ import annotations

from jobs.pipelines import EVERYTHING, pipeline_jobs
from jobs.rotation import rotation_schedule
from jobs.sensors import snapshot_sensor

__all__ = ["EVERYTHING", "pipeline_jobs", "rotation_schedule", "snapshot_sensor"]
