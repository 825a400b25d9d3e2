"""A set of places (partition and offset) that is small when it is serialized."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from topicberg.kafka.offsets import PartitionOffset

CHUNK = 1 << 16
KEPT_CHUNKS = 50


class Places:
    """Bits for the offsets of each partition, in chunks of :data:`CHUNK`.

    Five million consecutive places take less than a megabyte, in any pattern.
    """

    def __init__(self) -> None:
        self._chunks: dict[tuple[int, int], NDArray[np.bool_]] = {}

    def __contains__(self, place: PartitionOffset) -> bool:
        chunk = self._chunks.get((place[0], place[1] // CHUNK))
        return chunk is not None and bool(chunk[place[1] % CHUNK])

    def add(self, place: PartitionOffset) -> None:
        key = (place[0], place[1] // CHUNK)
        if key not in self._chunks:
            self._chunks[key] = np.zeros(CHUNK, np.bool_)
        self._chunks[key][place[1] % CHUNK] = True

    def forget(self, committed: Mapping[int, int]) -> None:
        """Remove places before these offsets, once there are many."""
        if len(self._chunks) > KEPT_CHUNKS:
            self._chunks = {
                (partition, number): chunk
                for (partition, number), chunk in self._chunks.items()
                if (number + 1) * CHUNK > committed.get(partition, 0)
            }

    def dump(self) -> dict[str, str]:
        """Return the places for :meth:`load`, as a JSON object."""
        return {
            f"{partition}.{number}": base64.b64encode(
                zlib.compress(np.packbits(chunk).tobytes())
            ).decode()
            for (partition, number), chunk in self._chunks.items()
        }

    @classmethod
    def load(cls, dumped: Mapping[str, str]) -> Places:
        places = cls()
        for key, text in dumped.items():
            partition, _, number = key.partition(".")
            packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
            places._chunks[int(partition), int(number)] = np.unpackbits(packed).astype(np.bool_)
        return places
