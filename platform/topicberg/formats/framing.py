"""Which schema a record names, and which of its bytes are the payload.

Framing is apart from decoding: formats get a schema and a payload, whatever says what the schema
is. The spec of a topic says how its keys, and its values, name their schemas (:data:`Framing`):

- ``confluent``: in a header, or else in a prefix, as below.
- ``header``: in a header only.
- ``glue``: in the prefix of AWS Glue Schema Registry.
- ``none``: not at all. All of them have one schema, and the bytes of a record are the payload.

Confluent's two ways to name a schema:

- in a header, ``__key_schema_id`` or ``__value_schema_id``, whose value is 0 and an id of four
  bytes, or 1 and a GUID of 16 bytes. Of Protobuf, the message indexes follow there. The record's
  bytes are the payload.
- in a prefix: 0 and an id of four bytes, before the payload; Protobuf's begins with the indexes.

AWS Glue's prefix: 3, the compression (0: none, 5: zlib), and the UUID of a version of a schema,
before the payload, which is compressed or not. Protobuf's begins with the index of its message: see
:func:`topicberg.formats.protobuf.schema.glue_index`.

All become the *wire format*: the prefix with the id, then the payload, which begins with the
indexes. Whatever decodes many records reads only that. The one schema of framing ``none`` has the
id :data:`OWN_SCHEMA_ID`, which no registry gives; versions of AWS Glue have ids of
:mod:`topicberg.formats.glue`.

Sources: Confluent's ``SchemaId``, ``DualSchemaIdDeserializer`` (Java) and its Python client; AWS's
``GlueSchemaRegistryDeserializerDataParser`` and ``SerializationDataEncoder`` (Java).
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from topicberg.formats.subjects import SchemaType

Headers = Iterable[tuple[str, bytes | None]]  # Of a record, in their order; a name may repeat.
Framing = Literal["confluent", "header", "glue", "none"]
"""How records name their schemas; see the module."""
OWN_SCHEMA_ID = 0  # The id of the schema of records that name none. Registries count from 1.
MAGIC_BYTE, MAGIC_GUID = 0, 1
ID_BYTES, GUID_BYTES = 5, 17  # Of an id and of a GUID, with the byte before them.
WIRE_BYTES = ID_BYTES  # Magic byte and schema id, before a record.
HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""The names of the headers that have a schema id, by what they belong to."""
_SECTIONS = {"key": "key", "value": "schema"}  # The sections of a spec about keys and values.
GLUE_VERSION, GLUE_PLAIN, GLUE_ZLIB, GLUE_BYTES = 3, 0, 5, 18
"""AWS Glue's prefix: its first byte, the two compressions, and its size with the UUID."""
MAX_PAYLOAD_BYTES = 256 * 1024 * 1024
"""Of a payload that was compressed: as much as topicberg's clients of Kafka read at once."""
_VARINT = "(?:[89A-F][0-9A-F])*[0-7][0-9A-F]"
INDEXES = f"^(?:00|{'|'.join(f'{2 * n:02X}{_VARINT * n}' for n in range(1, 33))})$"
"""All message indexes of a header, in hex: their count and each of them, or 0 for the first one."""


def wire_prefix(schema_id: int) -> bytes:
    """Return the five bytes before a record: magic byte and big-endian schema id (wire format)."""
    return struct.pack(">bI", MAGIC_BYTE, schema_id)


@dataclass(frozen=True)
class Framed:
    """A key or a value whose framing is understood.

    ``schema``: the id or the GUID of the schema, or the UUID of its version in AWS Glue.
    ``indexes``: what a header has after it; None: the record has a prefix, and the payload begins
    with them, if the schema has any. ``is_compressed``: by zlib.
    """

    schema: int | UUID
    payload: bytes
    indexes: bytes | None = None
    is_compressed: bool = False

    @property
    def named(self) -> str:
        """The schema, for a message."""
        if not isinstance(self.schema, UUID):
            return f"schema {self.schema}"
        kind = "schema version" if self.indexes is None else "schema GUID"
        return f"{kind} {self.schema}"


def id_of(schema: int | UUID, guids: Mapping[UUID, int]) -> int | None:
    """Return the id of a schema that a record names; None: its GUID is not one of the known."""
    return guids.get(schema) if isinstance(schema, UUID) else schema


