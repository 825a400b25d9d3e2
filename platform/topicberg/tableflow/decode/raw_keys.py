"""Raw keys that have a schema: as tables hold them, and their texts, decoded as the engine does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topicberg.formats.framing import GLUE_BYTES, WIRE_BYTES, id_of
from topicberg.tableflow.decode.columns import decode_raw
from topicberg.tableflow.layout.message_fields import MessageField
from topicberg.tableflow.layout.upsert_key import UpsertKey
from topicberg.tableflow.layout.writers import (
    ForeignSchemas,
    MessageDecoder,
    Writers,
    message_decoder,
)
from topicberg.tableflow.values.arrays import whole
from topicberg.tableflow.values.key_values import key_text


class KeyFraming:
    """Brings keys of records into the form in which tables hold them."""

    def __init__(self, half: MessageField, foreign: ForeignSchemas) -> None:
        self._half, self._foreign = half, foreign
        self._framing = half.record_framing()
        assert half.subject is not None  # noqa: S101  it is decoded
        self._own = half.subject.schemas
        self.unknown: dict[int | UUID, str] = {}
        """Schemas that keys name and that cannot be had, and why."""

    def held(self, raw: bytes, header: bytes | None) -> bytes | None:
        """Return a key with the id of its schema, which may be looked up; None: it has none."""
        record = self._framing.framed(raw, header)
        if isinstance(record, str):
            return None
        number = id_of(schema := record.schema, self._framing.guids)
        # The schemas of other subjects are a bounded number.
        is_known = number in self._own or number in self._foreign.schemas
        if not is_known and schema not in self.unknown:
            self._foreign.begin_batch()
            self._foreign.look_up([schema])
            if (why := self._foreign.missing.get(schema)) is not None:
                self.unknown[schema] = why
            self._framing = self._half.record_framing(self._foreign.guids)
        return self._framing.held(raw, header)


class RawKeys:
    """Decodes the raw keys of an upsert table."""

    def __init__(self, half: MessageField, key: UpsertKey, foreign: ForeignSchemas) -> None:
        self._half, self._key, self._foreign = half, key, foreign
        self._decoder: MessageDecoder | None = None

    def texts(self, raw: Any) -> Any:
        """Return the texts of raw keys, as tables hold them; null: null or malformed."""
        raw = whole(raw)
        is_there = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))
        places, parts = [np.empty(0, np.intp)], [pa.array([], pa.binary())]
        for part, columns in decode_raw(self._decoder_of(raw), raw):
            fields = [columns[name].slice(0, len(part)) for name in self._key.names]
            places.append(is_there[part])
            parts.append(key_text(fields, self._key.shapes))
        where = np.full(len(raw), -1, np.int64)
        where[np.concatenate(places)] = np.arange(sum(map(len, parts)))
        return pa.concat_arrays(parts).take(pa.array(where, mask=where < 0))

    def _decoder_of(self, raw: pa.Array) -> MessageDecoder:
        """Return what decodes keys of all schemas that these ones name."""
        self._decoder = self._decoder or self._made()
        named = self._named(raw)
        if unknown := [schema for schema in named if not _is_known(self._decoder, schema)]:
            self._foreign.look_up(unknown)
            # Others may have looked them up before: they share the schemas.
            guids, schemas = self._foreign.guids, self._foreign.schemas
            if any(id_of(schema, guids) in schemas for schema in unknown):
                self._decoder = self._made()
        return self._decoder

    def _named(self, raw: pa.Array) -> Iterator[int | UUID]:
        """Yield the schemas that raw keys name, each once."""
        framing = self._half.record_framing()
        size = GLUE_BYTES if framing.framing == "glue" else WIRE_BYTES
        for prefix in sorted(pc.binary_slice(raw, 0, size).unique().drop_null().to_pylist()):
            record = framing.of_held(prefix)
            if not isinstance(record, str):
                yield record.schema

    def _made(self) -> MessageDecoder:
        decoder = message_decoder(Writers(self._half, self._foreign, self._key.to_decode(())))
        return decoder.without(self._foreign.missing)


def _is_known(decoder: MessageDecoder, schema: int | UUID) -> bool:
    """Return whether a decoder has a schema, or knows why it has not."""
    number, refused = id_of(schema, decoder.framing.guids), decoder.refused
    return schema in refused or number in refused or number in decoder.writers
