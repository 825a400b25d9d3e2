"""Kafka: topics, offsets, records, transactions."""
