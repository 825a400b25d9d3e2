"""Erase the rows of one key from the tables of a topic, and its records from a compacted topic."""
