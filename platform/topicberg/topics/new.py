"""A topic spec from a subject of the schema registry, or from the records of a topic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import yaml
from pydantic import ValidationError

from topicberg.clients.registry import if_found, registry_errors
from topicberg.errors import SpecError
from topicberg.formats.envelope import AFTER, BEFORE, OPERATION, SOURCE
from topicberg.formats.framing import GLUE_BYTES, WIRE_BYTES, is_of_glue
from topicberg.formats.json import connect as connect_json
from topicberg.formats.json.syntax import Number
from topicberg.formats.table import BY_SCHEMA_TYPE, FORMATS
from topicberg.topics.discovery import FoundSchema, FoundTopic, found_document
from topicberg.topics.inference import TimeField, infer, json_objects, unusable_names
from topicberg.topics.loader import check_pattern, check_topics
from topicberg.topics.patterns import FIELD
from topicberg.topics.spec import TopicSpec
from topicberg.wording import count, listed

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from topicberg.formats.glue import GlueVersion
    from topicberg.settings import Settings

_MAX_HOURLY_DAYS = 730
"""Older records get daily partitions: Dagster would list more than 17,520 hours."""
_TRANSACTION = {
    "type": ["null", "object"],
    "properties": {
        "id": {"type": ["null", "string"]},
        "total_order": {"type": ["null", "integer"]},
        "data_collection_order": {"type": ["null", "integer"]},
    },
}
"""Of Debezium's envelope: null unless the connector provides it (provide.transaction.metadata)."""
_MAX_TYPES = 20
_JSON_TYPES = {bool: "boolean", int: "integer", Number: "number", str: "string"}


@dataclass(frozen=True)
class _Schema:
    """A schema that becomes a file."""

    format: str
    text: str
    subject: str | None = None
    """None: TopicNameStrategy's."""

    def section(self, name: str, half: str = "") -> dict[str, str]:
        """Return the section of a spec of the topic ``name``."""
        file = f"{name}{half}.{FORMATS[self.format].suffix}"
        named = {} if self.subject is None else {"subject": self.subject}
        return {"format": self.format, "file": file, **named}


def new_topic(
    name: str, subject: str, pipeline: str, registry: SchemaRegistryClient, config: Settings
) -> list[Path]:
    """Write the spec and the schema files of a topic that Kafka does not have; return their paths.

    :param subject: its newest schema becomes the schema of the topic's values
    :raises SpecError: a file exists already, a schema has references, or the spec is invalid
    :raises TopicbergError: the registry does not answer, or has no such subject
    """
    if (value := _newest(subject, f"{name}-value", registry)) is None:
        raise SpecError(
            f"the schema registry has no subject {subject}",
            hint="list its subjects, or register the schema first",
        )
    own = f"{name}-key"
    subjects = dict.fromkeys((own, f"{subject.removesuffix('-value')}-key"))
    key = next(filter(None, (_newest(each, own, registry) for each in subjects)), None)
    return _written(name, f"the subject {subject}", pipeline, (value, key), config)


def new_external_topic(
    name: str, found_topic: FoundTopic, pipeline: str, config: Settings, *, is_enabled: bool
) -> Path:
    """Write the spec of a topic that Kafka has and whose schemas the registry has; return its path.

    :raises SpecError: the file exists already, the registry has no schema, or the spec is invalid
    """
    document = _external_document(name, found_topic, pipeline, config)
    return _write_valid_spec(document, {}, config, is_enabled=is_enabled)[0]


def new_topics(
    names: Mapping[str, FoundTopic],
    pipeline: Callable[[str], str],
    config: Settings,
    *,
    is_enabled: bool,
) -> tuple[list[str], dict[str, str]]:
    """Write the specs of Kafka's topics; return those that have one, and why others have none."""
    made: dict[str, Path] = {}
    refused: dict[str, str] = {}
    for name, topic in names.items():
        try:
            if topic.problem is not None:
                raise SpecError(topic.problem)
            document = _external_document(name, topic, pipeline(name), config)
            made[name] = _write_spec(document, {}, config, is_enabled=is_enabled)[0]
        except SpecError as error:
            refused[name] = error.message
    for problem in check_topics(config)[1]:
        if (name := Path(problem.file).stem) in made:
            made.pop(name).unlink()
            refused[name] = str(problem)
    return list(made), refused


