"""What is checked of a table, without Dagster: :mod:`assets.checks` makes asset checks of it.

From metadata, manifests and counts; rows are read only where a spec asks for it.
"""