def header_of(side: str, headers: Headers) -> bytes | None:
    """Return what the header says of the schema of the ``key`` or ``value``; None: nothing. Of
    repeated ones the last counts, also if it has no value, as in Confluent's Java client."""
    *_, last = (None, *(value for name, value in headers if name == HEADERS[side]))
    return None if last is None else bytes(last)


def framed(side: str, raw: bytes, header: bytes | None) -> Framed | str:
    """Return the schema and the payload of a key or value, or why there are none; see header_of."""
    if header is not None:
        return _framed_by_header(side, raw, header)
    if is_of_glue(raw):
        return (
            f"the {side} is in the wire format of AWS Glue Schema Registry: set "
            f"`{_SECTIONS[side]}.framing: glue` if all records are"
        )
    if len(raw) < WIRE_BYTES or raw[0] != MAGIC_BYTE:
        return _without_schema_id(side, raw)
    return Framed(int.from_bytes(raw[1:WIRE_BYTES], "big"), raw[WIRE_BYTES:])


def is_of_glue(raw: bytes) -> bool:
    """Return whether bytes begin with the prefix of AWS Glue Schema Registry."""
    is_known = raw[:1] == bytes([GLUE_VERSION]) and raw[1:2] in (b"\x00", b"\x05")
    return is_known and len(raw) >= GLUE_BYTES


def framed_by_glue(side: str, raw: bytes) -> Framed | str:
    """Return the schema's version and the payload of a key or a value, or why there are none."""
    if raw[:1] != bytes([GLUE_VERSION]) or len(raw) < GLUE_BYTES:
        return _without_version(side, raw)
    if raw[1] not in (GLUE_PLAIN, GLUE_ZLIB):
        return (
            f"the {side} is in the wire format of AWS Glue Schema Registry, but its second byte is "
            "neither 0 (not compressed) nor 5 (zlib)"
        )
    version = UUID(bytes=bytes(raw[2:GLUE_BYTES]))
    return Framed(version, raw[GLUE_BYTES:], is_compressed=raw[1] == GLUE_ZLIB)


def _without_version(side: str, raw: bytes) -> str:
    """Return why a key or a value does not name a version of AWS Glue."""
    section, expected = _SECTIONS[side], "the wire format of AWS Glue Schema Registry"
    if not raw:
        return f"the {side} is empty: it is not in {expected}"
    if is_json(raw):
        return (
            f"the {side} is JSON without a schema version: set `{section}.framing: none` if all "
            "records are plain JSON"
        )
    if raw[0] == MAGIC_BYTE and len(raw) >= WIRE_BYTES:
        return (
            f"the {side} begins with a schema id (Confluent's wire format), not as {expected}: set "
            f"`{section}.framing: confluent` if all records do"
        )
    return (
        f"the {side} is not in {expected} (3, 0 or 5, and the UUID of a schema version): set "
        f"`{section}.framing` to what the records have"
    )


class UncompressedError(ValueError):
    """A payload is not what its prefix says, or it is too large. The text is the reason."""