def new_pattern(
    name: str, match: str, pipeline: str, config: Settings, *, is_enabled: bool
) -> Path:
    """Write a file that describes all topics whose names match; return its path.

    :raises SpecError: the file exists, or the pattern is invalid
    """
    path = config.topics_dir / f"{name}.yaml"
    defaults = {"pipeline": pipeline, **_reviewed(is_enabled)}
    document = {FIELD: {"match": match, "defaults": defaults}}
    if reasons := [f"{field}: {reason}" for field, reason in check_pattern(document)[1]]:
        raise SpecError("\n".join([f"no pattern was written for {match!r}:", *reasons]))
    _write({path: _yaml(document)})
    return path


def new_topic_from_kafka(
    name: str,
    read: Sequence[tuple[bytes | None, bytes | None]],
    pipeline: str,
    config: Settings,
    has: FoundTopic,
    glue: Callable[[UUID], GlueVersion | None],
    *,
    is_enabled: bool,
    types: Callable[[int], str] = "schema {}".format,
) -> tuple[list[Path], list[str]]:
    """Write the spec and the schema files of a topic by its newest records.

    :param read: their keys and values, those of the newest record last
    :param has: what Kafka and the registry have of the topic
    :param glue: returns a version of a schema in AWS Glue, if it has it
    :param types: returns the subjects and the type of a schema of the registry, by its id
    :return: the paths, and what was found
    :raises SpecError: there are no records, or their values are no JSON objects
    """
    values = [value for _, value in read if value is not None]
    keys = [key for key, _ in read if key is not None]
    if values and is_of_glue(values[-1]):
        return _new_of_glue(
            name, values[-1], keys, pipeline, config, has, glue, is_enabled=is_enabled
        )
    connect_schema = _connect_schema(values)
    if has.value is not None and connect_schema is None:
        return [new_external_topic(name, has, pipeline, config, is_enabled=is_enabled)], []
    if not values:
        raise SpecError(
            f"topic {name} has no record with a value",
            hint="wait for the first record, or use --from-subject",
        )
    where = f"the newest records of the topic {name}"
    if values[-1][:1] == b"\0":
        ids = Counter(int.from_bytes(v[1:WIRE_BYTES]) for v in values if v[:1] == b"\0")
        seen = [f"{types(number)} in {count(n, 'record')}" for number, n in ids.most_common()]
        raise SpecError(
            f"{where} name schemas of the registry, which has no subject {name}-value: "
            f"{listed(seen, _MAX_TYPES)}",
            hint="use --from-subject with one of these subjects"
            + ("; a table has the records of one of them" if len(seen) > 1 else ""),
        )
    if connect_schema is not None:
        text = connect_json.json_schema(connect_schema)
        notes = [f"{where} are JSON with a schema of Kafka Connect in each record"]
        if not is_envelope(text):
            raise SpecError(
                f"{notes[0]}, but not Debezium's envelope (before, after, source, op)",
                hint="set schemas.enable of the connector's JSON converter to false, or let it use "
                "a converter with a schema registry",
            )
    else:
        text, untyped = inferred_schema(values, f"{name}.Envelope")
        if not is_envelope(text):
            return _new_plain(name, values, keys, pipeline, config, has, is_enabled=is_enabled)
        notes = [
            f"{where} are JSON without a schema: the schema file has the types that JSON shows. "
            "Add columns that it lacks, and a `title` for dates and times: docs/cdc.md lists them"
        ]
        if untyped:
            notes.append(f"null in all of these records, so set their types: {', '.join(untyped)}")
    key = None
    if (own := _connect_schema(keys)) is not None:
        key = connect_json.json_schema(own)
    elif keys and keys[-1][:1] == b"{":
        key, _ = inferred_schema(keys, f"{name}.Key")
    schemas = _Schema("json", text), None if key is None else _Schema("json", key)
    return _written(name, where, pipeline, schemas, config, has, is_enabled=is_enabled), notes


