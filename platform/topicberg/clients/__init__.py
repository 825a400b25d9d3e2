"""Clients of vendors' services that check every response, and the vendors' secrets."""
