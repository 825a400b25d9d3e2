"""What runs the graph: jobs and sensors."""

from __future__ import annotations

from jobs.pipelines import EVERYTHING, pipeline_jobs
from jobs.sensors import snapshot_sensors

__all__ = ["EVERYTHING", "pipeline_jobs", "snapshot_sensors"]