def _connect_schema(records: Sequence[bytes]) -> dict[str, Any] | None:
    """Return the schema of Kafka Connect that the newest record has, if it has one."""
    opening = connect_json.opening(records[-1]) if records else None
    return None if opening is None else opening.schema


def _new_of_glue(
    name: str,
    value: bytes,
    keys: Sequence[bytes],
    pipeline: str,
    config: Settings,
    has: FoundTopic,
    glue: Callable[[UUID], GlueVersion | None],
    *,
    is_enabled: bool,
) -> tuple[list[Path], list[str]]:
    """Write the spec of a topic whose schemas are in AWS Glue; return its path, and notes."""
    version = _version_of(name, "value", value, config, glue)
    topic = has.model_copy(update={"value": found_in_glue(name, version), "key": None})
    given: dict[str, Any] = {"schema": {"framing": "glue"}, "key": _raw_key(keys)}
    notes = [
        f"the values name version {version.number} of the schema {version.schema_name} in AWS Glue"
    ]
    if keys and is_of_glue(keys[-1]):
        key = _version_of(name, "key", keys[-1], config, glue)
        topic.key, given["key"] = found_in_glue(name, key), {"framing": "glue"}
        notes.append(
            f"the keys name version {key.number} of the schema {key.schema_name} in AWS Glue"
        )
    where = "Kafka and AWS Glue Schema Registry"
    document = _external_document(name, topic, pipeline, config, given, where=where)
    return _write_valid_spec(document, {}, config, is_enabled=is_enabled), notes


def _version_of(
    name: str, side: str, raw: bytes, config: Settings, glue: Callable[[UUID], GlueVersion | None]
) -> GlueVersion:
    """:raises SpecError: AWS Glue does not have the version, or has it in another registry"""
    uuid = UUID(bytes=raw[2:GLUE_BYTES])
    version = glue(uuid)
    where = f"the newest {side} of the topic {name} names the schema version {uuid}"
    if version is None:
        raise SpecError(
            f"{where}, which AWS Glue Schema Registry does not have in {config.aws_region}",
            hint="check TOPICBERG_AWS_REGION, and the account of this process",
        )
    if version.registry != config.glue_schema_registry:
        raise SpecError(
            f"{where}, which is of the registry {version.registry} of AWS Glue, not of "
            f"{config.glue_schema_registry}",
            hint=f"set TOPICBERG_GLUE_SCHEMA_REGISTRY to {version.registry}",
        )
    return version


def found_schema(kind: str, version: int, text: str, subject: str | None) -> FoundSchema:
    """Return what is known of a schema of a format; subject None: the default one."""
    is_change = kind in ("avro", "json") and is_envelope(text)
    return FoundSchema.model_validate(
        {"format": kind, "version": version, "is_envelope": is_change, "subject": subject}
    )


def found_in_glue(topic: str, version: GlueVersion) -> FoundSchema:
    """Return what is known of a schema of AWS Glue that a topic has."""
    schema, name = version.schema, version.schema_name
    return found_schema(
        schema.schema_type.lower(),
        version=version.number,
        text=schema.text,
        subject=None if name == topic else name,
    )


