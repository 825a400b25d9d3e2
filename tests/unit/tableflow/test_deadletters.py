"""Which subject has the schema of dead letters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topicberg.settings import Settings
from topicberg.tableflow.rejected.deadletters import DeadLetters
from topicberg.topics import TopicSpec
from topicberg.topics.deadletters import ERROR_LOG_SCHEMA
from topicberg.topics.schema import schema_path

OURS = schema_path(Path(), ERROR_LOG_SCHEMA).read_text()


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        (OURS, True),
        (OURS.replace("topicberg", "other"), False),
        ('{"type": "object"}', False),
        ('{"type": "record", "name": "R", "fields": 5}', False),
        ('syntax = "proto3";', False),
        ("[" * 10_000, False),
    ],
    ids=["ours", "namespace", "json", "fields", "protobuf", "deep"],
)
def test_subject_of_dead_letters_has_their_schema(tmp_path: Path, text: str, is_ours: bool) -> None:
    fields = {"name": "orders", "pipeline": "shop", "schema": {"format": "none"}}
    latest = SimpleNamespace(schema=SimpleNamespace(schema_str=text))
    registry = SimpleNamespace(get_latest_version=lambda _: latest)
    endpoints = SimpleNamespace(schema_registry_client=lambda: registry)
    letters = DeadLetters(
        TopicSpec.model_validate(fields), cast(Any, endpoints), Settings(state_dir=tmp_path)
    )
    assert letters._is_ours("topicberg.ErrorLog") is is_ours
