"""Confluent Cloud's control plane for the local stack."""
