"""Rules between the fields of a spec, and between a spec and the columns of its table.

A rule names the fields that it reads. It is not applied if one of them is invalid in itself, so
that one mistake is reported once, and all mistakes of a file together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import TypeVar

from topicberg.datagen import kind_names
from topicberg.errors import SpecError
from topicberg.formats.time_text import EPOCHS, TIME
from topicberg.settings import Settings
from topicberg.topics.event_time import EventTimeSpec
from topicberg.topics.schema import SECTIONS, Framing, read_schema, schema_path
from topicberg.topics.spec import SchemaSection, TopicSpec, ValueSchema
from topicberg.wording import suggestion

T = TypeVar("T")
Finding = tuple[str, str]
"""Field (dotted), reason."""

TIMES = frozenset({"timestamptz", "timestamp"})
WHOLE = frozenset({"int", "long"})
NUMBERS = WHOLE | {"float", "double", "decimal"}
NESTED = frozenset({"struct", "list", "map"})
TRANSFORM_TYPES = {
    "year": TIMES | {"date"},
    "month": TIMES | {"date"},
    "day": TIMES | {"date"},
    "hour": TIMES,
    "truncate": WHOLE | {"decimal", "string", "binary"},
    "bucket": WHOLE | TIMES | {"decimal", "date", "time", "string", "binary", "fixed", "uuid"},
}
"""Source types of Iceberg's transforms (table spec, "Partition Transforms")."""
_PERIODS = {"year", "month", "day", "hour"}
_WRITTEN = ("avro", "json")
"""The formats that topicberg writes, and in which Debezium's changes are read."""

_GLUE_READS = "framing glue: producers register the schema in AWS Glue, which topicberg only reads"
_GLUE_NAME = re.compile(r"[a-zA-Z0-9_$#.-]{1,255}")
"""AWS Glue's API, CreateSchema: a schema's name."""
_COLUMN_SOURCES = (
    "schema key.format key.file key.message key.date_times key.framing key.version "
    "key.subject tableflow.metadata_column_naming_scheme"
)

_AS_A_TIME = {
    "avro": "have the producer write a long with the logicalType timestamp-millis or -micros",
    "json": "for text such as 2026-01-31T12:00:00Z give the field `format: date-time` and set "
    "`schema.date_times: timestamp`; or have the producer write milliseconds, as an integer with "
    "the title org.apache.kafka.connect.data.Timestamp",
    "protobuf": "have the producer write a google.protobuf.Timestamp",
    **dict.fromkeys(
        ("none", "text", "bytes"), "add a schema to the spec: without one the topic has no fields"
    ),
}
"""Remediation for an event time that is not a time, by the format of the schema."""

_SCHEMA_FINDINGS = "schema schema.format schema.file schema.message key key.file key.message"

Rule = Callable[[TopicSpec, Settings], Iterator[Finding]]
TableRule = Callable[[TopicSpec, dict[str, str]], Iterator[Finding]]
_RULES: list[tuple[tuple[str, ...], Rule]] = []
_TABLE_RULES: list[tuple[tuple[str, ...], TableRule]] = []


