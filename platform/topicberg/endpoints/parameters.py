"""What ``topicberg deploy`` wrote in AWS for this process: secrets, and settings of Kafka clients.

After a rotation, the previous key stays valid for a whole period, so secrets need not be read again
for every request. Settings of Kafka clients are in SSM Parameter Store, one parameter each, under
``/confluent_cloud_resource/<prefix>/<client>_kafka_client``, for all clients of the deployment.
topicberg's own clients take from there what only tunes a client, and not the login or what
exactly-once depends on (offsets, acknowledgements, transactions).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from topicberg.clients.aws import aws_session, every
from topicberg.clients.secrets import Secrets
from topicberg.errors.meaning import aws_explained
from topicberg.naming import Names
from topicberg.settings import Settings

SECONDS = 300.0  # How long read secrets and settings of clients are cached.
_read: dict[str, tuple[float, dict[str, str]]] = {}
Client = Literal["consumer", "producer"]
_OF_BOTH = frozenset(
    ("client.dns.lookup", "socket.connection.setup.timeout.ms", "socket.timeout.ms")
)
TUNABLE: dict[Client, frozenset[str]] = {
    "consumer": _OF_BOTH | {"fetch.min.bytes", "max.poll.interval.ms", "session.timeout.ms"},
    "producer": _OF_BOTH | {"batch.size", "compression.type", "linger.ms", "request.timeout.ms"},
}  # The properties of librdkafka that are read from Parameter Store.


def read_secret(path: str, config: Settings) -> dict[str, str] | None:
    """Return a secret of the deployment, or None if there is none; raise TopicbergError if AWS does
    not answer, or refuses."""

    def read() -> dict[str, str] | None:
        client = aws_session(region_name=config.aws_region).client("secretsmanager")
        return Secrets(client).read(path) or None

    rights = "grant secretsmanager:GetSecretValue on it to the user of this process"
    with aws_explained(of_secret(path, config), rights):
        return _cached(path, read)


def of_secret(path: str, config: Settings) -> str:
    return f"secret {path} of AWS Secrets Manager in {config.aws_region}"


def client_parameters(config: Settings, client: Client) -> dict[str, str]:
    """Return the settings of a kind of client that only tune it; empty: there are none.

    :raises TopicbergError: AWS does not answer, or refuses
    """
    path = Names(config.prefix).confluent_secret(f"{client}_kafka_client")

    def read() -> dict[str, str]:
        ssm: Any = aws_session(region_name=config.aws_region).client("ssm")
        parameters = every(ssm, "get_parameters_by_path", "Parameters", Path=path)
        return {str(p["Name"]).rpartition("/")[2]: str(p["Value"]) for p in parameters}

    rights = "grant ssm:GetParametersByPath on them to the user of this process"
    subject = f"the parameters under {path} in SSM Parameter Store in {config.aws_region}"
    with aws_explained(subject, rights):
        values = _cached(path, read) or {}
    return {name: value for name, value in values.items() if name in TUNABLE[client]}


def _cached(path: str, read: Callable[[], dict[str, str] | None]) -> dict[str, str] | None:
    """Return what AWS has under a path; None, which is not cached: nothing."""
    read_at, values = _read.get(path, (0.0, None))
    if values is not None and time.monotonic() - read_at < SECONDS:
        return values
    if (values := read()) is not None:
        _read[path] = time.monotonic(), values
    return values
