"""Windows of derived tables that EMR Serverless computes: Dagster's side, and the job's."""

from assets.emr.client import write_window_on_emr

__all__ = ["write_window_on_emr"]
