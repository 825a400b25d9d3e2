"""Which schema a record names, and which of its bytes are the payload.

Framing is apart from decoding: formats get a schema and a payload, whatever says what the schema
is. A key or a value names its schema in one of two ways, and the first one counts:

- in a header, ``__key_schema_id`` or ``__value_schema_id``, whose value is 0 and an id of four
  bytes, or 1 and a GUID of 16 bytes. Of Protobuf, the message indexes follow there. The record's
  bytes are the payload.
- in a prefix: 0 and an id of four bytes, before the payload; Protobuf's begins with the indexes.

Both become the *wire format*: the prefix with the id, then the payload, which begins with the
indexes. Whatever decodes many records reads only that.

Source: Confluent's ``SchemaId``, ``DualSchemaIdDeserializer`` (Java) and its Python client.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from topicberg.formats.subjects import SchemaType

Headers = Iterable[tuple[str, bytes | None]]
"""Of a record, in their order; a name may repeat."""

MAGIC_BYTE, MAGIC_GUID = 0, 1
ID_BYTES, GUID_BYTES = 5, 17
"""Of an id and of a GUID, with the byte before them."""
WIRE_BYTES = ID_BYTES
"""Magic byte and schema id, before a record."""
HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""The names of the headers that have a schema id, by what they belong to."""
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
        return f"the {side} is not in Confluent's wire format (0, schema id): it is {_shown(raw)}"
    return Framed(int.from_bytes(raw[1:WIRE_BYTES], "big"), raw[WIRE_BYTES:])


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
class SchemaHeaders:
    """How headers of keys, or of values, become prefixes; small enough to be sent to a task.

    ``guids``: the ids of known schemas, in the subject's context.
    """

    side: str
    kind: SchemaType
    guids: Mapping[UUID, int]

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
