"""Snowflake's resources, made by the admin user's session with the role that owns each kind."""
