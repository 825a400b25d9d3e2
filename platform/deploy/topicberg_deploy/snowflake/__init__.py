"""Snowflake's resources, created by the admin user's session with the role that owns each kind."""
