"""What arrives in a topic of plain JSON, compared with its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from confluent_kafka import Message
from pyiceberg.types import ListType, NestedField, StructType

from topicberg.endpoints import Endpoints
from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import SpecError
from topicberg.formats.contract import ResolvedSchema
from topicberg.formats.dispatch import format_of
from topicberg.formats.json.syntax import parsed
from topicberg.formats.reasons import MalformedError
from topicberg.kafka.consumer import SAMPLE_RECORDS, sampled_messages
from topicberg.settings import Settings
from topicberg.tableflow.layout.layout import read_layout
from topicberg.topics import TopicSpec
from topicberg.topics.inference import infer

Path = tuple[str, ...]


@dataclass
class Reason:
    """Why records are malformed; partition and offset are those of the first one."""

    reason: str
    partition: int
    offset: int
    count: int = 0


@dataclass
class UnknownField:
    """A field that the schema lacks; ``since``: the first time (ISO 8601) of a record with it."""

    name: str
    records: int
    since: str | None
    schema: dict[str, Any]
    """What the records show of it, in JSON Schema."""


@dataclass
class Drift:
    """What some records of a topic show."""

    schema: str
    records: int = 0
    fitting: int = 0
    malformed: list[Reason] = field(default_factory=list)
    unknown: list[UnknownField] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """Columns that no record has."""


def is_plain(spec: TopicSpec) -> bool:
    """Return whether the values of a topic are JSON that names no schema."""
    return spec.value_schema.format == "json" and spec.value_schema.framing == "none"


def compare(
    spec: TopicSpec, endpoints: Endpoints, config: Settings, records: int = SAMPLE_RECORDS
) -> Drift:
    """Compare the schema of a topic's values with a sample of its records (offsets).

    :raises SpecError: its values are not JSON that names no schema
    :raises TopicbergError: a service does not answer
    """
    own = spec.value_schema
    if not is_plain(spec):
        raise SpecError(
            f"topic {spec.name}: its values are {own.format} with schema.framing {own.framing}; "
            "only plain JSON (format json, framing none) is compared",
            hint=f"run `topicberg topics validate {spec.name}` to compare a schema file with the "
            "registry",
        )
    value = read_layout(spec, schema_readers(endpoints, config), config).value
    assert value.latest is not None  # noqa: S101  JSON has a schema
    columns, latest = value.fields(), value.latest
    decode = format_of(latest).record_decoder(ResolvedSchema(latest, latest, columns))
    drift = Drift(own.file or spec.value_subject)
    reasons, seen = dict[str, Reason](), dict[Path, list[Message]]()
    for message in sampled_messages(spec.name, endpoints, records):
        raw = message.value()
        if raw is None:
            continue
        drift.records += 1
        try:
            decode(raw)
            drift.fitting += 1
        except MalformedError as error:
            partition, offset = message.partition() or 0, message.offset() or 0
            reasons.setdefault(str(error), Reason(str(error), partition, offset)).count += 1
        with suppress(MalformedError):
            for path in set(_paths(parsed(raw))):
                seen.setdefault(path, []).append(message)
    drift.malformed = sorted(reasons.values(), key=lambda reason: -reason.count)
    drift.unknown = [*_unknown(seen, columns)]
    names = [column.name for column in columns if column.name != latest.options.unknown_as]
    drift.unseen = [name for name in names if (name,) not in seen]
    return drift


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the fields of a value at every depth; items and values of maps count as their own."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from _paths(inner, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, path)


def _unknown(
    seen: Mapping[Path, Sequence[Message]], columns: Sequence[NestedField]
) -> Iterator[UnknownField]:
    """Yield the fields that no column has, without those inside of such a field."""
    lost: set[Path] = set()
    for path, messages in sorted(seen.items()):
        if path[:-1] in lost or not _is_lost(path, columns):
            lost |= {path} if path[:-1] in lost else set()
            continue
        lost.add(path)
        times = [message.timestamp()[1] for message in messages if message.timestamp()[0]]
        first = datetime.fromtimestamp(min(times) / 1000, UTC) if times else None
        since = first.isoformat(timespec="seconds") if first else None
        raws = [raw for message in messages if (raw := message.value()) is not None]
        schema: Any = reduce(_of_field, path, infer(raws, "").schema)
        yield UnknownField(".".join(path), len(messages), since, schema)


def _of_field(schema: Mapping[str, Any], name: str) -> Any:
    while "items" in schema:
        schema = schema["items"]
    return schema.get("properties", {}).get(name, {})


def _is_lost(path: Path, columns: Sequence[NestedField]) -> bool:
    """Return whether a field has no column, and no column has it as text or in a map."""
    name, *inner = path
    column = next((candidate for candidate in columns if candidate.name == name), None)
    if column is None or not inner:
        return column is None
    kind = column.field_type
    while isinstance(kind, ListType):
        kind = kind.element_type
    if not isinstance(kind, StructType):
        return False
    is_union = any(branch.name.startswith("connect_union_field_") for branch in kind.fields)
    return not is_union and _is_lost(tuple(inner), kind.fields)
