"""The catalogs in which tables are registered: AWS Glue and Snowflake."""