Mistake = tuple[str, Callable[[TopicSpec, Settings], object], str]
"""A field and others that tell whether it is wrong, whether it is, and why, with ``{spec}``."""
_TARGET = "tableflow.error_handling.target tableflow.error_handling"
_MISTAKES: tuple[Mistake, ...] = (
    (
        "key.subject schema key name",
        lambda spec, _: (
            spec.value_subject == spec.key_subject
            and all(_is_framed(own, "glue") for own in (spec.value_schema, spec.key))
        ),
        "keys and values cannot both have the schema {spec.key_subject} of AWS Glue, whose newest "
        "version defines the columns: name the key's",
    ),
    (
        "changelog",
        lambda spec, config: spec.changelog and not config.own_engine,
        "is only for topicberg's engine: Confluent's Tableflow does not read envelopes",
    ),
    (
        "schema.format changelog",
        lambda spec, _: spec.changelog and spec.value_schema.format not in _WRITTEN,
        "is {spec.value_schema.format}; a changelog is read as avro or json: set the connector's "
        "converters to an Avro, JSON Schema or JSON converter",
    ),
    (
        "key.format changelog",
        lambda spec, _: spec.changelog and spec.key.format not in ("none", *_WRITTEN),
        "is {spec.key.format}; the keys of a changelog are avro or json, or none",
    ),
    (
        "write_mode changelog key.format",
        lambda spec, _: spec.changes == "rows" and spec.key.format == "none",
        "upsert of a changelog needs key.format avro or json; a source table without a primary key "
        "has no keys: use write_mode append",
    ),
    (
        "generator changelog",
        lambda spec, _: spec.changelog and spec.generator,
        "a changelog is written by Debezium",
    ),
    (
        "publishes changelog",
        lambda spec, _: spec.changelog and spec.publishes is not None,
        "a changelog is written by Debezium",
    ),
    (
        "key.format key write_mode changelog",
        lambda spec, _: spec.is_compacted and spec.key.format == "none",
        "write_mode upsert needs a key: it is the primary key of the table",
    ),
    (
        "topic_config write_mode changelog",
        lambda spec, _: (
            spec.write_mode == "append" and not spec.changelog and spec.cleanup_policy != "delete"
        ),
        "cleanup.policy {spec.cleanup_policy} contradicts write_mode append, which needs delete",
    ),
    (
        "topic_config write_mode changelog",
        lambda spec, _: (
            spec.is_compacted
            and spec.cleanup_policy not in ("compact", "compact,delete", "delete,compact")
        ),
        "cleanup.policy {spec.cleanup_policy} contradicts write_mode upsert, which needs compact "
        "or compact,delete",
    ),
    (
        "history write_mode tableflow.enabled",
        lambda spec, _: (
            spec.history and (spec.write_mode != "upsert" or not spec.tableflow.enabled)
        ),
        "is only for materialized topics in write_mode upsert: other tables keep every record",
    ),
    (
        "upsert_views write_mode tableflow.enabled",
        lambda spec, _: (
            spec.upsert_views and (spec.write_mode != "append" or not spec.tableflow.enabled)
        ),
        "are only for materialized topics in write_mode append: an upsert topic's table is such a "
        "view",
    ),
    (
        "tableflow.table_formats write_mode",
        lambda spec, _: spec.write_mode == "upsert" and "DELTA" in spec.tableflow.table_formats,
        "DELTA needs write_mode append: a Delta log over the same files cannot represent an "
        "upsert's position deletes",
    ),
    # https://docs.confluent.io/cloud/current/topics/tableflow/concepts/tableflow-storage.html
    (
        "tableflow.table_formats tableflow.storage",
        lambda spec, config: (
            not config.own_engine
            and "DELTA" in spec.tableflow.table_formats
            and spec.tableflow.storage == "managed"
        ),
        "Confluent's storage has Iceberg tables only: DELTA needs tableflow.storage bucket",
    ),
    # https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/overview.html
    (
        "tableflow.table_formats tableflow.storage",
        lambda spec, config: (
            not config.own_engine and set(spec.tableflow.table_formats) == {"DELTA"}
        ),
        "needs ICEBERG as well: Confluent's Tableflow publishes Delta tables to Unity Catalog "
        "only, so neither AWS Glue nor Snowflake would have the table",
    ),
    (
        "table.headers",
        lambda spec, config: spec.table.headers == "list" and not config.own_engine,
        "list is only for topicberg's engine: Confluent's writes a map",
    ),
    (
        _TARGET,
        lambda spec, config: (
            spec.tableflow.error_handling.mode == "LOG"
            and "." in (spec.tableflow.error_handling.target or "")
            and not config.own_engine
        ),
        "is {spec.tableflow.error_handling.target}: Confluent's Tableflow takes no dead-letter "
        "topic whose name has a period",
    ),
    (
        "pipeline",
        lambda spec, config: (
            config.is_deployed and spec.namespace(config) == config.topics_namespace
        ),
        "{spec.pipeline} is the id of the cluster: its namespace holds the topics",
    ),
    (
        f"{_TARGET} name",
        lambda spec, _: (
            spec.tableflow.error_handling.mode != "LOG"
            and spec.tableflow.error_handling.target is not None
        ),
        "is only for mode LOG, the mode is {spec.tableflow.error_handling.mode}",
    ),
    (
        f"{_TARGET} name",
        lambda spec, _: spec.tableflow.error_handling.target == spec.name,
        "a topic cannot be its own dead-letter topic",
    ),
    (
        "freshness.fail_minutes freshness.warn_minutes",
        lambda spec, _: (
            spec.freshness and spec.freshness.fail_minutes <= spec.freshness.warn_minutes
        ),
        "must be more than freshness.warn_minutes",
    ),
    (
        "generator schema.format",
        lambda spec, _: spec.generator and spec.value_schema.format not in _WRITTEN,
        "writes Avro or JSON; schema.format is {spec.value_schema.format}",
    ),
    (
        "generator key",
        lambda spec, _: spec.generator and spec.key.format not in ("none", "string"),
        "writes string keys or none; key.format is {spec.key.format}",
    ),
    (
        "key.field generator key",
        lambda spec, _: spec.generator and spec.key.format == "string" and spec.key.field is None,
        "is required: the generator writes this field of the value as the key",
    ),
    (
        "publishes generator",
        lambda spec, _: spec.publishes is not None and spec.generator,
        "a topic has a generator or a derived table, not both",
    ),
    (
        "publishes schema.format",
        lambda spec, _: spec.publishes is not None and spec.value_schema.format not in _WRITTEN,
        "writes Avro or JSON; schema.format is {spec.value_schema.format}",
    ),
    (
        "publishes key",
        lambda spec, _: spec.publishes is not None and spec.key.format in ("protobuf", "bytes"),
        "writes keys as string, Avro or JSON; key.format is {spec.key.format}",
    ),
    (
        "key.field publishes key",
        lambda spec, _: (
            spec.publishes is not None and spec.key.format == "string" and spec.key.field is None
        ),
        "is required: this column of the published table becomes the key",
    ),
    (
        "event_time changelog",
        lambda spec, _: spec.payload_time and spec.changelog,
        "a field with a format is not for a changelog: name a column",
    ),
    (
        "event_time",
        lambda spec, config: spec.payload_time and not config.own_engine,
        "a field with a format is only for topicberg's engine: name a column",
    ),
)
"""Mistakes that one condition finds; the rules that are functions find the others."""


