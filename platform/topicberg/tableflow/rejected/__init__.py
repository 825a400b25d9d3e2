"""What is not a row: SUSPEND, SKIP, LOG, and dead letters."""
