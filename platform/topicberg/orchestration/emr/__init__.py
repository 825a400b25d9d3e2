"""Windows of derived tables that EMR Serverless computes: Dagster's side, and the job's."""
