"""A topic spec from a subject of the schema registry."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from topicberg.errors import SpecError
from topicberg.kafka import registry_errors
from topicberg.topics.loader import check_topics

if TYPE_CHECKING:
    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings

_SUFFIXES = {"AVRO": "avsc", "JSON": "json", "PROTOBUF": "proto"}


def new_topic(
    name: str, subject: str, pipeline: str, endpoints: Endpoints, config: Settings
) -> tuple[Path, Path]:
    """Write the spec and the schema file of a topic; their paths.

    :param subject: whose newest schema the topic's values have
    :raises SpecError: a file exists already, the schema has references, or the spec is not right
    :raises TopicbergError: the registry does not answer, or has no such subject
    """
    with registry_errors(f"the subject {subject}"):
        registered = endpoints.schema_registry_client().get_latest_version(subject).schema
    kind = registered.schema_type or "AVRO"
    if registered.references:
        raise SpecError(
            f"subject {subject}: its schema refers to other subjects",
            hint="put the definitions into one schema, or write the spec by hand",
        )
    schema_file = config.schemas_dir / f"{name}.{_SUFFIXES[kind]}"
    spec_file = config.topics_dir / f"{name}.yaml"
    for path in (spec_file, schema_file):
        if path.exists():
            raise SpecError(f"{path} exists already", hint="edit it, or choose another name")
    schema_file.write_text(f"{registered.schema_str}\n")
    spec_file.write_text(_spec(name, subject, pipeline, kind.lower(), schema_file.name))
    _, problems = check_topics(config)
    mine = [str(problem) for problem in problems if Path(problem.file).name == spec_file.name]
    if mine:
        spec_file.unlink()
        schema_file.unlink()
        raise SpecError("\n".join([f"no spec was written for {name}:", *mine]))
    return spec_file, schema_file


def _spec(name: str, subject: str, pipeline: str, kind: str, file: str) -> str:
    today = datetime.now(UTC).date()
    return f"""\
name: {name}
pipeline: {pipeline}
description: Records of the subject {subject}.
schema: {{format: {kind}, file: {file}}}
partitions: 6
write_mode: append
table:
  partitioning: [hour($$timestamp)]
derived_partitions: {{granularity: hourly, start: {today.isoformat()}}}
"""
