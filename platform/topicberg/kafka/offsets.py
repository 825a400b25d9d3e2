"""Kafka offsets of a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping

Offsets = dict[int, int]
"""Partition → offset. Start offsets are the first to read, end offsets the first not to read."""
PartitionOffset = tuple[int, int]
"""Partition and offset of one record."""
Ranges = dict[int, tuple[int, int]]
"""Partition → first offset, and the offset after the last one."""


def dump_offsets(offsets: Mapping[int, int]) -> str:
    """Return JSON as in Spark's Kafka source and the snapshot summary: ``{"0": 12}``."""
    return json.dumps({str(partition): offsets[partition] for partition in sorted(offsets)})


def parse_offsets(text: str) -> Offsets:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
