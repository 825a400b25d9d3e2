"""A topic without a spec, as Kafka and the registry describe it."""

from __future__ import annotations

from topicberg.topics.discovery import FoundSchema, FoundTopic

AVRO_TOPIC = FoundTopic(partitions=2, value=FoundSchema(format="avro", version=1))
"""Its values have a schema in Avro; its keys are bytes."""
