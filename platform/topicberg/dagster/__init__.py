"""What depends on the inside of Dagster: storage, launcher, events, webserver, Snowflake."""