_SECTION_MISTAKES: tuple[tuple[str, Callable[[SchemaSection, bool], object], str], ...] = (
    (
        "file",
        lambda own, _: _is_framed(own, "none") and own.file is None and own.subject is None,
        "framing none needs a schema file, or {section}.subject: records name no schema",
    ),
    (
        "subject",
        lambda own, _: _is_framed(own, "none") and own.file is not None and own.subject is not None,
        "has no effect: with framing none, {own.file} is not registered",
    ),
    (
        "compatibility",
        lambda own, _: (
            _is_framed(own, "none") and own.file is not None and own.compatibility is not None
        ),
        "has no effect: with framing none, {own.file} is not registered",
    ),
    (
        "version",
        lambda own, _: _is_framed(own, "none") and own.file is not None and own.version != "newest",
        "has no effect: {own.file} is the schema of all records",
    ),
    (
        "file",
        lambda own, _: _is_framed(own, "glue") and own.file is not None,
        f"is not for {_GLUE_READS}",
    ),
    (
        "compatibility",
        lambda own, _: _is_framed(own, "glue") and own.compatibility is not None,
        f"is not for {_GLUE_READS}",
    ),
    (
        "subject",
        lambda own, _: (
            _is_framed(own, "glue") and own.subject and not _GLUE_NAME.fullmatch(own.subject)
        ),
        '"{own.subject}" is no name of a schema in AWS Glue: up to 255 letters, digits, '
        "'-', '_', '$', '#' and '.'",
    ),
    (
        "framing",
        lambda own, _: own.framing != "confluent" and not own.has_schema,
        "format {own.format} has no schema that a record could name",
    ),
    (
        "file",
        lambda own, is_external: (
            _is_framed(own, "confluent", "header") and not own.file and not is_external
        ),
        "format {own.format} needs a schema file",
    ),
    (
        "version",
        lambda own, _: own.version != "newest" and not _is_framed(own, "none"),
        "is only for framing none: other records name their schemas",
    ),
    (
        "file",
        lambda own, _: not own.has_schema and own.file is not None,
        "format {own.format} has no schema file",
    ),
    (
        "message",
        lambda own, _: own.message is not None and own.format != "protobuf",
        "is only for format protobuf",
    ),
    (
        "date_times",
        lambda own, _: own.date_times != "text" and own.format != "json",
        "is only for format json",
    ),
    (
        "compatibility",
        lambda own, _: own.compatibility is not None and not own.has_schema,
        "format {own.format} has no schema in the registry",
    ),
)
"""The same of a section about a schema, and whether the topic is external: ``{own}``."""


