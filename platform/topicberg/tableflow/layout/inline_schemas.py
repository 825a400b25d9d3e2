"""Changes in JSON that are not in Confluent's wire format, and how they get into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.framing import MAGIC_BYTE, wire_prefix
from topicberg.formats.json import connect as connect_json
from topicberg.formats.reasons import MalformedError

_UNKNOWN = "the schema of the record is not known: the batch has too many different ones"
_WORD = 8
Frame = tuple[bytes, bytes]
"""The text of a record before its payload, and after it."""


class UnknownInlineError(MalformedError):
    """A record begins with a schema that is not registered yet."""

    def __init__(self, reason: str, opening: bytes) -> None:
        """:param opening: what surrounds the payload"""
        super().__init__(reason)
        self.opening = opening


@dataclass(frozen=True)
class InlineSchemas:
    """How keys, or values, with a schema of their own, or with none, get into the wire format.

    ``newest``: the id of the schema of records without one. ``openings``: what surrounds a payload,
    and the id of its schema. ``refused``: why others cannot be used. Small enough to be sent to a
    task.
    """

    side: str
    newest: int
    openings: tuple[tuple[Frame, int | None], ...]
    refused: Mapping[Frame, str]

    def wire(self, raw: bytes) -> bytes:
        """Return a key or value in the wire format; MalformedError: its schema cannot be used."""
        if raw[:1] == bytes([MAGIC_BYTE]):
            return raw
        for (before, after), number in self.openings:
            if raw.startswith(before) and raw.endswith(after):
                payload = raw[len(before) : -len(after)]
                return wire_prefix(self.newest if number is None else number) + payload
        opening = connect_json.opening(raw)
        if opening is None and not connect_json.has_schema(raw):
            return wire_prefix(self.newest) + raw
        if opening is None or not raw.endswith(opening.rest):
            raise MalformedError(
                f"the {self.side}: it begins with a schema, but does not end with its payload"
            )
        reason = self.refused.get((opening.text, opening.rest))
        if reason is None:
            raise UnknownInlineError(f"the {self.side}: {_UNKNOWN}", opening.text + opening.rest)
        raise MalformedError(f"the {self.side}: {reason}")

    def in_wire_format(
        self, data: NDArray[np.uint8], offsets: NDArray[np.int64], wanted: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], dict[int, MalformedError]]:
        """Return the wanted keys or values in the wire format, others as they are; or why not."""
        parts, malformed = list[bytes](), dict[int, MalformedError]()
        there = wanted & (np.diff(offsets) > 0)
        if (data[offsets[:-1][there]] == MAGIC_BYTE).all() and not (wanted & ~there).any():
            return data, offsets, malformed  # as those of a registry's converter are
        for place, (begin, end) in enumerate(pairwise(offsets.tolist())):
            raw = data[begin:end].tobytes()
            if wanted[place]:
                try:
                    raw = self.wire(raw)
                except MalformedError as error:
                    malformed[place] = error.with_traceback(None)
            parts.append(raw)
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        whole = b"".join(parts) + bytes(_WORD)  # compiled code reads words, also at the end
        return np.frombuffer(whole, np.uint8).copy(), ends, malformed
