"""Changes of a database as current rows."""