def _is_framed(own: SchemaSection, *framings: Framing) -> bool:
    return own.has_schema and own.framing in framings


def _remember(rules: list[tuple[tuple[str, ...], T]], *reads: str) -> Callable[[T], T]:
    def remember(rule: T) -> T:
        rules.append((reads, rule))
        return rule

    return remember


_rule, _table_rule = partial(_remember, _RULES), partial(_remember, _TABLE_RULES)


def findings(spec: TopicSpec, config: Settings, wrong: Iterable[str]) -> list[Finding]:
    """Return all violations of the rules; ``wrong``: dotted fields that are invalid in themselves,
    and have some default here."""
    wrong = set(wrong)

    def is_applicable(reads: Sequence[str]) -> bool:
        pairs = ((f"{field}.", f"{read}.") for field in wrong for read in reads)
        return not any(a.startswith(b) or b.startswith(a) for a, b in pairs)

    violations = [
        (fields.split()[0], reason.format(spec=spec))
        for fields, is_wrong, reason in _MISTAKES
        if is_applicable(fields.split()) and is_wrong(spec, config)
    ]
    violations += [
        finding for reads, rule in _RULES if is_applicable(reads) for finding in rule(spec, config)
    ]
    are_unknown = any(field in _SCHEMA_FINDINGS.split() for field, _ in violations)
    if (
        not are_unknown
        and is_applicable(_COLUMN_SOURCES.split())
        and not spec.unknown_schemas(config)
    ):
        columns = spec.columns(config)
        for reads, table_rule in _TABLE_RULES:
            if is_applicable(reads):
                violations += table_rule(spec, columns)
    return violations


