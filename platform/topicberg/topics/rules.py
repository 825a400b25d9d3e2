"""Rules between the fields of a spec, and between a spec and the columns of its table.

A rule names the fields that it reads. It is not applied if one of them is invalid in itself, so
that one mistake is reported once, and all mistakes of a file together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod
from typing import TypeVar

from topicberg.datagen import kind_names
from topicberg.errors import SpecError
from topicberg.formats.time_text import EPOCHS, TIME
from topicberg.settings import Settings
from topicberg.topics.event_time import EventTimeSpec
from topicberg.topics.schema import SECTIONS, read_schema, schema_path
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

_GLUE_NAME = re.compile(r"[a-zA-Z0-9_$#.-]{1,255}")
"""AWS Glue's API, CreateSchema: a schema's name."""
_COLUMN_SOURCES = (
    "schema",
    "key.format",
    "key.file",
    "key.message",
    "key.date_times",
    "key.framing",
    "key.version",
    "key.subject",
    "tableflow.metadata_column_naming_scheme",
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

_SCHEMA_FINDINGS = (
    "schema",
    "schema.format",
    "schema.file",
    "schema.message",
    "key",
    "key.file",
    "key.message",
)

Rule = Callable[[TopicSpec, Settings], Iterator[Finding]]
TableRule = Callable[[TopicSpec, dict[str, str]], Iterator[Finding]]
_RULES: list[tuple[tuple[str, ...], Rule]] = []
_TABLE_RULES: list[tuple[tuple[str, ...], TableRule]] = []


def _remember(rules: list[tuple[tuple[str, ...], T]], *reads: str) -> Callable[[T], T]:
    def remember(rule: T) -> T:
        rules.append((reads, rule))
        return rule

    return remember


_rule, _table_rule = partial(_remember, _RULES), partial(_remember, _TABLE_RULES)


def findings(spec: TopicSpec, config: Settings, wrong: Iterable[str]) -> list[Finding]:
    """Return all violations of the rules.

    :param wrong: dotted fields that are invalid in themselves, and have some default here
    """
    wrong = set(wrong)

    def is_applicable(reads: tuple[str, ...]) -> bool:
        return not any(_overlap(field, read) for field in wrong for read in reads)

    violations = [
        finding for reads, rule in _RULES if is_applicable(reads) for finding in rule(spec, config)
    ]
    if not is_applicable(_COLUMN_SOURCES) or any(
        field in _SCHEMA_FINDINGS for field, _ in violations
    ):
        return violations  # the columns are not known
    if spec.unknown_schemas(config):
        return violations
    columns = spec.columns(config)
    for reads, table_rule in _TABLE_RULES:
        if is_applicable(reads):
            violations += table_rule(spec, columns)
    return violations


def _overlap(field: str, other: str) -> bool:
    return field == other or field.startswith(f"{other}.") or other.startswith(f"{field}.")


@_rule("schema", "key", "changelog", "write_mode", "external")
def _schema_files(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    for part, name in SECTIONS.items() if spec.external else ():
        section = spec.section(part)
        if section.file is not None and section.is_registered:
            yield f"{name}.file", "is not for an external topic: its schema is in the registry"
            return
    for part, name in SECTIONS.items():
        section = spec.section(part)
        violations = list(_schema_reference(name, section, is_external=spec.external))
        yield from violations
        if section.file and violations:
            continue
        try:
            if section.file:
                schema_path(config.schemas_dir, section.file)
            spec.known_schema(part, config)  # of the registry, as far as it is known
        except SpecError as error:
            yield f"{name}.file" if section.file else name, error.message


@_rule("external", "generator", "publishes", "topic_config")
def _external(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    for field in ("generator", "publishes", "topic_config"):
        if spec.external and getattr(spec, field):
            yield field, "is not for an external topic, which topicberg does not write or change"


def _schema_reference(
    section: str, schema: SchemaSection, *, is_external: bool
) -> Iterator[Finding]:
    needs_file = schema.has_schema
    if schema.framing == "none" and needs_file:
        yield from _own_schema(section, schema)
    elif schema.framing == "glue" and needs_file:
        yield from _glue_schema(section, schema)
    elif schema.framing != "confluent" and not needs_file:
        yield f"{section}.framing", f"format {schema.format} has no schema that a record could name"
    elif needs_file and not schema.file and not is_external:
        yield f"{section}.file", f"format {schema.format} needs a schema file"
    if schema.version != "newest" and (schema.framing != "none" or not needs_file):
        yield f"{section}.version", "is only for framing none: other records name their schemas"
    if not needs_file and schema.file is not None:
        yield f"{section}.file", f"format {schema.format} has no schema file"
    if schema.message is not None and schema.format != "protobuf":
        yield f"{section}.message", "is only for format protobuf"
    if schema.date_times != "text" and schema.format != "json":
        yield f"{section}.date_times", "is only for format json"
    for field in _json_options(schema) if schema.format != "json" else ():
        yield f"{section}.{field}", "is only for format json"
    if schema.compatibility is not None and not needs_file:
        yield f"{section}.compatibility", f"format {schema.format} has no schema in the registry"


def _json_options(schema: SchemaSection) -> list[str]:
    """Return the fields by which the engine reads JSON values otherwise than by their schema."""
    if not isinstance(schema, ValueSchema):
        return []
    is_set = {"unknown_fields": schema.unknown_fields == "keep", "conversions": schema.conversions}
    return [name for name, one in is_set.items() if one]


def _own_schema(section: str, schema: SchemaSection) -> Iterator[Finding]:
    """Check where the one schema of records that name none is."""
    if schema.file is None and schema.subject is None:
        reason = f"framing none needs a schema file, or {section}.subject: records name no schema"
        yield f"{section}.file", reason
    elif schema.file is not None:
        for name, value in (("subject", schema.subject), ("compatibility", schema.compatibility)):
            if value is not None:
                reason = f"has no effect: with framing none, {schema.file} is not registered"
                yield f"{section}.{name}", reason
        if schema.version != "newest":
            yield f"{section}.version", f"has no effect: {schema.file} is the schema of all records"


def _glue_schema(section: str, schema: SchemaSection) -> Iterator[Finding]:
    """Check what the spec says of a schema that producers register in AWS Glue."""
    for name in ("file", "compatibility"):
        if getattr(schema, name) is not None:
            reason = "is not for framing glue: producers register the schema in AWS Glue, which "
            yield f"{section}.{name}", f"{reason}topicberg only reads"
    if schema.subject is not None and not _GLUE_NAME.fullmatch(schema.subject):
        reason = f'"{schema.subject}" is no name of a schema in AWS Glue: up to 255 letters, digits'
        yield f"{section}.subject", f"{reason}, '-', '_', '$', '#' and '.'"


@_rule("schema", "key", "name")
def _glue_keys(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    both = (spec.value_schema, spec.key)
    is_one = spec.value_subject == spec.key_subject
    if is_one and all(one.has_schema and one.framing == "glue" for one in both):
        reason = f"keys and values cannot both have the schema {spec.key_subject} of AWS Glue, "
        yield "key.subject", f"{reason}whose newest version defines the columns: name the key's"


@_rule("schema", "key")
def _framing(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    for part, section in SECTIONS.items():
        own = spec.section(part)
        is_written = spec.generator is not None or spec.publishes is not None
        if own.framing != "confluent" and is_written:
            reason = "topicberg writes the topic, with the ids of schemas before each record"
            yield f"{section}.framing", f"is {own.framing}, but {reason}"
        if config.own_engine:
            continue
        for field in _json_options(own):
            yield f"{section}.{field}", "is only for topicberg's engine"
        if own.framing in ("none", "glue") or own.format == "text":
            field = "format" if own.format == "text" else "framing"
            yield (
                f"{section}.{field}",
                f"{getattr(own, field)} is only for topicberg's engine: Confluent's Tableflow "
                "reads records that name a schema of Confluent's registry, and raw bytes",
            )


@_rule("schema", "key")
def _key_field(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    field = spec.key.field
    if field is None:
        return
    if spec.key.format != "string":
        yield "key.field", f"is only for format string, the key's format is {spec.key.format}"
        return
    value = spec.value_schema
    if not value.file:
        yield "key.field", "the value has no schema, and so no fields"
        return
    try:
        path = schema_path(config.schemas_dir, value.file)
        fields = read_schema(path, value.format, value.message).columns
    except SpecError:
        return  # reported by the rule about schema files
    if field not in fields:
        yield "key.field", f"the value has no field {field}{suggestion(field, fields)}"
    elif fields[field] in NESTED | {"binary", "fixed"}:
        yield "key.field", f"{field} is a {fields[field]}, which cannot be written as text"


@_rule("changelog", "schema.format", "key.format", "write_mode")
def _changelog(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    if spec.changelog is None:
        return
    if not config.own_engine:
        reason = "is only for topicberg's engine: Confluent's Tableflow does not read envelopes"
        yield "changelog", reason
    if spec.value_schema.format not in ("avro", "json"):
        yield (
            "schema.format",
            f"is {spec.value_schema.format}; a changelog is read as avro or json: set the "
            "connector's converters to an Avro, JSON Schema or JSON converter",
        )
    if (kind := spec.key.format) not in ("none", "avro", "json"):
        yield "key.format", f"is {kind}; the keys of a changelog are avro or json, or none"
    if spec.write_mode == "upsert" and spec.key.format == "none":
        yield (
            "write_mode",
            "upsert of a changelog needs key.format avro or json; a source table without a primary "
            "key has no keys: use write_mode append",
        )


@_rule("changelog", "schema.unknown_fields", "schema.conversions")
def _changelog_values(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    for field in _json_options(spec.value_schema) if spec.changelog is not None else ():
        reason = "is not for a changelog, whose columns are those of the source's table"
        yield f"schema.{field}", reason


@_rule("changelog", "generator", "publishes")
def _changelog_writer(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    for field, value in (("generator", spec.generator), ("publishes", spec.publishes)):
        if spec.changelog is not None and value is not None:
            yield field, "a changelog is written by Debezium"


@_rule("key", "write_mode", "changelog")
def _upsert_key(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    if spec.is_compacted and spec.key.format == "none":
        yield "key.format", "write_mode upsert needs a key: it is the primary key of the table"


@_rule("topic_config", "write_mode", "changelog")
def _cleanup_policy(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    policies = {"append": ("delete",), "upsert": ("compact", "compact,delete", "delete,compact")}
    allowed = policies[spec.write_mode]
    if spec.changelog is None and spec.cleanup_policy not in allowed:
        yield (
            "topic_config",
            f"cleanup.policy {spec.cleanup_policy} contradicts write_mode {spec.write_mode}, which "
            f"needs {' or '.join(allowed[:2])}",
        )


@_rule("history", "write_mode", "tableflow.enabled")
def _history(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    if spec.history and (spec.write_mode != "upsert" or not spec.tableflow.enabled):
        yield (
            "history",
            "is only for materialized topics in write_mode upsert: other tables keep every record",
        )


@_rule("upsert_views", "write_mode", "tableflow.enabled")
def _upsert_views(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    if spec.upsert_views and (spec.write_mode != "append" or not spec.tableflow.enabled):
        yield (
            "upsert_views",
            "are only for materialized topics in write_mode append: an upsert topic's table is "
            "such a view",
        )


@_rule("tableflow.table_formats", "write_mode")
def _delta_upsert(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    if spec.write_mode == "upsert" and "DELTA" in spec.tableflow.table_formats:
        yield (
            "tableflow.table_formats",
            "DELTA needs write_mode append: a Delta log over the same files cannot represent an "
            "upsert's position deletes",
        )


@_rule("tableflow.table_formats", "tableflow.storage")
def _delta_of_confluent(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    """Sources: Confluent's pages "Storage with Tableflow" and "Integrate Catalogs with Tableflow".

    https://docs.confluent.io/cloud/current/topics/tableflow/concepts/tableflow-storage.html
    https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/overview.html
    """
    formats = spec.tableflow.table_formats
    if config.own_engine or "DELTA" not in formats:
        return
    if spec.tableflow.storage == "managed":
        reason = "Confluent's storage has Iceberg tables only: DELTA needs tableflow.storage bucket"
        yield "tableflow.table_formats", reason
    if "ICEBERG" not in formats:
        yield (
            "tableflow.table_formats",
            "needs ICEBERG as well: Confluent's Tableflow publishes Delta tables to Unity Catalog "
            "only, so neither AWS Glue nor Snowflake would have the table",
        )


@_rule("table.headers")
def _headers_of_confluent(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    if spec.table.headers == "list" and not config.own_engine:
        yield "table.headers", "list is only for topicberg's engine: Confluent's writes a map"


@_rule("tableflow.error_handling")
def _dead_letters_of_confluent(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    handling = spec.tableflow.error_handling
    if not config.own_engine and handling.mode == "LOG" and "." in (handling.target or ""):
        yield (
            "tableflow.error_handling.target",
            f"is {handling.target}: Confluent's Tableflow takes no dead-letter topic whose name "
            "has a period",
        )


@_rule("pipeline")
def _pipeline(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    if config.is_deployed and spec.namespace(config) == config.topics_namespace:
        reason = f"{spec.pipeline} is the id of the cluster: its namespace holds the topics"
        yield "pipeline", reason


@_rule("tableflow.error_handling", "name")
def _dead_letters(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    handling = spec.tableflow.error_handling
    field = "tableflow.error_handling.target"
    if handling.mode != "LOG" and handling.target is not None:
        yield field, f"is only for mode LOG, the mode is {handling.mode}"
    if handling.target == spec.name:
        yield field, "a topic cannot be its own dead-letter topic"


@_rule("freshness.warn_minutes", "freshness.fail_minutes")
def _freshness(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    if spec.freshness and spec.freshness.fail_minutes <= spec.freshness.warn_minutes:
        yield "freshness.fail_minutes", "must be more than freshness.warn_minutes"


@_rule("generator.kind")
def _generator_kind(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    if spec.generator is None:
        return
    kind = spec.generator.kind
    try:
        known = kind_names(config)
    except SpecError as error:
        yield "generator.kind", error.message
        return
    if kind not in known:
        yield "generator.kind", f"there is no kind {kind}{suggestion(kind, known)}"


@_rule("generator", "schema.format", "key")
def _generator_formats(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    if spec.generator is None:
        return
    if spec.value_schema.format not in ("avro", "json"):
        yield "generator", f"writes Avro or JSON; schema.format is {spec.value_schema.format}"
    if spec.key.format not in ("none", "string"):
        yield "generator", f"writes string keys or none; key.format is {spec.key.format}"
    if spec.key.format == "string" and spec.key.field is None:
        yield "key.field", "is required: the generator writes this field of the value as the key"


@_rule("publishes", "generator", "schema.format", "key", "tableflow.enabled")
def _publishes(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    if spec.publishes is None:
        return
    if spec.generator is not None:
        yield "publishes", "a topic has a generator or a derived table, not both"
    if spec.value_schema.format not in ("avro", "json"):
        yield "publishes", f"writes Avro or JSON; schema.format is {spec.value_schema.format}"
    if spec.key.format in ("protobuf", "bytes"):
        yield "publishes", f"writes keys as string, Avro or JSON; key.format is {spec.key.format}"
    if spec.key.format == "string" and spec.key.field is None:
        yield "key.field", "is required: this column of the published table becomes the key"


@_rule("checks.ranges")
def _ranges(spec: TopicSpec, _: Settings) -> Iterator[Finding]:
    for column, bounds in spec.checks.ranges.items():
        if bounds.min is None and bounds.max is None:
            yield f"checks.ranges.{column}", "needs min, or max, or both"
        elif bounds.min is not None and bounds.max is not None and bounds.min > bounds.max:
            yield f"checks.ranges.{column}", f"min {bounds.min} is more than max {bounds.max}"


@_table_rule()
def _column_names(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    """Find fields that become one column.

    Glue folds names to lower case, Snowflake to upper case, and Spark ignores case.
    """
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.lower(), column)
        if other != column:
            yield "schema.file", f"fields {other} and {column} would be one column in Glue"


@_rule("event_time", "changelog")
def _payload_time(spec: TopicSpec, config: Settings) -> Iterator[Finding]:
    if spec.payload_time is None:
        return
    if spec.changelog is not None:
        yield "event_time", "a field with a format is not for a changelog: name a column"
    if not config.own_engine:
        reason = "a field with a format is only for topicberg's engine: name a column"
        yield "event_time", reason


def _payload_field(rule: EventTimeSpec, columns: dict[str, str]) -> Iterator[Finding]:
    names = [
        rule.field,
        *(
            rule.field[:position]
            for position, character in enumerate(rule.field)
            if character == "."
        ),
    ]
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
        kind, remedy = columns[column], _AS_A_TIME[spec.value_schema.format]
        reason = f"{column} is a {kind}, not a time; {remedy}, or leave event_time out to use "
        reason += f"Kafka's time, {spec.metadata_column('timestamp')}"
        yield "event_time", reason


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
    for view, names in spec.upsert_views.items():
        for column in names:
            if column not in columns:
                yield f"upsert_views.{view}", _no_column(column, columns)
            elif (kind := columns[column]) in NESTED:
                yield f"upsert_views.{view}", f"{column} is a {kind}, which cannot be a key"


@_table_rule("checks.not_null", "checks.accepted_values", "checks.ranges", "checks.unique")
def _checked_columns(spec: TopicSpec, columns: dict[str, str]) -> Iterator[Finding]:
    checks = spec.checks
    for check, names in (
        ("not_null", checks.not_null),
        ("accepted_values", tuple(checks.accepted_values)),
        ("ranges", tuple(checks.ranges)),
        ("unique", checks.unique),
    ):
        for column in names:
            if column not in columns:
                yield f"checks.{check}", _no_column(column, columns)
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