def _new_plain(
    name: str,
    values: Sequence[bytes],
    keys: Sequence[bytes],
    pipeline: str,
    config: Settings,
    has: FoundTopic,
    *,
    is_enabled: bool,
) -> tuple[list[Path], list[str]]:
    """Write the spec and schema files of a topic of plain JSON; return their paths, and guesses."""
    try:
        inference = infer(values, name)
    except ValueError as error:
        raise _unreadable(name, str(error)) from None
    if not inference.schema["properties"]:
        raise _unreadable(name, "none of the records has a field that can be a column")
    own = {"format": "json", "framing": "none"}
    schema = {**own, "file": f"{name}.json"}
    if any("format" in inner_schema for inner_schema in _inner_schemas(inference.schema)):
        schema["date_times"] = "timestamp"
    if inference.left_out:
        schema["unknown_fields"] = "keep"
    texts = {config.schemas_dir / f"{name}.json": f"{inference.text}\n"}
    key, key_text = _raw_key(keys), _key_schema(name, keys)
    if key_text is not None:
        key = {**own, "file": f"{name}-key.json"}
        texts[config.schemas_dir / f"{name}-key.json"] = f"{key_text}\n"
    is_upsert = has.is_compacted and bool(keys)
    document = {
        "name": name,
        "pipeline": pipeline,
        "description": f"Records of the topic {name}, plain JSON.",
        "schema": schema,
        "key": key,
        "external": True,
        "partitions": has.partitions,
        "write_mode": "upsert" if is_upsert else "append",
    }
    notes = [*inference.notes(), f"keys: {key['format'] if keys else 'none in these records'}"]
    if keys and key_text is None and "key" in inference.schema["properties"]:
        notes.append("the values have a field key, so no column has Kafka's keys")
    if (time := next(iter(inference.times), None)) is not None:
        document["event_time"] = {"field": time.name, "format": time.format}
        notes.append(f"event_time: the field {time.name}, {time.format}")
    else:
        notes.append("event_time: Kafka's time, as no field has a time in nearly all records")
    if not is_upsert:
        document |= _partitions(time)
    return _write_valid_spec(document, texts, config, is_enabled=is_enabled), notes


def _unreadable(name: str, reason: str) -> SpecError:
    return SpecError(
        f"topic {name}: {reason}",
        hint="write the spec manually, with schema.format text or bytes: docs/add-a-topic.md",
    )


def _key_schema(name: str, keys: Sequence[bytes]) -> str | None:
    """Return the schema of the keys if all of them are JSON objects."""
    with suppress(ValueError):
        found = infer(keys, f"{name}-key")
        if not (found.others or found.untyped or found.left_out):
            return found.text
    return None


def _raw_key(keys: Sequence[bytes]) -> dict[str, Any]:
    """Return the section of keys without a schema: text in UTF-8, or bytes."""
    try:
        for key in keys:
            key.decode()
    except UnicodeDecodeError:
        return {"format": "bytes"}
    return {"format": "string" if keys else "bytes"}