@_rule("schema", "key", "changelog", "write_mode", "external")
def _schema_files(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    for part, name in SECTIONS.items() if spec.external else ():
        section = spec.section(part)
        if section.file is not None and section.is_registered:
            yield f"{name}.file", "is not for an external topic: its schema is in the registry"
            return
    for part, name in SECTIONS.items():
        section = spec.section(part)
        violations = [*_schema_reference(name, section, is_external=spec.external)]
        yield from violations
        try:
            if section.file and not violations:
                schema_path(config.schemas_dir, section.file)
            if not (section.file and violations):
                spec.known_schema(part, config)  # of the registry, as far as it is known
        except SpecError as error:
            yield f"{name}.file" if section.file else name, error.message


@_rule("external", "generator", "publishes", "topic_config")
def _external(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    reason = "is not for an external topic, which topicberg does not write or change"
    fields = ("generator", "publishes", "topic_config")
    yield from ((field, reason) for field in fields if spec.external and getattr(spec, field))


def _schema_reference(
    section: str, schema: SchemaSection, *, is_external: bool
) -> Iterator[Finding]:
    yield from (
        (f"{section}.{field}", reason.format(own=schema, section=section))
        for field, is_wrong, reason in _SECTION_MISTAKES
        if is_wrong(schema, is_external)
    )
    options = _json_options(schema) if schema.format != "json" else ()
    yield from ((f"{section}.{field}", "is only for format json") for field in options)


def _json_options(schema: SchemaSection) -> list[str]:
    """Return the fields by which the engine reads JSON values otherwise than by their schema."""
    if not isinstance(schema, ValueSchema):
        return []
    is_set = {"unknown_fields": schema.unknown_fields == "keep", "conversions": schema.conversions}
    return [name for name, one in is_set.items() if one]


@_rule("schema", "key")
def _framing(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    is_written = spec.generator is not None or spec.publishes is not None
    for part, section in SECTIONS.items():
        own = spec.section(part)
        if own.framing != "confluent" and is_written:
            reason = "topicberg writes the topic, with the ids of schemas before each record"
            yield f"{section}.framing", f"is {own.framing}, but {reason}"
        for field in _json_options(own) if not config.own_engine else ():
            yield f"{section}.{field}", "is only for topicberg's engine"
        is_own = own.framing in ("none", "glue") or own.format == "text"
        if is_own and not config.own_engine:
            field = "format" if own.format == "text" else "framing"
            yield (
                f"{section}.{field}",
                f"{getattr(own, field)} is only for topicberg's engine: Confluent's Tableflow "
                "reads records that name a schema of Confluent's registry, and raw bytes",
            )


@_rule("schema", "key")
def _key_field(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    field, value = spec.key.field, spec.value_schema
    if field is not None and spec.key.format != "string":
        yield "key.field", f"is only for format string, the key's format is {spec.key.format}"
    elif field is not None and not value.file:
        yield "key.field", "the value has no schema, and so no fields"
    elif field is not None and value.file:
        with suppress(SpecError):  # reported by the rule about schema files
            path = schema_path(config.schemas_dir, value.file)
            fields = read_schema(path, value.format, value.message).columns
            if field not in fields:
                yield "key.field", f"the value has no field {field}{suggestion(field, fields)}"
            elif fields[field] in NESTED | {"binary", "fixed"}:
                yield "key.field", f"{field} is a {fields[field]}, which cannot be written as text"


@_rule("changelog", "schema.unknown_fields", "schema.conversions")
def _changelog_values(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    reason = "is not for a changelog, whose columns are those of the source's table"
    for field in _json_options(spec.value_schema) if spec.changelog is not None else ():
        yield f"schema.{field}", reason


@_rule("generator.kind")
def _generator_kind(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    kind = spec.generator.kind if spec.generator else None
    try:
        if kind is not None and kind not in (known := kind_names(config)):
            yield "generator.kind", f"there is no kind {kind}{suggestion(kind, known)}"
    except SpecError as error:
        yield "generator.kind", error.message


@_rule("checks.ranges")
def _ranges(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    for column, bounds in spec.checks.ranges.items():
        if bounds.min is None and bounds.max is None:
            yield f"checks.ranges.{column}", "needs min, or max, or both"
        elif bounds.min is not None and bounds.max is not None and bounds.min > bounds.max:
            yield f"checks.ranges.{column}", f"min {bounds.min} is more than max {bounds.max}"


@_table_rule()
def _column_names(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    """Find fields that become one column. Glue folds names to lower case, Snowflake to upper case,
    and Spark ignores case."""
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.lower(), column)
        if other != column:
            yield "schema.file", f"fields {other} and {column} would be one column in Glue"


def _payload_field(rule: EventTimeSpec, columns: dict[str, str]) -> Iterator[Finding]:
    names = [rule.field, *(rule.field[: dot.start()] for dot in re.finditer(r"\.", rule.field))]
    name = next((candidate for candidate in names if candidate in columns), None)
    if name is None:
        yield "event_time.field", _no_column(rule.field, columns)
        return
    kind = columns[name].partition("(")[0]
    allowed = {"timestamptz"} if rule.format == TIME else {"string"}
    allowed |= NUMBERS if rule.format in EPOCHS else set()
    allowed = {"struct"} if name != rule.field else allowed
    if kind not in allowed:
        expected = f"{' or '.join(sorted(allowed))} for format {rule.format}"
        yield "event_time.field", f"{name} is a {kind}, expected {expected}"


@_table_rule("event_time")
def _event_time(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    if spec.payload_time is not None:
        yield from _payload_field(spec.payload_time, columns)
        return
    column = spec.event_time
    if column not in columns:
        yield "event_time", _no_column(column, columns)
    elif columns[column] not in TIMES | {"date"}:
        yield (
            "event_time",
            f"{column} is a {columns[column]}, not a time; {_AS_A_TIME[spec.value_schema.format]}, "
            f"or leave event_time out to use Kafka's time, {spec.metadata_column('timestamp')}",
        )


@_table_rule("event_time", "derived_partitions")
def _hourly_dates(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    derived = spec.derived_partitions
    if derived and derived.granularity == "hourly" and columns.get(spec.event_time) == "date":
        yield "derived_partitions.granularity", f"{spec.event_time} is a date, it has no hours"


@_table_rule("table.partitioning")
def _partitioning(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    seen: set[tuple[str, str]] = set()
    for field in spec.table.partition_fields:
        kind = columns.get(field.column, "").partition("(")[0]
        allowed = TRANSFORM_TYPES.get(field.transform)
        if not kind:
            yield "table.partitioning", f"{field}: {_no_column(field.column, columns)}"
        elif kind in NESTED or (allowed is not None and kind not in allowed):
            yield "table.partitioning", f"{field}: {field.transform} of a {kind} is not possible"
        if (field.transform, field.column) in seen:
            yield "table.partitioning", f"{field}: a second {field.transform} of {field.column}"
        seen.add((field.transform, field.column))


def partition_cost(spec: TopicSpec) -> str | None:
    """Return how many files a commit may write; None: one for each period of time."""
    fields, seconds = spec.table.partition_fields, spec.tableflow.commit_interval_seconds
    buckets = prod(field.width or 1 for field in fields if field.transform == "bucket")
    others = [str(field) for field in fields if field.transform != "bucket"]
    if buckets == 1 and all(field.transform in _PERIODS for field in fields):
        return None
    files = f"up to {buckets:,} data files" if buckets > 1 else "a data file"
    of_each = f" for each {' and '.join(others)} of its records" if others else ""
    return (
        f"partitioned by {', '.join(map(str, fields))}, a commit writes {files}{of_each}; with a "
        f"commit every {seconds:g} seconds, up to {86_400 // seconds * buckets:,.0f} a day"
        + (" for each" if others else "")
    )


@_table_rule("upsert_views")
def _upsert_columns(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    for view, column in ((view, one) for view, names in spec.upsert_views.items() for one in names):
        if column not in columns:
            yield f"upsert_views.{view}", _no_column(column, columns)
        elif (kind := columns[column]) in NESTED:
            yield f"upsert_views.{view}", f"{column} is a {kind}, which cannot be a key"


@_table_rule("checks.not_null", "checks.accepted_values", "checks.ranges", "checks.unique")
def _checked_columns(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    checks = spec.checks
    yield from (
        (f"checks.{check}", _no_column(column, columns))
        for check in ("not_null", "accepted_values", "ranges", "unique")
        for column in getattr(checks, check)
        if column not in columns
    )
    for column in checks.unique:
        if (kind := columns.get(column, "").partition("(")[0]) in NESTED:
            yield "checks.unique", f"{column} is a {kind}, which cannot be a key"
    for column in checks.ranges:
        kind = columns.get(column, "int").partition("(")[0]
        if kind not in NUMBERS:
            yield f"checks.ranges.{column}", f"is a {kind}, which has no range"


@_table_rule("checks.accepted_values")
def _accepted_values(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    fitting: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "boolean": (bool,),
        **dict.fromkeys(WHOLE, (int,)),
        **dict.fromkeys(NUMBERS - WHOLE, (int, float)),
    }
    for column, values in spec.checks.accepted_values.items():
        field = f"checks.accepted_values.{column}"
        kind = columns.get(column, "").partition("(")[0]
        if kind and kind not in fitting:
            yield field, f"is a {kind}; values are accepted for text, numbers and booleans"
            continue
        for value in values:
            good = fitting.get(kind, (object,))
            if not isinstance(value, good) or (isinstance(value, bool) and kind != "boolean"):
                quote = " (quote it in YAML)" if kind == "string" else ""
                yield field, f"{value!r} is not a {kind}{quote}"


def _no_column(column: str, columns: dict[str, str]) -> str:
    return f"the table has no column {column}{suggestion(column, columns)}"
