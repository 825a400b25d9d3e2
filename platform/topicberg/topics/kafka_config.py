"""A topic's configuration in Kafka: names and values of ``topic_config`` in a spec."""

from __future__ import annotations

import difflib
import math
import re
from typing import Any

CLEANUP_POLICY = "cleanup.policy"
NAMES = frozenset(
    {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.type",
        "message.timestamp.before.max.ms",
        "min.cleanable.dirty.ratio",
        "min.insync.replicas",
        "min.compaction.lag.ms",
        "preallocate",
        "remote.copy.disable",
        "remote.storage.enable",
        "remote.log.delete.on.disable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""Apache Kafka 4's topic configurations (https://kafka.apache.org/documentation/#topicconfigs)."""
_INTEGERS = (".ms", ".bytes")
_OF_VENDORS = "confluent."
"""Prefix of Confluent's own configurations, which Confluent checks."""


def topic_config(values: dict[str, Any]) -> dict[str, str]:
    """Return a configuration as Kafka's tools print it: each value as text.

    >>> topic_config({"retention.ms": 1000, "preallocate": True, "min.cleanable.dirty.ratio": 0.50})
    {'retention.ms': '1000', 'preallocate': 'true', 'min.cleanable.dirty.ratio': '0.5'}

    :raises ValueError: a name that Kafka does not have, or a value that is not text, number or
        boolean, or not of the type of its name
    """
    for name in values:
        if name not in NAMES and not name.startswith(_OF_VENDORS):
            close = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"{name!r} is not a topic configuration of Kafka{hint}")
    texts = {name: _text(name, value) for name, value in values.items()}
    for name, text in texts.items():
        if name.endswith(_INTEGERS) and not re.fullmatch(r"-?\d+", text):
            raise ValueError(f"{name} must be an integer, not {text!r}")
    return texts


def _text(name: str, value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | str():
            return ",".join(part.strip() for part in str(value).split(","))
        case float() if math.isfinite(value):
            return str(int(value)) if value.is_integer() else str(value)
    raise ValueError(f"{name}: {value!r} is not text, a number or a boolean")
