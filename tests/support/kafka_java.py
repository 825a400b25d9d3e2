"""How Kafka's clients in Java log in to the Kafka of a stack: those of other tools, in tests."""

from __future__ import annotations

from topicberg.endpoints import Endpoints


def java_config(endpoints: Endpoints) -> dict[str, str]:
    """Return the properties of a client in Java."""
    given = endpoints.kafka_config()
    found = {name: str(given[name]) for name in ("bootstrap.servers", "security.protocol")}
    if "sasl.mechanism" in given:
        user, password = given["sasl.username"], given["sasl.password"]
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        found |= {
            "sasl.mechanism": given["sasl.mechanism"],
            "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        }
    return found
