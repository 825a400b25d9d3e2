"""Kafka offsets of a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping

Offsets = dict[int, int]
"""Partition → offset. Start offsets are the first to read, end offsets the first not to read."""
PartitionOffset = tuple[int, int]  # Partition and offset of one record.
Ranges = dict[int, tuple[int, int]]  # Partition → first offset, and the offset after the last one.


def dump_offsets(offsets: Mapping[int, int]) -> str:
    """Return short JSON for snapshots: by partition ``[12,7]``, or of some of them ``{"1":7}``."""
    listed = [offsets[partition] for partition in sorted(offsets)]
    is_whole = listed and offsets.keys() == set(range(len(listed)))
    named = {str(partition): offsets[partition] for partition in sorted(offsets)}
    return json.dumps(listed if is_whole else named, separators=(",", ":"))


def parse_offsets(text: str) -> Offsets:
    """Return the offsets of :func:`dump_offsets`, or of JSON as in Spark's Kafka source."""
    value = json.loads(text)
    items = enumerate(value) if isinstance(value, list) else value.items()
    return {int(partition): int(offset) for partition, offset in items}
