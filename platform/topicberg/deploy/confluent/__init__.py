"""Confluent Cloud's resources. Each module has one API group: how it is asked, what it is asked."""
