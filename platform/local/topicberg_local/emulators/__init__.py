"""Emulators of Confluent Cloud, AWS and Snowflake, for the local stack only."""