def decompressed(payload: bytes, most: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Return a payload of at most some bytes that was compressed by zlib, or UncompressedError."""
    inflating = zlib.decompressobj()
    try:
        contents = inflating.decompress(payload, most + 1)
    except zlib.error:
        raise UncompressedError("is not zlib's data, as its prefix says") from None
    if len(contents) > most:
        raise UncompressedError(f"has more than {most // 2**20} MiB when it is decompressed")
    if not inflating.eof:
        raise UncompressedError("is only a part of zlib's data")
    if inflating.unused_data:
        raise UncompressedError("has other bytes after zlib's data")
    return contents


def _without_schema_id(side: str, raw: bytes) -> str:
    """Return why a key or a value without a schema id is not read; equal causes have one text."""
    section = _SECTIONS[side]
    if not raw:
        return f"the {side} is empty: it has no schema id (Confluent's wire format)"
    if is_json(raw):
        return (
            f"the {side} is JSON without a schema id: set `{section}.framing: none` if all records "
            "are plain JSON, or have the producer use a serializer with a schema registry"
        )
    return (
        f"the {side} does not begin with a schema id (Confluent's wire format: 0 and an id of 4 "
        f"bytes): set `{section}.framing: none` if no record has one"
    )


def is_json(raw: bytes) -> bool:
    """Return whether bytes are a JSON object or array, as far as a message needs to know."""
    text = raw.strip(b" \t\r\n")
    if text[:1] + text[-1:] not in (b"{}", b"[]"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _framed_by_header(side: str, raw: bytes, header: bytes) -> Framed | str:
    if header[:1] == bytes([MAGIC_BYTE]) and len(header) >= ID_BYTES:
        return Framed(int.from_bytes(header[1:ID_BYTES], "big"), raw, header[ID_BYTES:])
    if header[:1] == bytes([MAGIC_GUID]) and len(header) >= GUID_BYTES:
        return Framed(UUID(bytes=header[1:GUID_BYTES]), raw, header[GUID_BYTES:])
    shown = f"{len(header)} bytes that begin with {header[:WIRE_BYTES].hex(' ')}"
    return (
        f"{named(side, is_header=True)} is neither 0 and a schema id of 4 bytes nor 1 and a schema "
        f"GUID of 16 bytes: it is {shown if header else 'empty'}"
    )


def payload(side: str, record: Framed, kind: SchemaType) -> bytes | str:
    """Return the payload as formats read it, or why the header has no usable message indexes. It
    begins with Protobuf's message indexes; ``kind`` is that of the record's schema."""
    rest = record.indexes
    if record.is_compressed:
        try:
            return decompressed(record.payload)
        except UncompressedError as error:
            return f"the payload of the {side} {error}"
    if rest is None or (re.match(INDEXES, rest.hex().upper()) if kind == "PROTOBUF" else not rest):
        return (rest or b"") + record.payload
    header, shown = named(side, is_header=True), f"the bytes {rest[:8].hex(' ')}"
    instead = ", instead of all message indexes" if kind == "PROTOBUF" else f", of type {kind}"
    return f"{header} has {shown if rest else 'nothing'} after the schema{instead}"


def named(side: str, *, is_header: bool) -> str:
    """Return what names the schema, for a message."""
    return f"the {side}'s header {HEADERS[side]}" if is_header else f"the {side}"


@dataclass(frozen=True)
class RecordFraming:
    """How the keys, or the values, of a topic name their schemas; it can be sent to a task.

    ``guids``: the ids of known schemas, in the subject's context; of AWS Glue, of versions.
    ``indexes``: of framing ``none`` and Protobuf, the message indexes of the one message type.
    """

    side: str
    kind: SchemaType
    guids: Mapping[UUID, int]
    framing: Framing = "confluent"
    indexes: bytes = b""

    def framed(self, raw: bytes, header: bytes | None) -> Framed | str:
        """Return the schema and the payload of a key or a value, or why there are none."""
        if self.framing == "none":
            return Framed(OWN_SCHEMA_ID, raw, self.indexes)
        if self.framing == "glue":
            return framed_by_glue(self.side, raw)
        if self.framing == "header" and header is None:
            return f"the {self.side} has no header {HEADERS[self.side]}, which names its schema"
        return framed(self.side, raw, header)

    @property
    def usual_prefix(self) -> bytes | None:
        """What brings a record without a header into the wire format; None: nothing does."""
        if self.framing == "none":
            return wire_prefix(OWN_SCHEMA_ID) + self.indexes
        return b"" if self.framing == "confluent" else None

    def prefix(self, header: bytes) -> bytes | None:
        """Return the prefix that says the same as a header; None: nothing does."""
        record = _framed_by_header(self.side, b"", header)
        if isinstance(record, str):
            return None
        number, indexes = id_of(record.schema, self.guids), payload(self.side, record, self.kind)
        return None if number is None or isinstance(indexes, str) else wire_prefix(number) + indexes

    @property
    def has_headers(self) -> bool:
        """Whether headers name schemas."""
        return self.framing in ("confluent", "header")

    def held(self, raw: bytes, header: bytes | None) -> bytes | None:
        """Return a key or a value as tables hold it, in the wire format; None: it has no schema.
        With AWS Glue it is as it was sent, which names the version: no record has the id of one."""
        if self.framing == "glue":
            return raw
        is_named = header is not None and self.framing != "none"
        prefix = self.prefix(header or b"") if is_named else self.usual_prefix
        return None if prefix is None else prefix + raw

    def of_held(self, raw: bytes) -> Framed | str:
        """Return the schema and the payload of what a table holds, or why there are none."""
        if self.framing == "glue":
            return framed_by_glue(self.side, raw)
        return framed(self.side, raw, None)
