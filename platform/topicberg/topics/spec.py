"""The model of a topic spec: ``<name>.yaml`` in the project's folder of topics.

Rules for single fields are here; rules between fields, and between a spec and its schema file, are
in :mod:`topicberg.topics.rules`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from topicberg.formats import metadata
from topicberg.formats.table import Part
from topicberg.naming import Names
from topicberg.settings import Settings, settings
from topicberg.topics.discovery import schema_file
from topicberg.topics.event_time import EventTimeField, EventTimeSpec
from topicberg.topics.schema import (
    DECODED,
    PARTS,
    Framing,
    KeyFormat,
    SchemaFile,
    SchemaFormat,
    read_schema,
    schema_path,
    schema_place,
)

if TYPE_CHECKING:
    from topicberg.formats.envelope import Changes
    from topicberg.formats.subjects import JsonOptions

CLEANUP_POLICY = "cleanup.policy"
_KAFKA_NAMES = """
cleanup.policy compression.gzip.level compression.lz4.level compression.type
compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
follower.replication.throttled.replicas index.interval.bytes
leader.replication.throttled.replicas local.retention.bytes local.retention.ms
max.compaction.lag.ms max.message.bytes message.timestamp.after.max.ms
message.timestamp.type message.timestamp.before.max.ms min.cleanable.dirty.ratio
min.insync.replicas min.compaction.lag.ms preallocate remote.copy.disable
remote.storage.enable remote.log.delete.on.disable retention.bytes retention.ms
segment.bytes segment.index.bytes segment.jitter.ms segment.ms
unclean.leader.election.enable
"""
KAFKA_CONFIG = frozenset(_KAFKA_NAMES.split())
"""Apache Kafka 4's topic configurations (https://kafka.apache.org/documentation/#topicconfigs)."""
_INTEGERS = (".ms", ".bytes")
_OF_VENDORS = "confluent."
"""Prefix of Confluent's own configurations, which Confluent checks."""
DAY_MS = 86_400_000
MAX_NAME = 249
"""Kafka's longest topic name; Glue and Snowflake allow 255 characters."""

_METADATA_DESCRIPTIONS = {
    "topic": "Kafka topic of the record",
    metadata.PARTITION: "Kafka partition of the record",
    metadata.HEADERS: "headers of the Kafka record; a map has the last one of a name",
    "leader-epoch": "epoch of the partition's leader when the record was written",
    "offset": "offset of the record in its Kafka partition",
    "timestamp": "timestamp of the Kafka record, see the column of its timestamp type",
    "timestamp-type": "type of the timestamp: CREATE_TIME (the producer's clock) or "
    "LOG_APPEND_TIME (the broker's clock)",
    metadata.EVENT_TIME: "event time, from the field that the spec names",
    metadata.UNKNOWN_FIELDS: "JSON text of what the record has and the schema does not name",
    metadata.RAW_KEY: "bytes of the record's key, of an upsert table",
    metadata.OP: "change in the source: c (create), u (update), r (read by a snapshot), d (delete) "
    "or t (truncate)",
    metadata.SOURCE_TIMESTAMP: "time of the change in the source database",
    metadata.SOURCE_POSITION: "position of the change in the log of the source, such as "
    "PostgreSQL's LSN",
    metadata.SOURCE_TRANSACTION: "transaction of the change in the source",
    metadata.SOURCE_SNAPSHOT: "whether a snapshot read the row: true, first, last, incremental or "
    "false",
}
_METADATA_NAME = re.compile(r"(?:\$\$|cflt_metadata_)(?P<name>.+)")

TRANSFORMS = ("identity", "bucket", "truncate", "year", "month", "day", "hour")
_COLUMN = r"`(?:[^`]|``)+`|[^()\[\],\s`](?:[^()\[\],]*[^()\[\],\s])?"
"""A column in a partition field: quoted as in Spark, or without brackets and commas."""
_PARTITION_FIELD = re.compile(
    rf"(?P<name>\w+)(?:\[(?P<width>\d+)\])?\(\s*(?P<source>{_COLUMN})\s*\)|(?P<column>{_COLUMN})"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,62}")
