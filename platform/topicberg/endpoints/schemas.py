"""The readers of the schemas that records name: of Confluent's registry and of AWS Glue's."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from topicberg.endpoints.model import REGISTRY_SECONDS, Endpoints
from topicberg.formats.registry import SchemaReaders, SubjectReader
from topicberg.settings import Settings, settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from topicberg.formats.glue import GlueReader

_ATTEMPTS = 3


def schema_readers(
    endpoints: Endpoints,
    config: Settings | None = None,
    registry: SchemaRegistryClient | None = None,
) -> SchemaReaders:
    """Return new readers; ``registry``: a client of Confluent's registry that others use too."""
    confluent = SubjectReader(registry or endpoints.schema_registry_client())
    return SchemaReaders(confluent, lambda: glue_reader(endpoints, config))


def glue_reader(endpoints: Endpoints, config: Settings | None = None) -> GlueReader:
    """Return a new reader of AWS Glue's registry, which the settings name."""
    from topicberg.formats.glue import GlueReader

    config = config or settings()
    return GlueReader(endpoints.boto3("glue", config, _options()), config.glue_schema_registry)


@cache
def _options() -> Any:
    """Return options of boto3's client: it gives up as soon as that of Confluent's registry."""
    from botocore.config import Config

    return Config(
        connect_timeout=REGISTRY_SECONDS,
        read_timeout=REGISTRY_SECONDS,
        retries={"mode": "standard", "max_attempts": _ATTEMPTS},
    )
