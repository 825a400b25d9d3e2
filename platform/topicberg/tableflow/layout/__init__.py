"""Which columns a table has, from specs and schemas, what they mean, and which changes wait."""
