"""A topic spec from a subject of the schema registry."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from topicberg.clients.registry import registry_errors
from topicberg.errors import SpecError
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
    for path in (spec_file, schema_file):
        if path.exists():
            raise SpecError(f"{path} exists already", hint="edit it, or choose another name")
    schema_file.write_text(f"{registered.schema_str}\n")
    spec_file.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    _, problems = check_topics(config)
    mine = [str(problem) for problem in problems if Path(problem.file).name == spec_file.name]
    if mine:
        spec_file.unlink()
        schema_file.unlink()
        raise SpecError("\n".join([f"no spec was written for {name}:", *mine]))
    return spec_file, schema_file


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
