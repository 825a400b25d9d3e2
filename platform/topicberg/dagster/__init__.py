"""Extensions of Dagster's internals: storage, launcher, events, webserver, Snowflake."""

BACKGROUND = "topicberg/background"
"""Tag of runs that nobody waits for: on one machine, they leave the processors to all others."""
