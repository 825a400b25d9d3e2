"""Turns of many topics: pool, control, status, metrics, maintenance."""
