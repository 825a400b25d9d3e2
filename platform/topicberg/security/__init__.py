"""Protection from hostile input: a guard for HTTP servers, escaping, redaction of secrets."""
