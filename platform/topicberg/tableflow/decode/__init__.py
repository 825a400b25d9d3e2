"""Ranges of a log as columns and rejected records, in processes and tasks."""
