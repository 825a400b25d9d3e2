"""The Tableflow engine: what Confluent's Tableflow does for a topic, for any Kafka, on Spark.

A topic becomes an Iceberg table, exactly once. The table is the checkpoint: every snapshot says in
its summary up to which Kafka offsets it holds the topic, and is published by compare-and-set.
"""
