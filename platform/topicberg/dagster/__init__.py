"""Extensions of Dagster's internals: storage, launcher, events, webserver, Snowflake."""

BACKGROUND = "topicberg/background"
"""Tag of runs whose results can wait: on one machine, they leave the processors to all others."""
LIBRARIES = (
    "avro.schema",
    "boto3",
    "confluent_kafka.admin",
    "confluent_kafka.schema_registry",
    "dagster._cli.api",
    "dagster._core.storage.sqlite_storage",
    "dagster._daemon.cli",
    "dagster_pyspark",
    "matplotlib.dates",
    "matplotlib.figure",
    "pydantic_settings",
    "pyiceberg.catalog.rest",
    "pyiceberg.io.fsspec",
    "pyspark.sql.connect.session",
)
"""What runs import anyway, except modules that start a thread (Snowflake's connector)."""
