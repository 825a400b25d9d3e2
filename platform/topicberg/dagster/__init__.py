"""Extensions of Dagster's internals: storage, launcher, events, webserver, Snowflake."""
