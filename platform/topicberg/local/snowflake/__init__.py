"""Snowflake for the local stack: its wire protocol, and the objects that Iceberg tables need."""
