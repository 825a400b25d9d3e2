"""Which schema a record names, and which of its bytes are the payload.

Framing is apart from decoding: formats get a schema and a payload, whatever says what the schema
is. The spec of a topic says how its keys, and its values, name their schemas (:data:`Framing`):

- ``confluent``: in a header, or else in a prefix, as below.
- ``header``: in a header only.
- ``none``: not at all. All of them have one schema, and the bytes of a record are the payload.

The two ways to name a schema:

- in a header, ``__key_schema_id`` or ``__value_schema_id``, whose value is 0 and an id of four
  bytes, or 1 and a GUID of 16 bytes. Of Protobuf, the message indexes follow there. The record's
  bytes are the payload.
- in a prefix: 0 and an id of four bytes, before the payload; Protobuf's begins with the indexes.

All become the *wire format*: the prefix with the id, then the payload, which begins with the
indexes. Whatever decodes many records reads only that. The one schema of framing ``none`` has the
id :data:`OWN_SCHEMA_ID`, which no registry gives.

Source: Confluent's ``SchemaId``, ``DualSchemaIdDeserializer`` (Java) and its Python client.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import UUID

if TYPE_CHECKING:
    from topicberg.formats.subjects import SchemaType

Headers = Iterable[tuple[str, bytes | None]]
"""Of a record, in their order; a name may repeat."""
Framing = Literal["confluent", "header", "none"]
"""How records name their schemas; see the module."""
OWN_SCHEMA_ID = 0
"""The id of the schema of records that name none. Registries count from 1."""

MAGIC_BYTE, MAGIC_GUID = 0, 1
ID_BYTES, GUID_BYTES = 5, 17
"""Of an id and of a GUID, with the byte before them."""
WIRE_BYTES = ID_BYTES
"""Magic byte and schema id, before a record."""
HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""The names of the headers that have a schema id, by what they belong to."""
_SECTIONS = {"key": "key", "value": "schema"}
"""The sections of a spec about keys and values."""
GLUE_HEADERS, GLUE_BYTES = (b"\x03\x00", b"\x03\x05"), 18
"""AWS Glue Schema Registry's: version 3, compression or none, and the UUID of a schema."""

_VARINT = "(?:[89A-F][0-9A-F])*[0-7][0-9A-F]"
INDEXES = f"^(?:00|{'|'.join(f'{2 * n:02X}{_VARINT * n}' for n in range(1, 33))})$"
"""All message indexes of a header, in hex: their count and each of them, or 0 for the first one."""


def wire_prefix(schema_id: int) -> bytes:
    """Return the five bytes before a record: magic byte and big-endian schema id (wire format)."""
    return struct.pack(">bI", MAGIC_BYTE, schema_id)


@dataclass(frozen=True)
class Framed:
    """A key or a value whose framing is understood.

    ``schema``: the id or the GUID of the schema. ``indexes``: what a header has after it;
    None: the record has a prefix, and the payload begins with them, if the schema has any.
    """

    schema: int | UUID
    payload: bytes
    indexes: bytes | None = None


def header_of(side: str, headers: Headers) -> bytes | None:
    """Return what the header says of the schema of the ``key`` or the ``value``; None: nothing.

    Of repeated headers the last one counts, also if it has no value, as in Confluent's Java client.
    """
    found = None
    for name, value in headers:
        if name == HEADERS[side]:
            found = value
    return None if found is None else bytes(found)


def framed(side: str, raw: bytes, header: bytes | None) -> Framed | str:
    """Return the schema and the payload of a key or a value, or why there are none.

    :param side: ``key`` or ``value``
    :param header: see :func:`header_of`
    """
    if header is not None:
        return _framed_by_header(side, raw, header)
    if len(raw) >= GLUE_BYTES and raw[:2] in GLUE_HEADERS:
        return (
            f"the {side} is in the wire format of AWS Glue Schema Registry, which is not supported"
        )
    if len(raw) < WIRE_BYTES or raw[0] != MAGIC_BYTE:
        return _without_schema_id(side, raw)
    return Framed(int.from_bytes(raw[1:WIRE_BYTES], "big"), raw[WIRE_BYTES:])


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
    return (
        f"{named(side, is_header=True)} is neither 0 and a schema id of 4 bytes nor 1 and a schema "
        f"GUID of 16 bytes: it is {_shown(header)}"
    )


def payload(side: str, record: Framed, kind: SchemaType) -> bytes | str:
    """Return the payload as formats read it, which begins with Protobuf's message indexes.

    :param kind: of the record's schema
    :returns: also why the header has no usable message indexes, as text
    """
    rest = record.indexes
    if rest is None or _is_whole(rest, kind):
        return (rest or b"") + record.payload
    header = named(side, is_header=True)
    instead = ", instead of all message indexes" if kind == "PROTOBUF" else f", of type {kind}"
    return f"{header} has {_hex(rest)} after the schema{instead}"


def _is_whole(rest: bytes, kind: SchemaType) -> bool:
    if kind != "PROTOBUF":
        return not rest
    return _INDEXES.match(rest.hex().upper()) is not None


_INDEXES = re.compile(INDEXES)


def named(side: str, *, is_header: bool) -> str:
    """Return what names the schema, for a message."""
    return f"the {side}'s header {HEADERS[side]}" if is_header else f"the {side}"


def _shown(raw: bytes) -> str:
    if not raw:
        return "empty"
    return f"{len(raw)} bytes that begin with {raw[:WIRE_BYTES].hex(' ')}"


def _hex(raw: bytes) -> str:
    return f"the bytes {raw[:8].hex(' ')}" if raw else "nothing"


@dataclass(frozen=True)
class RecordFraming:
    """How the keys, or the values, of a topic name their schemas; it can be sent to a task.

    ``guids``: the ids of known schemas, in the subject's context. ``indexes``: of framing ``none``
    and Protobuf, the message indexes of the one message type.
    """

    side: str
    kind: SchemaType
    guids: Mapping[UUID, int]
    framing: Framing = "confluent"
    indexes: bytes = b""

    def framed(self, raw: bytes, header: bytes | None) -> Framed | str:
        """Return the schema and the payload of a key or a value, or why there are none.

        :param header: see :func:`header_of`
        """
        if self.framing == "none":
            return Framed(OWN_SCHEMA_ID, raw, self.indexes)
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
        number = record.schema
        if isinstance(number, UUID):
            known = self.guids.get(number)
            if known is None:
                return None
            number = known
        indexes = payload(self.side, record, self.kind)
        return None if isinstance(indexes, str) else wire_prefix(number) + indexes

    def in_wire_format(self, raw: bytes, header: bytes | None) -> bytes | None:
        """Return a key or a value in the wire format; None: nothing says what its schema is."""
        is_named = header is not None and self.framing != "none"
        prefix = self.prefix(header or b"") if is_named else self.usual_prefix
        return None if prefix is None else prefix + raw
