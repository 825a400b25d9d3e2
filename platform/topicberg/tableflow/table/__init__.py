"""The topic's table: created, evolved, committed to, read again."""
