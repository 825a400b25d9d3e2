"""The checks of tables, without Dagster: :mod:`assets.checks` makes asset checks of them.

They read metadata, manifests and counts; rows are read only where a spec has rules on them.
"""
