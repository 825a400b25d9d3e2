"""Kafka topics in, governed Iceberg tables out: S3, AWS Glue and Snowflake, run by Dagster on Spark."""
