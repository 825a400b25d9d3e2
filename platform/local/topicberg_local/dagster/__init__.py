"""What the local deployment has of Dagster: its storage, and the launcher of its runs."""
