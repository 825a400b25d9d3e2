"""Snowflake: names, statements, sessions, and its Iceberg tables."""
