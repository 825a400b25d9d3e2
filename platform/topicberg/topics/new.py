"""A topic spec from a subject of the schema registry, or from the records of a topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from topicberg.clients.registry import if_found, registry_errors
from topicberg.errors import SpecError
from topicberg.formats import connect_json
from topicberg.formats.envelope import AFTER, BEFORE, OPERATION, SOURCE
from topicberg.topics.discovery import SUFFIXES, FoundTopic
from topicberg.topics.loader import check_pattern, check_topics
from topicberg.topics.patterns import FIELD
from topicberg.topics.spec import TopicSpec

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def new_topic(
    name: str,
    subject: str,
    pipeline: str,
    endpoints: Endpoints,
    config: Settings,
    has: FoundTopic | None = None,
    *,
    is_one_of_many: bool = False,
) -> tuple[Path, Path]:
    """Write the spec and the schema file of a topic; return their paths.

    :param subject: its newest schema becomes the schema of the topic's values
    :param has: see :func:`_written`
    :param is_one_of_many: see :func:`_written`
    :raises SpecError: a file exists already, the schema has references, or the spec is invalid
    :raises TopicbergError: the registry does not answer, or has no such subject
    """
    with registry_errors(f"the subject {subject}"):
        registered = endpoints.schema_registry_client().get_latest_version(subject).schema
    kind = registered.schema_type or "AVRO"
    if registered.references:
        raise SpecError(
            f"subject {subject}: its schema refers to other subjects",
            hint="put the definitions into one schema, or write the spec manually",
        )
    text = registered.schema_str or ""
    key = _key_schema(subject, endpoints, kind) if is_envelope(text) else None
    return _written(
        *(name, f"the subject {subject}", pipeline, kind, (text, key), config, has),
        is_one_of_many=is_one_of_many,
    )


def new_topics(
    names: Mapping[str, FoundTopic],
    pipeline: Callable[[str], str],
    endpoints: Endpoints,
    config: Settings,
) -> tuple[list[str], dict[str, str]]:
    """Write the specs and the schema files of topics that Kafka has.

    :param pipeline: returns that of a topic
    :returns: the topics with a new spec, and why others have none
    :raises TopicbergError: the registry does not answer
    """
    made: dict[str, set[Path]] = {}
    refused: dict[str, str] = {}
    with registry_errors("the subjects"):
        subjects = set(endpoints.schema_registry_client().get_subjects())
    for name, has in names.items():
        if has.problem is not None:
            refused[name] = has.problem
            continue
        if f"{name}-value" not in subjects:
            refused[name] = f"the registry has no subject {name}-value"
            continue
        before = set(config.schemas_dir.iterdir())
        try:
            spec_file, _ = new_topic(
                *(name, f"{name}-value", pipeline(name), endpoints, config, has),
                is_one_of_many=True,
            )
        except SpecError as error:
            refused[name] = error.message
        else:
            made[name] = {spec_file, *(set(config.schemas_dir.iterdir()) - before)}
    for problem in check_topics(config)[1]:
        if (name := Path(problem.file).stem) in made:
            for path in made.pop(name):
                path.unlink()
            refused[name] = str(problem)
    return list(made), refused


def new_pattern(name: str, match: str, pipeline: str, config: Settings) -> Path:
    """Write a file that describes all topics whose names match; return its path.

    :raises SpecError: the file exists, or the pattern is invalid
    """
    path = config.topics_dir / f"{name}.yaml"
    if path.exists():
        raise SpecError(f"{path} exists already", hint="edit it, or choose another name")
    document = {FIELD: {"match": match, "defaults": {"pipeline": pipeline}}}
    if found := check_pattern(document)[1]:
        reasons = [f"{field}: {reason}" for field, reason in found]
        raise SpecError("\n".join([f"no pattern was written for {match!r}:", *reasons]))
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    return path


def new_topic_from_kafka(
    name: str,
    read: Sequence[tuple[bytes | None, bytes | None]],
    pipeline: str,
    endpoints: Endpoints,
    config: Settings,
    has: FoundTopic | None = None,
) -> tuple[tuple[Path, Path], list[str]]:
    """Write the spec and the schema file of a topic by its newest records.

    :param read: their keys and values, those of the newest record last
    :param has: see :func:`_written`
    :return: the paths, and what was found
    :raises SpecError: there are no records, or their values have no schema and are no changes
    :raises TopicbergError: the registry does not answer
    """
    if not (values := [value for _, value in read if value is not None]):
        raise SpecError(
            f"topic {name} has no record with a value",
            hint="wait for the first record, or use --from-subject",
        )
    where = f"the newest records of the topic {name}"
    if values[-1][:1] == b"\0":
        paths = new_topic(name, f"{name}-value", pipeline, endpoints, config, has)
        return paths, [f"{where} name a schema of the registry"]
    keys = [key for key, _ in read if key is not None]
    begin = connect_json.opening(values[-1])
    if begin is not None and begin.schema is not None:
        text, notes = connect_json.json_schema(begin.schema), []
        notes.append(f"{where} are JSON with a schema of Kafka Connect in each record")
    else:
        text, untyped = inferred_schema(values, f"{name}.Envelope")
        notes = [
            f"{where} are JSON without a schema: the schema file has the types that JSON shows. "
            "Add columns that it lacks, and a `title` for dates and times: docs/cdc.md lists them"
        ]
        if untyped:
            notes.append(f"null in all of these records, so set their types: {', '.join(untyped)}")
    if not is_envelope(text):
        raise SpecError(
            f"{where} are JSON, but not Debezium's envelope (before, after, source, op)",
            hint="let the producer use a serializer with a schema registry, or write a spec with "
            "`schema: {format: none}`",
        )
    key = None
    if keys:
        own = connect_json.opening(keys[-1])
        if own is not None and own.schema is not None:
            key = connect_json.json_schema(own.schema)
        elif keys[-1][:1] == b"{":
            key, _ = inferred_schema(keys, f"{name}.Key")
    return _written(name, where, pipeline, "JSON", (text, key), config, has), notes


def inferred_schema(records: Sequence[bytes], title: str) -> tuple[str, list[str]]:
    """Return a JSON Schema that JSON records fit, and the columns that are null in all of them.

    :raises SpecError: they are not JSON objects
    """
    values = []
    for raw in records:
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
            value = value["payload"]
        if isinstance(value, dict):
            values.append(value)
    if not values:
        raise SpecError(
            "the newest records are neither in Confluent's wire format nor JSON objects",
            hint="write the spec manually: docs/add-a-topic.md",
        )
    if all(value.keys() >= {BEFORE, AFTER} for value in values):  # both are rows of one table
        rows = [row for value in values for row in (value[BEFORE], value[AFTER]) if row]
        values = [*values, *({BEFORE: row, AFTER: row} for row in rows)]
    untyped: list[str] = []
    found = {"title": title, **_inferred(values, "", untyped)}
    inside = sorted({one.removeprefix(f"{AFTER}.") for one in untyped if one.startswith(AFTER)})
    return json.dumps(found, indent=2), inside


def _inferred(values: Sequence[Any], path: str, untyped: list[str]) -> dict[str, Any]:
    present = [value for value in values if value is not None]
    if not present:
        untyped.append(path)
        return {}
    if all(isinstance(value, dict) for value in present):
        names = dict.fromkeys(name for value in present for name in value)
        inner = {
            name: _inferred(
                [value.get(name) for value in present], f"{path}.{name}".lstrip("."), untyped
            )
            for name in names
        }
        return {"type": "object", "properties": inner} if inner else {}
    if all(isinstance(value, list) for value in present):
        items = [item for value in present for item in value]
        return {"type": "array", "items": _inferred(items, path, untyped)}
    kinds = {_JSON_TYPES.get(type(value), "") for value in present}
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    return {"type": ["null", *kinds]} if len(kinds) == 1 and "" not in kinds else {}


def _written(
    name: str,
    where: str,
    pipeline: str,
    kind: str,
    schemas: tuple[str, str | None],
    config: Settings,
    has: FoundTopic | None,
    *,
    is_one_of_many: bool = False,
) -> tuple[Path, Path]:
    """Write a spec and its schema files; return the paths of the spec and of the value's schema.

    :param where: what the schemas come from
    :param schemas: of the value; of the key, if the records are changes
    :param has: what Kafka has of the topic; None: it does not exist
    :param is_one_of_many: the caller checks all specs that it writes together
    :raises SpecError: a file exists already, or the spec is invalid
    """
    text, key = schemas
    document = _document(name, where, pipeline, kind.lower(), f"{name}.{SUFFIXES[kind.lower()]}")
    schema_file = config.schemas_dir / document["schema"]["file"]
    spec_file = config.topics_dir / f"{name}.yaml"
    texts = {schema_file: f"{text}\n"}
    if kind in ("AVRO", "JSON") and is_envelope(text):
        _as_changelog(document, where, key is not None)
        if key is not None:
            texts[config.schemas_dir / document["key"]["file"]] = f"{key}\n"
    if has is not None:
        document["partitions"] = has.partitions
        if has.is_compacted and "changelog" not in document:
            document |= {"write_mode": "upsert", "key": {"format": "string"}}
    for path in (spec_file, *texts):
        if path.exists():
            raise SpecError(f"{path} exists already", hint="edit it, or choose another name")
    for path, text in texts.items():
        path.write_text(text)
    spec_file.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    if is_one_of_many:
        return spec_file, schema_file
    _, problems = check_topics(config)
    mine = [str(problem) for problem in problems if Path(problem.file).name == spec_file.name]
    if mine:
        for path in (spec_file, *texts):
            path.unlink()
        raise SpecError("\n".join([f"no spec was written for {name}:", *mine]))
    return spec_file, schema_file


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


def _key_schema(subject: str, endpoints: Endpoints, kind: str) -> str | None:
    """Return the newest schema of the keys; None: they have none."""
    name = f"{subject.removesuffix('-value')}-key"
    with registry_errors(f"the subject {name}"):
        latest = if_found(endpoints.schema_registry_client().get_latest_version, name)
    if latest is None:
        return None
    found = latest.schema
    is_usable = (found.schema_type or "AVRO") == kind and not found.references
    return found.schema_str if is_usable else None


def _as_changelog(document: dict[str, Any], where: str, has_key: bool) -> None:
    """Let the spec keep the current rows of a source's table, or its changes if it has no keys."""
    document["description"] = f"Changes of a database's table, from {where}."
    document["changelog"] = {"format": "debezium"}
    if (kind := document["schema"]["format"]) == "json":
        # With BACKWARD, the registry refuses a new property of an open object.
        document["schema"]["compatibility"] = "NONE"
    if has_key:
        stem, _, suffix = document["schema"]["file"].rpartition(".")
        key = {"format": kind, "file": f"{stem}-key.{suffix}"}
        document["key"] = key | ({"compatibility": "NONE"} if kind == "json" else {})
        document["write_mode"] = "upsert"
        # A row moves to the partition of each change; current rows are not read by hours.
        del document["table"], document["derived_partitions"]


def _document(name: str, where: str, pipeline: str, kind: str, file: str) -> dict[str, Any]:
    """:raises SpecError: the name of the topic or the pipeline is invalid"""
    document = {
        "name": name,
        "pipeline": pipeline,
        "description": f"Records of {where.removeprefix('the newest records of ')}.",
        "schema": {"format": kind, "file": file},
        "partitions": 6,
        "write_mode": "append",
        "table": {"partitioning": ["hour($$timestamp)"]},
        "derived_partitions": {"granularity": "hourly", "start": datetime.now(UTC).date()},
    }
    try:
        TopicSpec.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}"
        raise SpecError(f"no spec was written for {name!r}: {reason}") from None
    return document


def chosen_for_changes(config: Settings, name: str) -> str | None:
    """Return what :func:`new_topic` chose for Debezium's changes; None: the records are others."""
    text = (config.topics_dir / f"{name}.yaml").read_text()
    spec = TopicSpec.model_validate(yaml.safe_load(text))
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
