"""Generators of records as processes of this machine."""
