"""Extensions of Dagster's internals: storage, launcher, events, webserver, Snowflake."""

BACKGROUND = "topicberg/background"
"""Tag of runs whose results can wait: on one machine, they leave the processors to all others."""
