"""What keeps hostile input away: a guard for HTTP servers, escaping, redaction of secrets."""
