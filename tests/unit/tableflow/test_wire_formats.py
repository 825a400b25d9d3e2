"""What a record says that is not in the wire format of a registry with Confluent's API."""

from __future__ import annotations

import uuid

import pytest

from topicberg.formats.framing import framed


@pytest.mark.parametrize("compression", [b"\x00", b"\x05"])
def test_problem_of_a_glue_record_names_its_registry(compression: bytes) -> None:
    raw = b"\x03" + compression + uuid.uuid4().bytes + b"payload"
    assert "AWS Glue Schema Registry: set `schema.framing: glue`" in str(framed("value", raw, None))
    assert "Confluent's wire format" in str(framed("value", raw[:10], None))
