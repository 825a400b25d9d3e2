"""Plain Iceberg: snapshots, files, deletes and their hours, maintenance, and the Delta log."""