def _inner_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the types of a JSON Schema at every depth."""
    if isinstance(schema, dict):
        yield schema
        inner = (schema.get("items"), schema.get("additionalProperties"))
        for each in (*schema.get("properties", {}).values(), *inner):
            yield from _inner_schemas(each)


def inferred_schema(records: Sequence[bytes], title: str) -> tuple[str, list[str]]:
    """Return a JSON Schema that JSON records fit, and the columns that are null in all of them;
    raise SpecError if they are not JSON objects."""
    payloads = [
        value["payload"] if value.keys() == {"schema", "payload"} else value
        for value in json_objects(records)
    ]
    if not (values := [payload for payload in payloads if isinstance(payload, dict)]):
        raise SpecError(
            "the newest records are neither in Confluent's wire format nor JSON objects",
            hint="write the spec manually: docs/add-a-topic.md",
        )
    if all(value.keys() >= {BEFORE, AFTER} for value in values):  # both are rows of one table
        rows = [row for value in values for row in (value[BEFORE], value[AFTER]) if row]
        values = [*values, *({BEFORE: row, AFTER: row} for row in rows)]
    untyped: list[str] = []
    schema = {"title": title, **_inferred(values, "", untyped)}
    if "transaction" in untyped:
        schema["properties"]["transaction"] = _TRANSACTION
    inside = {name.removeprefix(f"{AFTER}.") for name in untyped if name.startswith(AFTER)}
    return json.dumps(schema, indent=2), sorted(inside)


def _inferred(values: Sequence[Any], path: str, untyped: list[str]) -> dict[str, Any]:
    if not (present := [value for value in values if value is not None]):
        untyped.append(path)
        return {}
    if all(isinstance(value, dict) for value in present):
        names = dict.fromkeys(name for value in present for name in value)
        if unusable_names(names) or all(name.isdecimal() for name in names):
            return {}
        inner = {
            name: _inferred([v.get(name) for v in present], f"{path}.{name}".lstrip("."), untyped)
            for name in names
        }
        return {"type": "object", "properties": inner} if inner else {}
    if all(isinstance(value, list) for value in present):
        items = [item for value in present for item in value]
        return {"type": "array", "items": _inferred(items, path, untyped)}
    kinds = {_JSON_TYPES.get(type(value), "") for value in present}
    kinds -= {"integer"} if "number" in kinds else set()
    return {"type": ["null", *kinds]} if len(kinds) == 1 and "" not in kinds else {}


def _external_document(
    name: str,
    topic: FoundTopic,
    pipeline: str,
    config: Settings,
    given: Mapping[str, Any] = MappingProxyType({}),
    *,
    where: str = "Kafka and the schema registry",
) -> dict[str, Any]:
    """Return the spec of a topic by what is known of it; ``where``: the source of that."""
    document = found_document(name, topic, pipeline, given, own_engine=config.own_engine)
    if document is None:
        raise SpecError(
            f"the registry has no subject {name}-value",
            hint="register a schema, or use --from-subject with the subject of the topic's values; "
            f"of plain JSON, `topicberg topics new {name} --from-kafka` infers the schema",
        )
    changes = "changelog" in document
    document["description"] = _description(name, where, changes=changes)
    # Current rows of changes move to the partition of each change: they are not read by hours.
    if not (changes and document["write_mode"] == "upsert"):
        document |= _partitions()
    return document


def _written(
    name: str,
    where: str,
    pipeline: str,
    schemas: tuple[_Schema, _Schema | None],
    config: Settings,
    has: FoundTopic | None = None,
    *,
    is_enabled: bool = True,
) -> list[Path]:
    """Write a spec and its schema files, of the value and perhaps the key; return their paths, the
    spec's first."""
    value, key = schemas
    changes = config.own_engine and value.format in ("avro", "json") and is_envelope(value.text)
    if changes and key is not None and key.format != value.format:
        key = None  # its bytes are not those of the connector's converter
    description = _description(name, where, changes=changes)
    document: dict[str, Any] = {"name": name, "pipeline": pipeline, "description": description}
    texts: dict[Path, str] = {}
    for section, schema, half in (("schema", value, ""), ("key", key, "-key")):
        if schema is not None:
            document[section] = schema.section(name, half)
            texts[config.schemas_dir / document[section]["file"]] = f"{schema.text}\n"
        if schema is not None and changes and schema.format == "json":
            # With BACKWARD, the registry refuses a new property of an open object.
            document[section]["compatibility"] = "NONE"
    is_upsert = changes and key is not None
    document["partitions"] = has.partitions if has else 6
    document["write_mode"] = "upsert" if is_upsert else "append"
    if changes:
        document["changelog"] = {"format": "debezium"}
    if not is_upsert:
        document |= _partitions()
    return _write_valid_spec(document, texts, config, is_enabled=is_enabled)


def _write_valid_spec(
    document: Mapping[str, Any], texts: Mapping[Path, str], config: Settings, *, is_enabled: bool
) -> list[Path]:
    """Write a spec and its schema files; return their paths. If it is invalid, no file is left."""
    paths = _write_spec(document, texts, config, is_enabled=is_enabled)
    if mine := [str(p) for p in check_topics(config)[1] if Path(p.file).name == paths[0].name]:
        for path in paths:
            path.unlink()
        raise SpecError("\n".join([f"no spec was written for {document['name']}:", *mine]))
    return paths