_OWNER_NAME = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Z|a-z]{2,7}", re.DOTALL)


def _check(is_valid: Callable[[Any], object], message: str) -> AfterValidator:
    """Return a validator that changes nothing; ``message``: with ``{value}`` if it is not valid."""

    def check(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(message.format(value=value))
        return value

    return AfterValidator(check)


def _topic_name(name: str) -> str:
    """Return a valid name for Kafka that is also an identifier in Glue, Snowflake and Dagster."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r}: letters, digits, '.', '_' and '-' only, beginning with a letter or '_'"
        )
    if name.startswith("__"):
        raise ValueError(f"{name!r}: names that begin with '__' are reserved by Kafka")
    if len(name) > MAX_NAME:
        raise ValueError(f"has {len(name)} characters, Kafka allows {MAX_NAME}")
    return name


def topic_config(values: dict[str, Any]) -> dict[str, str]:
    """Return a configuration as Kafka's tools print it: each value as text.

    >>> topic_config({"retention.ms": 1000, "preallocate": True, "min.cleanable.dirty.ratio": 0.50})
    {'retention.ms': '1000', 'preallocate': 'true', 'min.cleanable.dirty.ratio': '0.5'}

    :raises ValueError: a name that Kafka does not have, or a value that is not text, number or
        boolean, or not of the type of its name
    """
    for name in values:
        if name not in KAFKA_CONFIG and not name.startswith(_OF_VENDORS):
            close = difflib.get_close_matches(name, KAFKA_CONFIG, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"{name!r} is not a topic configuration of Kafka{hint}")
    texts = {name: _config_text(name, value) for name, value in values.items()}
    for name, text in texts.items():
        if name.endswith(_INTEGERS) and not re.fullmatch(r"-?\d+", text):
            raise ValueError(f"{name} must be an integer, not {text!r}")
    return texts


def _config_text(name: str, value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | str():
            return ",".join(part.strip() for part in str(value).split(","))
        case float() if math.isfinite(value):
            return str(int(value)) if value.is_integer() else str(value)
    raise ValueError(f"{name}: {value!r} is not text, a number or a boolean")


TopicName = Annotated[str, AfterValidator(_topic_name)]
PlainName = Annotated[
    str,
    _check(
        _PLAIN.fullmatch,
        "{value!r}: lowercase letters, digits and '_' only, beginning with a letter",
    ),
]
"""A name that is valid in Dagster's groups and keys, Iceberg, Glue and Snowflake."""
SubjectName = Annotated[
    str,
    Field(min_length=1),
    _check(
        lambda text: not text.startswith(":.") or text[1:].partition(":")[2],
        '"{value}" is a context without a subject: write ":.context:subject"',
    ),
]
PositiveInt = Annotated[int, Field(strict=True, ge=1)]


class PartitionField(BaseModel):
    """One field of an Iceberg partition spec, e.g. ``hour($$timestamp)``, ``bucket[16](key)``."""

    model_config = ConfigDict(frozen=True)

    transform: str
    column: str
    width: int | None = None
    """Buckets of ``bucket[n]``, length of ``truncate[n]``."""

    def __str__(self) -> str:
        width = "" if self.width is None else f"[{self.width}]"
        return partition_field_text(f"{self.transform}{width}", self.column)


def partition_field_text(transform: str, column: str) -> str:
    """Return a partition field as a spec writes it; a transform as Iceberg does: ``bucket[16]``."""
    if column.startswith("`") or not re.fullmatch(_COLUMN, column):
        column = "`" + column.replace("`", "``") + "`"
    return column if transform == "identity" else f"{transform}({column})"


def parse_partition_field(text: str) -> PartitionField:
    """Parse ``column``, ``transform(column)`` or ``transform[n](column)``.

    :raises ValueError: not of that form, an unknown transform, or ``n`` is missing or too large
    """
    text = text.strip()
    if not (match := _PARTITION_FIELD.fullmatch(text)):
        raise ValueError(
            f"{text!r} is not of the form column, transform(column), transform[n](…); quote a "
            "column with brackets or commas in its name: `column`"
        )
    column = match["column"] or match["source"]
    if column.startswith("`"):
        column = column[1:-1].replace("``", "`")
    if match["column"]:
        return PartitionField(transform="identity", column=column)
    transform = match["name"].lower()
    width = int(match["width"]) if match["width"] else None
    if transform not in TRANSFORMS:
        raise ValueError(f"{match['name']!r} is not a transform; there are {', '.join(TRANSFORMS)}")
    if transform in ("bucket", "truncate"):
        if width is None or not 1 <= width < 2**31:
            raise ValueError(
                f"{text!r}: write {transform}[n]({column}) with n from 1 to 2147483647"
            )
    elif width is not None:
        raise ValueError(f"{text!r}: {transform} takes no [n]")
    return PartitionField(transform=transform, column=column, width=width)


Transform = Annotated[str, AfterValidator(lambda text: str(parse_partition_field(text)))]


_KAFKA_CONFIG = BeforeValidator(
    lambda values: topic_config(values) if isinstance(values, dict) else values
)
_UNIQUE = _check(lambda names: len(set(names)) == len(names), "has a name more than once")
_PAST = _check(lambda day: day <= datetime.now(UTC).date(), "{value} is in the future (UTC)")
_SCALAR = _check(
    lambda value: isinstance(value, str | int | float | bool),
    "{value!r} is neither text nor a number nor a boolean",
)
_OWNER = _check(
    _OWNER_NAME.fullmatch, "{value!r} is neither an e-mail address nor 'team:' and a name"
)


class SpecModel(BaseModel):
    """Unknown fields are errors, and a spec does not change after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Conversion = Literal["number_from_text", "text_from_any", "epoch_from_text", "null_from_empty"]
"""As in :mod:`topicberg.formats.json.conversions`, which takes long to import."""
Conversions = Annotated[
    tuple[Conversion, ...],
    Field(min_length=1),
    _UNIQUE,
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
Compatibility = Literal[
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
]


class SchemaSection(SpecModel):
    """What the sections of the value and of the key have in common."""

    format: str
    file: str | None = None
    """File name in the project's folder of schemas (formats avro, json, protobuf)."""
    message: str | None = None
    """Protobuf only: the message type; default: the first one of the file."""
    subject: SubjectName | None = None
    """The subject, if it is not TopicNameStrategy's, ``<topic>-value`` or ``<topic>-key``; of
    framing ``glue``, the schema in AWS Glue, if it is not ``<topic>``, as AWS's serializers name
    it."""
    compatibility: Compatibility | None = None
    """What a new version of the schema may change; default: the registry's level."""
    date_times: Literal["text", "timestamp"] = "text"
    """JSON Schema only: ``timestamp`` reads strings with ``format: date-time`` as times."""
    framing: Framing = "confluent"
    """How a record names its schema. ``confluent``: in a header, or else in a prefix; ``header``:
    in a header; ``glue``: in the prefix of AWS Glue Schema Registry, which has the schema;
    ``none``: not at all, so all records have one schema."""
    version: Literal["newest"] | PositiveInt = "newest"
    """Framing ``none`` without a schema file: the version of the subject that records have."""

    @property
    def has_schema(self) -> bool:
        return self.format in DECODED

    @property
    def is_text(self) -> bool:
        """Whether it has no schema and is text in UTF-8."""
        return self.format in ("text", "string")

    @property
    def is_registered(self) -> bool:
        """Whether the schema is in Confluent's registry, and is not only a file."""
        of_registry = self.framing in ("confluent", "header")
        return self.has_schema and (of_registry or (self.framing == "none" and self.file is None))

    @property
    def described(self) -> str:
        """The format in words."""
        return self.format if self.format not in ("none", "bytes") else "raw bytes"


class ValueSchema(SchemaSection):
    """The schema of the record value."""

    format: SchemaFormat
    """``text``: UTF-8 in the column ``value``; ``bytes`` or ``none``: the value stays raw bytes."""
    unknown_fields: Literal["ignore", "keep"] = "ignore"
    """JSON only: ``keep`` adds the column ``$$unknown-fields`` with the JSON text of what a record
    has and the schema does not name."""
    conversions: dict[str, Conversions] = {}
    """JSON only: path of a field → how values of other types become values of it."""


class KeySpec(SchemaSection):
    """The record key."""

    format: KeyFormat = "none"
    """``string``: UTF-8 in the column ``key``, which is text; ``bytes``: raw bytes; ``none``: no
    keys."""
    field: str | None = None
    """The value's field that the generator writes as the key (format string)."""


ChangeColumn = Literal[
    "op", "source-timestamp", "source-position", "source-transaction", "source-snapshot"
]


class ChangelogSpec(SpecModel):
    """The records are changes of a database's table, see docs/cdc.md."""

    format: Literal["debezium"]
    """``debezium``: the envelope with ``before``, ``after``, ``op`` and ``source``."""
    columns: Annotated[tuple[ChangeColumn, ...], _UNIQUE] = ()
    """More metadata columns; ``source-timestamp`` and ``source-position`` are always there, and
    ``op`` in write mode append."""
    unavailable_value: str = Field(default="__debezium_unavailable_value", min_length=1)
    """The connector's ``unavailable.value.placeholder``."""


class ErrorHandling(SpecModel):
    """How a record that cannot be decoded is handled (tableflow/v1, ``error_handling``)."""

    mode: Literal["SUSPEND", "SKIP", "LOG"] = "SUSPEND"
    target: TopicName | None = None
    """The dead-letter topic of mode LOG; default: ``error_log``."""


class TableflowSpec(SpecModel):
    """Settings of Tableflow for the topic; names and bounds as in Confluent's API tableflow/v1."""

    enabled: bool = Field(default=True, strict=True)
    table_formats: Annotated[
        tuple[Literal["ICEBERG", "DELTA"], ...], _UNIQUE, Field(min_length=1)
    ] = ("ICEBERG",)
    """DELTA: a Delta log over the Iceberg table's files, see docs/delta.md."""
    storage: Literal["bucket", "managed"] = "bucket"
    """managed: Confluent's own storage, which neither AWS Glue nor Snowflake reads. Confluent's
    Tableflow has it; topicberg's engine always writes to the bucket."""
    retention_ms: int = Field(default=7 * DAY_MS, ge=DAY_MS, lt=2**63)
    """How long snapshots are kept; at least a day."""
    data_retention_ms: int | None = Field(default=None, ge=30 * DAY_MS, lt=2**63)
    """How long rows are kept, at least 30 days; default: for ever."""
    error_handling: ErrorHandling = ErrorHandling()
    metadata_column_naming_scheme: Literal["DEFAULT", "PORTABLE"] = "DEFAULT"
    """DEFAULT: ``$$offset``; PORTABLE: ``cflt_metadata_offset``."""
    start_position: Literal["earliest", "latest"] | Annotated[int, Field(strict=True, ge=0)] = (
        "earliest"
    )
    """Where a new table begins: the first record kept, the next one, or a time in milliseconds."""
    commit_interval_seconds: float = Field(default=10, gt=0, le=86_400, allow_inf_nan=False)
    commit_max_bytes: int = Field(default=250_000_000, strict=True, ge=1)
    engine: Literal["auto", "spark"] = "auto"
    """What reads and writes the batches of topicberg's engine. auto: processes of the engine those
    of up to 100,000 records and 64 MB, and changes that become current rows; tasks of Spark the
    others. spark: tasks of Spark all of them."""


class TableSpec(SpecModel):
    """The Iceberg table."""

    partitioning: tuple[Transform, ...] = ()
    """Iceberg transforms on columns: ``hour(c)``, ``bucket[16](c)``, ``truncate[4](c)``, ``c``."""
    format_version: Literal[2, 3] = 2
    """Iceberg's format version of a new table. Version 3 has deletion vectors and row lineage, and
    not every reader supports it: see docs/tableflow.md. An existing table keeps its version."""
    headers: Literal["map", "list"] = "map"
    """The column of a record's headers. ``map``: name → value, of repeated names the last one's;
    ``list``: structs of ``key`` and ``value`` in the record's order, so that all are kept. An
    existing table keeps its column."""

    @cached_property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        return tuple(parse_partition_field(text) for text in self.partitioning)


class DerivedPartitions(SpecModel):
    """Time partitions of the tables derived from this one, by event time in UTC."""

    granularity: Literal["hourly", "daily"]
    start: Annotated[date, _PAST]
    """The first day that has a partition; not in the future."""
    timezone: Literal["UTC"] = "UTC"


class GeneratorSpec(SpecModel):
    """What ``topicberg datagen`` produces to the topic."""

    kind: str
    """A generator of the project, see :mod:`topicberg.datagen`."""
    rate: float = Field(default=100, ge=0, allow_inf_nan=False)
    """Records a second; 0: as fast as possible. In the cloud, Datagen's average rate."""
    tasks: PositiveInt = 1
    """Tasks of the Datagen connector in the cloud, which share the rate."""
    seed: int = Field(default=0, strict=True, ge=0)


class Freshness(SpecModel):
    """The age of the newest materialization from which the table is stale."""

    warn_minutes: PositiveInt
    fail_minutes: PositiveInt


class Range(SpecModel):
    """Inclusive bounds; one may be left out."""

    min: float | None = Field(default=None, allow_inf_nan=False)
    max: float | None = Field(default=None, allow_inf_nan=False)


AcceptedValues = Annotated[tuple[Annotated[Any, _SCALAR], ...], Field(min_length=1)]


class Rules(SpecModel):
    """Rules for the rows of a table."""

    not_null: tuple[str, ...] = ()
    """Columns that are never null."""
    accepted_values: dict[str, AcceptedValues] = {}
    """Column → every allowed value."""
    ranges: dict[str, Range] = {}
    """Column → bounds of its values."""
    unique: tuple[str, ...] = ()
    """Columns whose values are unique; the check reads them completely."""
    blocking: bool = Field(default=False, strict=True)
    """While a rule is broken, nothing downstream is computed."""
    volume_factor: float | None = Field(default=4, gt=1, allow_inf_nan=False)
    """An hour with so many times more or fewer rows than usual is an anomaly; null: never."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rules name, each as often as they do."""
        return (*self.not_null, *self.accepted_values, *self.ranges, *self.unique)


class Checks(Rules):
    """Data checks on the topic's table."""

    max_lag_records: int | None = Field(default=None, strict=True, ge=0)
    """The largest lag of the table behind Kafka's end offsets, in records."""


def default_subject(topic: str, part: Part, framing: str) -> str:
    """Return the subject of a topic's keys or values that names none: TopicNameStrategy's. Of
    framing ``glue``, AWS's serializers give the schema of both the name of the topic."""
    return topic if framing == "glue" else f"{topic}-{part}"


def asset_name(topic: str) -> str:
    """Return a topic's name in Dagster ([A-Za-z0-9_]): ``.`` and ``-`` become ``_``."""
    return re.sub(r"[.-]", "_", topic)


def _metadata_column(tableflow: TableflowSpec, name: str) -> str:
    is_default = tableflow.metadata_column_naming_scheme == "DEFAULT"
    return f"$${name}" if is_default else f"cflt_metadata_{name.replace('-', '_')}"


def metadata_description(column: str) -> str | None:
    """Return what a metadata column holds, such as ``$$offset``; None: it is another column."""
    match = _METADATA_NAME.fullmatch(column)
    return _METADATA_DESCRIPTIONS.get(match["name"].replace("_", "-")) if match else None


class RecordsSpec(SpecModel):
    """A topic in Kafka: its configuration, its records, and where their schemas are."""

    name: TopicName
    """The Kafka topic; also the name of the file."""
    pipeline: PlainName
    """Group of its assets; see :meth:`namespace` for the tables derived from it."""
    description: str = ""
    value_schema: ValueSchema = Field(alias="schema")
    key: KeySpec = KeySpec()
    external: bool = Field(default=False, strict=True)
    """The topic and its schemas belong to others: topicberg neither creates nor changes them, and
    the newest versions in the registry take the place of schema files."""
    partitions: PositiveInt = Field(default=6, le=10_000)
    topic_config: Annotated[dict[str, str], _KAFKA_CONFIG] = {}
    """The topic's configuration in Kafka, e.g. ``retention.ms: 604800000``; the broker's settings
    apply to everything else."""
    changelog: ChangelogSpec | None = None
    """The records are changes: upsert keeps the current rows, append every change."""
    write_mode: Literal["append", "upsert"] = "append"
    """upsert: the key is the primary key, and the topic is compacted."""

    @property
    def asset_name(self) -> str:
        """The topic's name in Dagster, see :func:`asset_name`."""
        return asset_name(self.name)

    @property
    def cleanup_policy(self) -> str:
        """The cleanup policy, set by the write mode, which Tableflow's follows. An upsert topic may
        also have ``compact,delete``."""
        by_mode = "compact" if self.is_compacted else "delete"
        return self.topic_config.get(CLEANUP_POLICY, by_mode)

    @property
    def is_compacted(self) -> bool:
        """Whether the write mode needs a compacted topic; a change log may have any policy."""
        return self.write_mode == "upsert" and self.changelog is None

    @property
    def changes(self) -> Changes | None:
        """Which rows of a change are in the table, if the records are changes."""
        by_mode: Changes = "rows" if self.write_mode == "upsert" else "changes"
        return None if self.changelog is None else by_mode

    @property
    def change_columns(self) -> tuple[str, ...]:
        """The metadata columns of a change log, in order, without their prefix."""
        if self.changelog is None:
            return ()
        kept = {metadata.SOURCE_TIMESTAMP, metadata.SOURCE_POSITION, *self.changelog.columns}
        kept |= {metadata.OP} if self.write_mode == "append" else set()
        return tuple(name for name in metadata.CHANGE_TYPES if name in kept)

    @property
    def kafka_config(self) -> dict[str, str]:
        """The configuration with which the topic is created and to which it is reset."""
        return {**self.topic_config, CLEANUP_POLICY: self.cleanup_policy}

    @property
    def value_subject(self) -> str:
        return self.subject("value")

    @property
    def key_subject(self) -> str:
        return self.subject("key")

    def subject(self, part: Part) -> str:
        """Return a subject, or the schema in AWS Glue: the spec's, else the default one."""
        own = self.section(part)
        return own.subject or default_subject(self.name, part, own.framing)

    def section(self, part: Part) -> SchemaSection:
        """Return the section of the keys or of the values."""
        return self.key if part == "key" else self.value_schema

    def schema_path(self, part: Part, config: Settings | None = None) -> Path | None:
        """Return the schema file of the keys or of the values; None: they have none."""
        file = self.section(part).file
        return schema_place((config or settings()).schemas_dir, file) if file else None

    def schema_files(
        self, config: Settings | None = None
    ) -> Iterator[tuple[str, SchemaSection, Path]]:
        """Yield subject, schema section, and path of each schema file that belongs into the
        registry: the value's, the key's."""
        for part in PARTS:
            section = self.section(part)
            if (path := self.schema_path(part, config)) and section.is_registered:
                yield self.subject(part), section, path

    def _reads_registry(self, section: SchemaSection) -> bool:
        """Return whether the registry has the schema, and no file of the project."""
        has_none = section.has_schema and section.file is None
        return has_none and (self.external or section.framing in ("none", "glue"))


class TopicSpec(RecordsSpec):
    """Everything topicberg knows about one topic: the records in Kafka, and their table."""

    history: bool = Field(default=False, strict=True)
    """A second table ``<pipeline>.<topic>_history`` with every record (write mode upsert)."""
    upsert_views: dict[PlainName, Annotated[tuple[str, ...], Field(min_length=1)]] = {}
    """Table → columns: ``<pipeline>.<table>`` has the newest record of each value of these columns
    (write mode append)."""
    tableflow: TableflowSpec = TableflowSpec()
    event_time_rule: EventTimeField = Field(
        alias="event_time",
        default_factory=lambda fields: EventTimeSpec(
            field=_metadata_column(fields["tableflow"], "timestamp")
        ),
    )
    """The column of event time, by which derived partitions are assigned, or a field of the record
    and how to read it; default: Kafka's time."""
    table: TableSpec = TableSpec()
    derived_partitions: DerivedPartitions | None = None
    generator: GeneratorSpec | None = None
    publishes: str | None = None
    """A derived table whose rows are the topic's records."""
    parameters: dict[str, dict[str, Any]] = {}
    """Derived table → the parameters of its function."""
    owners: tuple[Annotated[str, _OWNER], ...] = ()
    """``team:name`` or e-mail addresses, as Dagster expects them."""
    freshness: Freshness | None = None
    checks: Checks = Checks()

    def schema_text(self, part: Part, config: Settings | None = None) -> str:
        """Return the text of a schema file; raise SpecError if there is none, or it is invalid."""
        schema_path((config or settings()).schemas_dir, self.section(part).file or "")
        schema = self.known_schema(part, config)
        assert schema is not None  # noqa: S101  there is a file
        return schema.text

    def known_schema(self, part: Part, config: Settings | None = None) -> SchemaFile | None:
        """Return the schema of the file, or what was last read from the registry for an external
        topic; None: there is no schema, or it is not known.

        :raises SpecError: the file is missing or invalid
        """
        section, path = self.section(part), self.schema_path(part, config)
        as_registered: Part | None = "key" if part == "key" else None
        if path is None and self._reads_registry(section) and section.version == "newest":
            discovered = schema_file(config or settings(), self.name, part, section.format)
            path = discovered if discovered.is_file() else None
            as_registered = part
        if path is None:
            return None
        changes = "key" if part == "key" and self.changelog is not None else self.changes
        return read_schema(
            path, section.format, section.message, self.json_options(part), changes, as_registered
        )

    def json_options(self, part: Part) -> JsonOptions:
        """Return what the spec says of JSON keys or values besides their schema."""
        from topicberg.formats.subjects import JsonOptions

        if part == "key":
            return JsonOptions(self.key.date_times == "timestamp")
        own, unknown = self.value_schema, self.metadata_column(metadata.UNKNOWN_FIELDS)
        kept = unknown if own.unknown_fields == "keep" else None
        return JsonOptions(own.date_times == "timestamp", kept, tuple(own.conversions.items()))

    def unknown_schemas(self, config: Settings) -> list[str]:
        """Return the subjects whose schemas only the registry has, and that are not known here: not
        read yet, or they do not exist, or refer to other subjects."""
        return [
            self.subject(part)
            for part in PARTS
            if self._reads_registry(self.section(part)) and self.known_schema(part, config) is None
        ]

    def has_table(self, config: Settings) -> bool:
        """Return whether its table is in the catalogs of the deployment."""
        managed = self.tableflow.storage == "managed" and not config.own_engine
        return self.tableflow.enabled and not managed

    @property
    def has_delta_table(self) -> bool:
        """Return whether Tableflow writes it as a Delta table."""
        return self.tableflow.enabled and "DELTA" in self.tableflow.table_formats

    def table_identifier(self, config: Settings | None = None) -> tuple[str, str]:
        """Return Iceberg's (namespace, table): cluster id, as Tableflow does, or the user-defined
        namespace, and topic name. Quote both in SQL: `` lake.`lkc-local`.`airline.sunset` ``."""
        return (config or settings()).topics_namespace, self.name

    def namespace(self, config: Settings | None = None) -> str:
        """Return the Iceberg namespace and Glue database of the tables derived from the topic's."""
        return Names((config or settings()).prefix).namespace(self.pipeline)

    @property
    def glue_name(self) -> str:
        """Glue table: the topic name, in lower case because Glue requires that for Hive. Glue
        allows dots and hyphens; Athena needs such a name in double quotes."""
        return self.name.lower()

    @property
    def snowflake_name(self) -> str:
        """Snowflake table, usable without quotes: upper case, ``.`` and ``-`` become ``_``."""
        return self.table_name.upper()

    @property
    def table_names(self) -> tuple[str, str]:
        """The names that no other topic's table may have anywhere: Snowflake and Unity Catalog have
        underscores instead of periods, and Glue has lower case."""
        return self.asset_name.upper(), self.snowflake_name

    @property
    def table_name(self) -> str:
        """The table's name beside derived tables, in Dagster and in Snowflake. That of a published
        topic ends in ``_topic``: the derived table often has the name of the topic."""
        return f"{self.asset_name}_topic" if self.publishes else self.asset_name

    @property
    def payload_time(self) -> EventTimeSpec | None:
        """How the event time is read from a field; None: a column has it."""
        return None if self.event_time_rule.format is None else self.event_time_rule

    @property
    def event_time(self) -> str:
        """The column of event time."""
        rule = self.event_time_rule
        return rule.field if rule.format is None else self.metadata_column(metadata.EVENT_TIME)

    def metadata_column(self, name: str) -> str:
        """Return the name of a metadata column: ``$$offset`` or ``cflt_metadata_offset``."""
        return _metadata_column(self.tableflow, name)

    @property
    def metadata_types(self) -> dict[str, str]:
        """The metadata columns of every write mode, in order, without their prefix, and their
        Iceberg types. Headers are a ``map`` or a ``list``."""
        types = metadata.METADATA_TYPES | {metadata.HEADERS: self.table.headers}
        types |= {name: metadata.CHANGE_TYPES[name] for name in self.change_columns}
        return types | (
            {metadata.EVENT_TIME: "timestamptz"} if self.payload_time is not None else {}
        )

    def columns(self, config: Settings | None = None) -> dict[str, str]:
        """Return the columns of the topic's table, in order, with their Iceberg types.

        Key (``key`` binary, or the key schema's fields), value fields, metadata columns. Nested
        types are named ``struct``, ``list`` and ``map`` only. A field of both key and value has
        the value's type, as in Tableflow.

        :raises SpecError: a schema file is missing or invalid
        """
        key, value = self.known_schema("key", config), self.known_schema("value", config)
        own_engine = (config or settings()).own_engine  # Confluent's has raw bytes
        raw = "string" if self.key.is_text and own_engine else "binary"
        columns = dict(key.columns) if key else {"key": raw}
        raw = "string" if self.value_schema.is_text else "binary"
        columns |= value.columns if value else {"value": raw}
        types = self.metadata_types.items()
        return columns | {self.metadata_column(name): kind for name, kind in types}
