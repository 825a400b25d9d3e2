"""What a record says that is not in the wire format of a registry with Confluent's API."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from topicberg.tableflow.rows import Writers


@pytest.mark.parametrize("compression", [b"\x00", b"\x05"])
def test_problem_of_a_glue_record_names_its_registry(compression: bytes) -> None:
    writers: Any = SimpleNamespace(half=SimpleNamespace(column="value"))
    raw = b"\x03" + compression + uuid.uuid4().bytes + b"payload"
    reason = Writers.problem(writers, raw)
    assert "AWS Glue Schema Registry, which is not supported" in reason
    other = Writers.problem(writers, raw[:10])
    assert "Confluent's wire format" in other
