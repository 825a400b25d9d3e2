"""Changes of a spec that a saved file does not apply, and what to do about each.

They cannot be undone, such as more partitions of a topic, or need a new table, as changes of the
columns that identify rows do. The engine, `topicberg topics validate` and `topicberg tableflow
status` report them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import StrictInt, TypeAdapter, ValidationError
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import MapType

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError, TopicbergError
from topicberg.formats import metadata
from topicberg.iceberg.maintenance import retention
from topicberg.iceberg.tables import find_table
from topicberg.kafka.discovery import list_topics
from topicberg.kafka.topics import config_drift, partition_drift, topic_configs
from topicberg.settings import Settings
from topicberg.tableflow.layout.message_fields import Layout
from topicberg.topics import TopicSpec
from topicberg.topics.spec import partition_field_text

IDENTITY_COLUMNS = "topicberg.identity-columns"
"""Property of a table: the field id of each column that identifies rows, and of those in it. If
someone drops or renames such a column, the engine would add one of its name with another id, in
which the rows of before have no value: upserts, deletes and erasures would not find them."""
_IDS = TypeAdapter(dict[str, StrictInt])
WRITE_MODE = "topicberg.write-mode"
VALUE_FORMAT, KEY_FORMAT = "topicberg.value-format", "topicberg.key-format"
"""Properties of a table: the formats in the spec when it was created."""
KEY_FRAMING = "topicberg.key-framing"
"""Property of a table: see :func:`key_framing`."""
EVENT_TIME_RULE = "topicberg.event-time"
"""Property of a table: the field and the format of event times that are read from a field."""
_THREADS = 8


def identity_columns(spec: TopicSpec, layout: Layout) -> list[str]:
    """Return the columns by which the rows of a key are found."""
    keys = [field.name for field in layout.key.fields()]
    if spec.changes == "rows":
        names = (
            metadata.PARTITION,
            metadata.OFFSET,
            metadata.SOURCE_TIMESTAMP,
            metadata.SOURCE_POSITION,
        )
        return [*keys, *map(spec.metadata_column, names)]
    value = {field.name for field in layout.value.fields()}
    keys = [name for name in keys if name not in value]
    if spec.write_mode == "append":
        return keys
    of_kafka = (metadata.RAW_KEY, metadata.PARTITION, metadata.OFFSET, "timestamp")
    return [*(keys if layout.key.subject else ()), *map(spec.metadata_column, of_kafka)]


def note_identity(table: Table, columns: Sequence[str]) -> None:
    """Note the field ids of the :func:`identity_columns`; those that are noted stay."""
    before = _noted(table)
    kept = {name: field_id for name, field_id in before.items() if _is_in(name, columns)}
    fields = Schema(*(field for field in table.schema().fields if field.name in columns))
    noted = {fields.find_column_name(number) or "": number for number in index_by_id(fields)} | kept
    if noted != before:
        with table.transaction() as transaction:
            transaction.set_properties({IDENTITY_COLUMNS: json.dumps(noted, sort_keys=True)})


def changed_identity(
    table: Table, columns: Collection[str] | None = None
) -> Iterator[tuple[str, str | None]]:
    """Yield the noted of these columns that were dropped (None) or renamed, and the new name."""
    for name, field_id in _noted(table).items():
        new_name = table.schema().find_column_name(field_id)
        if new_name != name and (columns is None or _is_in(name, columns)):
            yield name, new_name


def _is_in(name: str, columns: Collection[str]) -> bool:
    return any(name == column or name.startswith(f"{column}.") for column in columns)


def _noted(table: Table) -> dict[str, int]:
    """Return what the property has; nothing if someone made it unreadable."""
    try:
        return _IDS.validate_json(table.properties.get(IDENTITY_COLUMNS, "{}"))
    except ValidationError:
        return {}


@dataclass(frozen=True)
class WaitingChange:
    """A change of a spec that is not applied, and how to apply it; ``what`` has no full stop."""

    topic: str
    what: str
    remediation: str


def start_again(topic: str) -> str:
    """Return the hint for a table that cannot continue."""
    return (
        f"run `topicberg tableflow disable {topic} --drop-table` to delete the table and what only "
        f"it holds, then `topicberg tableflow enable {topic}` to start again with a new one"
    )


def check_table(table: Table, spec: TopicSpec, identity: Collection[str] | None = None) -> None:
    """Check that the engine can go on with a table; ``identity``: see :func:`check_identity`.

    :raises TableflowError: the table is not one of this spec
    """
    table_value = table.properties.get(WRITE_MODE, "append")
    if table_value != spec.write_mode:
        raise TableflowError(
            f"topic {spec.name}: its table is in write mode {table_value}, the spec says "
            f"{spec.write_mode}",
            hint=f"{start_again(spec.name)}; the mode of a table cannot change",
        )
    if (before := table.properties.get(KEY_FRAMING, "confluent")) != (now := key_framing(spec)):
        raise TableflowError(
            f"topic {spec.name}: the keys of its table have key.framing {before}, the spec says "
            f"{now}",
            hint=f"set `key.framing: {before}`; or {start_again(spec.name)}: the rows of keys that "
            "were read otherwise would not be found",
        )
    held_rule, rule = table.properties.get(EVENT_TIME_RULE, ""), event_time_rule(spec)
    if held_rule != rule:
        raise TableflowError(
            f"topic {spec.name}: the event times of its table are from {held_rule or 'a column'}, "
            f"the spec says {rule or 'a column'}",
            hint=f"set event_time to the former value, or {start_again(spec.name)}: the rows have "
            "event times that were read otherwise",
        )
    check_identity(table, spec, identity)
    if (name := spec.metadata_column(metadata.PARTITION)) not in table.schema().column_names:
        raise TableflowError(
            f"topic {spec.name}: its table has no column {name}: the spec has another "
            "tableflow.metadata_column_naming_scheme than the table",
            hint=f"{start_again(spec.name)}; the names of metadata columns cannot change",
        )


def check_identity(table: Table, spec: TopicSpec, columns: Collection[str] | None = None) -> None:
    """Check that the engine finds the rows of a key in an upsert table.

    :param columns: see :func:`identity_columns`; None: those of the last batch
    :raises TableflowError: a column that identifies rows was dropped or renamed
    """
    if spec.write_mode != "upsert":
        return
    for name, new_name in changed_identity(table, columns):
        change = "dropped" if new_name is None else f"renamed to {new_name}"
        restart = f"{start_again(spec.name)}: without the column, no row of a key is found"
        raise TableflowError(
            f"topic {spec.name}: the column {name} of its table identifies rows, and was {change}",
            hint=restart if new_name is None else f"rename the column {new_name} back to {name}",
        )


def event_time_rule(spec: TopicSpec) -> str:
    """Return what of the spec decides which event times the rows have; empty: a column has them."""
    rule = spec.payload_time
    parts = (rule.field, str(rule.format), rule.timezone) if rule is not None else ()
    return ", ".join(filter(None, parts))


def key_framing(spec: TopicSpec) -> str:
    """Return how the keys of an upsert table name their schemas; else ``confluent``."""
    is_decoded = spec.write_mode == "upsert" and spec.key.has_schema
    return spec.key.framing if is_decoded and spec.key.framing != "header" else "confluent"


def formats(spec: TopicSpec) -> dict[str, str]:
    """Return the properties that keep the formats of a spec."""
    return {VALUE_FORMAT: spec.value_schema.format, KEY_FORMAT: spec.key.format}


def unapplied(table: Table, spec: TopicSpec) -> Iterator[WaitingChange]:
    """Yield what the spec says otherwise than the table is, and the engine does not change."""
    wanted, column_of = list(spec.table.partitioning), table.schema().find_column_name
    partitioning = [
        partition_field_text(str(field.transform), column_of(field.source_id) or "")
        for field in table.spec().fields
        if not isinstance(field.transform, VoidTransform)  # dropped by another tool
    ]
    if sorted(partitioning) != sorted(wanted):  # the order of fields moves no row
        yield WaitingChange(
            spec.name,
            f"its table is partitioned by {', '.join(partitioning) or 'nothing'}, the spec says "
            f"{', '.join(wanted) or 'nothing'}",
            f"set `table.partitioning: [{', '.join(partitioning)}]`, or {start_again(spec.name)}",
        )
    for field, key in (("schema.format", VALUE_FORMAT), ("key.format", KEY_FORMAT)):
        before, now = table.properties.get(key), formats(spec)[key]  # bytes are raw, as none is
        if before not in (None, now) and {before, now} != {"bytes", "none"}:
            yield WaitingChange(
                spec.name,
                f"its table was created with {field} {before}, the spec says {now}: rows before "
                "the change keep what they have",
                f"set `{field}: {before}`, or {start_again(spec.name)}",
            )
    name = spec.metadata_column(metadata.HEADERS)
    if name in table.schema().column_names:
        kind = "map" if isinstance(table.schema().find_type(name), MapType) else "list"
        if kind != spec.table.headers:
            yield WaitingChange(
                spec.name,
                f"the column {name} of its table is a {kind}, the spec says {spec.table.headers}",
                f"set `table.headers: {kind}`, or {start_again(spec.name)}",
            )
    if retention.is_shorter(spec, table):
        yield WaitingChange(
            spec.name,
            f"the spec keeps rows for {retention.described(spec)}, its table for longer",
            f"run `topicberg tableflow maintain {spec.name}` to delete older rows from now on, "
            "which cannot be undone, or take `tableflow.data_retention_ms` back",
        )
    if spec.table.format_version > table.format_version:
        yield WaitingChange(
            spec.name,
            f"its table has format version {table.format_version}, the spec says "
            f"{spec.table.format_version}",
            f"run `topicberg tableflow upgrade {spec.name}`, which cannot be undone, or set "
            f"`table.format_version: {table.format_version}`",
        )


def find_waiting(
    specs: Sequence[TopicSpec], endpoints: Endpoints, config: Settings
) -> tuple[list[WaitingChange], list[str]]:
    """Return the changes of several specs that wait, and why others are not known."""
    waiting, unknown = list[WaitingChange](), list[str]()
    try:
        partitions = list_topics(endpoints)
        for spec in specs:
            count = partitions.get(spec.name, spec.partitions)
            if not spec.external and (drift := partition_drift(spec, count)) is not None:
                waiting.append(WaitingChange(spec.name, drift.message, drift.hint or ""))
        configured = {s.name: s for s in specs if s.topic_config and s.name in partitions}
        for name, configuration in topic_configs(endpoints, [*configured]):
            if isinstance(configuration, TopicbergError):
                unknown.append(configuration.message)
            elif (differs := config_drift(configured[name], configuration)) is not None:
                waiting.append(WaitingChange(name, differs.message, differs.hint or ""))
    except TopicbergError as error:
        unknown.append(f"topics are not compared with Kafka: {error.message}")
    if config.own_engine:
        try:
            waiting += _of_tables(specs, endpoints, config)
        except (TopicbergError, OSError) as error:
            unknown.append(f"specs are not compared with their tables: {error}")
    return sorted(waiting, key=lambda change: change.topic), unknown


def _of_tables(
    specs: Sequence[TopicSpec], endpoints: Endpoints, config: Settings
) -> list[WaitingChange]:
    catalog = endpoints.catalog(config)

    def read(spec: TopicSpec) -> list[WaitingChange]:
        try:
            table = find_table(catalog, spec.table_identifier(config))
            if table is None:
                return []
            check_table(table, spec)
            return list(unapplied(table, spec))
        except TableflowError as error:  # of this table only
            return [WaitingChange(spec.name, error.message, error.hint or "")]

    with ThreadPoolExecutor(_THREADS) as pool:
        return [change for changes in pool.map(read, specs) for change in changes]
