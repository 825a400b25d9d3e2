"""AWS Glue Schema Registry as the emulator of the local stack has it, and records that name it."""

from __future__ import annotations

import zlib
from typing import Any
from uuid import UUID

from strict_aws import REGION, Account

from topicberg.clients.aws import aws_session
from topicberg.formats.glue import GlueReader

REGISTRY = "default-registry"
TYPES = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


def glue_record(version: UUID, payload: bytes, *, is_compressed: bool = False) -> bytes:
    """Return a record as AWS's serializers write it. Source: ``SerializationDataEncoder`` and
    ``GlueSchemaRegistryDefaultCompression`` (Java)."""
    kind, body = (b"\5", zlib.compress(payload)) if is_compressed else (b"\0", payload)
    return b"\3" + kind + version.bytes + body


class GlueRegistry:
    """A registry of the emulator, by a boto3 client that checks answers as topicberg's do."""

    def __init__(self, account: Account) -> None:
        session = aws_session(
            aws_access_key_id="LOCAL", aws_secret_access_key="local", region_name=REGION
        )
        self.client: Any = session.client("glue", endpoint_url=account.url)

    def register(self, name: str, kind: str, text: str) -> UUID:
        """Register a version of a schema; return its UUID."""
        schema = {"SchemaName": name, "RegistryName": REGISTRY}
        try:
            made = self.client.register_schema_version(SchemaId=schema, SchemaDefinition=text)
        except self.client.exceptions.EntityNotFoundException:
            made = self.client.create_schema(
                RegistryId={"RegistryName": REGISTRY},
                SchemaName=name,
                DataFormat=TYPES[kind],
                Compatibility="NONE",
                SchemaDefinition=text,
            )
        return UUID(made["SchemaVersionId"])

    def set_status(self, version: UUID, status: str) -> None:
        """Give a version a status that the emulator itself gives none."""
        from topicberg_local.emulators.aws.state import backends

        for _, _, glue in backends("glue").iter_backends():
            for registry in glue.registries.values():
                for schema in registry.schemas.values():
                    if str(version) in schema.schema_versions:
                        schema.schema_versions[str(version)].schema_version_status = status

    def reader(self, **options: Any) -> GlueReader:
        return GlueReader(self.client, REGISTRY, **options)
