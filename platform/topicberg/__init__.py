"""Kafka topics in, governed Iceberg tables out: in S3, in AWS Glue and in Snowflake."""
