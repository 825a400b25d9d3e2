"""The checks of tables, without Dagster, for which `topicberg.orchestration` makes asset checks.

They read metadata, manifests and counts; rows are read only where a spec has rules on them.
"""