def _write_spec(
    document: Mapping[str, Any], texts: Mapping[Path, str], config: Settings, *, is_enabled: bool
) -> list[Path]:
    """Write a spec, without the rules between its fields, and its schema files."""
    try:
        TopicSpec.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}"
        raise SpecError(f"no spec was written for {document['name']!r}: {reason}") from None
    spec_file = config.topics_dir / f"{document['name']}.yaml"
    _write({**texts, spec_file: _yaml({**document, **_reviewed(is_enabled)})})
    return [spec_file, *texts]


def _write(texts: Mapping[Path, str]) -> None:
    """:raises SpecError: one of the files exists already; none is written"""
    if path := next(filter(Path.exists, texts), None):
        raise SpecError(f"{path} exists already", hint="edit it, or choose another name")
    for path, text in texts.items():
        path.write_text(text)


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _reviewed(is_enabled: bool) -> dict[str, Any]:
    """Return the fields by which a topic is materialized only after its file was reviewed."""
    return {} if is_enabled else {"tableflow": {"enabled": False}}


def _partitions(time: TimeField | None = None) -> dict[str, Any]:
    """Return the partitions of a table, and of those derived from it, by event time or Kafka's."""
    today = datetime.now(UTC).date()
    column, start = ("$$event-time", time.first) if time else ("$$timestamp", today)
    unit, granularity = "hour", "hourly"
    if (today - start).days > _MAX_HOURLY_DAYS:
        # DuckDB misses rows of days and months before 1970.
        unit, granularity = "year" if start.year < 1970 else "day", "daily"
    return {
        "table": {"partitioning": [f"{unit}({column})"]},
        "derived_partitions": {"granularity": granularity, "start": start},
    }


def _description(name: str, where: str, *, changes: bool) -> str:
    if changes:
        return f"Changes of a database's table, from {where}."
    if where.startswith("Kafka and "):
        return f"Records of the topic {name}."
    return f"Records of {where.removeprefix('the newest records of ')}."


def _newest(subject: str, usual: str, registry: SchemaRegistryClient) -> _Schema | None:
    """Return the newest schema of a subject; None: the subject does not exist."""
    with registry_errors(f"the subject {subject}"):
        latest = if_found(registry.get_latest_version, subject)
    if latest is None:
        return None
    if latest.schema.references:
        raise SpecError(
            f"subject {subject}: its schema refers to other subjects",
            hint="create the topic first: the schemas of an existing topic stay in the registry",
        )
    if (schema_type := latest.schema.schema_type or "AVRO") not in BY_SCHEMA_TYPE:
        raise SpecError(
            f"subject {subject}: its schema is of the unknown type {schema_type}",
            hint=f"use {', '.join(BY_SCHEMA_TYPE)}",
        )
    kind = BY_SCHEMA_TYPE[schema_type].name
    return _Schema(kind, latest.schema.schema_str or "", None if subject == usual else subject)


def is_envelope(text: str) -> bool:
    """Return whether an Avro or JSON Schema is Debezium's envelope of a table's changes."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return False
    match schema:
        case {"type": "record", "fields": list(fields)}:
            names = [field.get("name") for field in fields if isinstance(field, dict)]
        case {"properties": dict(properties)}:
            names = list(properties)
        case _:
            return False
    return all(name in names for name in (BEFORE, AFTER, SOURCE, OPERATION))


def chosen_for_changes(config: Settings, name: str) -> str | None:
    """Return what :func:`new_topic` chose for Debezium's changes; None: the records are others."""
    document = yaml.safe_load((config.topics_dir / f"{name}.yaml").read_text())
    spec = TopicSpec.model_validate(document)
    if spec.changelog is None:
        return None
    if spec.write_mode == "upsert":
        return (
            "the schema is Debezium's envelope: the table keeps the current rows (write_mode "
            "upsert); write_mode append keeps every change instead"
        )
    return (
        "the schema is Debezium's envelope, without a schema of keys: the table keeps every change "
        "(write_mode append), because current rows need a primary key"
    )
