"""A topic spec from a subject of the schema registry."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from confluent_kafka.schema_registry.error import SchemaRegistryError
from pydantic import ValidationError

from topicberg.clients.registry import registry_errors
from topicberg.errors import SpecError
from topicberg.formats.envelope import AFTER, BEFORE, OPERATION, SOURCE
from topicberg.formats.subjects import NOT_FOUND
from topicberg.topics.loader import check_topics
from topicberg.topics.spec import TopicSpec

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings

_SUFFIXES = {"AVRO": "avsc", "JSON": "json", "PROTOBUF": "proto"}


def new_topic(
    name: str, subject: str, pipeline: str, endpoints: Endpoints, config: Settings
) -> tuple[Path, Path]:
    """Write the spec and the schema file of a topic; return their paths.

    :param subject: its newest schema becomes the schema of the topic's values
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
    document = _document(name, subject, pipeline, kind.lower(), f"{name}.{_SUFFIXES[kind]}")
    schema_file = config.schemas_dir / document["schema"]["file"]
    spec_file = config.topics_dir / f"{name}.yaml"
    texts = {schema_file: f"{registered.schema_str}\n"}
    if kind == "AVRO" and is_envelope(registered.schema_str or ""):
        key = _key_schema(subject, endpoints)
        _as_changelog(document, name, subject, key is not None)
        if key is not None:
            texts[config.schemas_dir / document["key"]["file"]] = f"{key}\n"
    for path in (spec_file, *texts):
        if path.exists():
            raise SpecError(f"{path} exists already", hint="edit it, or choose another name")
    for path, text in texts.items():
        path.write_text(text)
    spec_file.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    _, problems = check_topics(config)
    mine = [str(problem) for problem in problems if Path(problem.file).name == spec_file.name]
    if mine:
        for path in (spec_file, *texts):
            path.unlink()
        raise SpecError("\n".join([f"no spec was written for {name}:", *mine]))
    return spec_file, schema_file


def is_envelope(text: str) -> bool:
    """Return whether an Avro schema is Debezium's envelope of a table's changes."""
    try:
        schema = json.loads(text)
    except ValueError:
        return False
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return False
    names = {field.get("name") for field in schema.get("fields", ()) if isinstance(field, dict)}
    return names >= {BEFORE, AFTER, SOURCE, OPERATION}


def _key_schema(subject: str, endpoints: Endpoints) -> str | None:
    """Return the newest schema of the keys; None: they have none."""
    name = f"{subject.removesuffix('-value')}-key"
    with registry_errors(f"the subject {name}"):
        try:
            found = endpoints.schema_registry_client().get_latest_version(name).schema
        except SchemaRegistryError as error:
            if error.http_status_code == NOT_FOUND:
                return None
            raise
    is_usable = (found.schema_type or "AVRO") == "AVRO" and not found.references
    return found.schema_str if is_usable else None


def _as_changelog(document: dict[str, Any], name: str, subject: str, has_key: bool) -> None:
    """Let the spec keep the current rows of a source's table, or its changes if it has no keys."""
    document["description"] = f"Changes of a database's table, of the subject {subject}."
    document["changelog"] = {"format": "debezium"}
    if has_key:
        document["key"] = {"format": "avro", "file": f"{name}-key.avsc"}
        document["write_mode"] = "upsert"
        # A row moves to the partition of each change; current rows are not read by hours.
        del document["table"], document["derived_partitions"]


def _document(name: str, subject: str, pipeline: str, kind: str, file: str) -> dict[str, Any]:
    """:raises SpecError: the name of the topic or the pipeline is invalid"""
    document = {
        "name": name,
        "pipeline": pipeline,
        "description": f"Records of the subject {subject}.",
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
