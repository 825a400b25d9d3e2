"""AWS's resources: the bucket, the roles by which Confluent and Snowflake come in, Glue, SSM."""
