"""Settings of Kafka clients in SSM Parameter Store, one parameter each.

`topicberg deploy` writes them under ``/confluent_cloud_resource/<prefix>/<client>_kafka_client``,
for all clients of the deployment. topicberg's own clients take from there what only tunes
a client, and not the login or what exactly-once depends on (offsets, acknowledgements,
transactions).
"""

from __future__ import annotations

import time
from typing import Any, Literal

from topicberg.naming import Names
from topicberg.settings import Settings

Client = Literal["consumer", "producer"]

_OF_BOTH = frozenset(
    ("client.dns.lookup", "socket.connection.setup.timeout.ms", "socket.timeout.ms")
)
TUNABLE: dict[Client, frozenset[str]] = {
    "consumer": _OF_BOTH | {"fetch.min.bytes", "max.poll.interval.ms", "session.timeout.ms"},
    "producer": _OF_BOTH | {"batch.size", "compression.type", "linger.ms", "request.timeout.ms"},
}
"""The properties of librdkafka that are read from Parameter Store."""
SECONDS = 300.0
"""How long read settings are cached."""
_read: dict[str, tuple[float, dict[str, str]]] = {}


def client_parameters(config: Settings, client: Client) -> dict[str, str]:
    """Return the settings of a kind of client that only tune it; empty: there are none.

    :raises TopicbergError: AWS does not answer, or refuses
    """
    path = Names(config.prefix).confluent_secret(f"{client}_kafka_client")
    read_at, values = _read.get(path, (0.0, {}))
    if not read_at or time.monotonic() - read_at >= SECONDS:
        values = _parameters(path, config)
        _read[path] = (time.monotonic(), values)
    return {name: value for name, value in values.items() if name in TUNABLE[client]}


def _parameters(path: str, config: Settings) -> dict[str, str]:
    from botocore.exceptions import BotoCoreError, ClientError

    from topicberg.clients.aws import aws_session, every
    from topicberg.errors.meaning import explain

    ssm: Any = aws_session(region_name=config.aws_region).client("ssm")
    try:
        parameters = every(ssm, "get_parameters_by_path", "Parameters", Path=path)
        return {
            str(parameter["Name"]).rpartition("/")[2]: str(parameter["Value"])
            for parameter in parameters
        }
    except (BotoCoreError, ClientError) as error:
        raise explain(
            f"the parameters under {path} in SSM Parameter Store in {config.aws_region}",
            error,
            rights="grant ssm:GetParametersByPath on them to the user of this process",
        ) from None
