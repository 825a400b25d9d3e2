"""Why a topic has no schema file to register or to pull."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from specs import Project, minimal

from topicberg.kafka.schemas import why_no_files
from topicberg.topics import load_topic

NO_FILE: dict[str, Any] = {"format": "avro"}
OWN_FILE = {"format": "avro", "file": "trades.avsc", "framing": "none"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"schema": NO_FILE, "external": True}, "the topic is external, so its schemas are read"),
        ({"schema": {"format": "none"}}, "neither its values nor its keys have a schema"),
        (
            {"schema": OWN_FILE},
            "trades.avsc is not for the registry: the topic's records name no schema",
        ),
        (
            {"schema": OWN_FILE, "external": True},
            "trades.avsc is not for the registry: the topic's records name no schema",
        ),
    ],
)
def test_reason_without_registered_files_is_that_of_the_spec(
    tmp_path: Path, fields: dict[str, Any], expected: str
) -> None:
    project = Project(tmp_path)
    project.topic(minimal(**fields))
    spec = load_topic("trades", project.config)
    assert not list(spec.schema_files(project.config))
    assert why_no_files(spec).startswith(expected)
