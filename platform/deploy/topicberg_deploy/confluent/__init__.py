"""Confluent Cloud's resources. Each module has the requests of one API group."""
