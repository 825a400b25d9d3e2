"""What the engine refuses before it touches anything."""

from __future__ import annotations

from typing import Any

import pytest

from topicberg.endpoints import Endpoints
from topicberg.errors import TableflowError
from topicberg.settings import settings
from topicberg.tableflow.engine import Ingestor
from topicberg.topics import TopicSpec

NOWHERE = Endpoints.model_validate(
    {
        "kafka_bootstrap": "127.0.0.1:1",
        "schema_registry": "http://127.0.0.1:1",
        "iceberg_rest": "http://127.0.0.1:1",
        "spark_connect": "sc://127.0.0.1:1",
        "snowflake": {"account": "a", "user": "u", "password": "p"},
    }
)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"write_mode": "upsert"}, "write_mode: upsert"),
        ({"schema": {"format": "json", "file": "t.json"}}, "schema.format: json"),
        ({"tableflow": {"error_handling": {"mode": "LOG", "target": "e"}}}, "mode: LOG"),
        ({"tableflow": {"data_retention_ms": 2592000000}}, "data_retention_ms"),
    ],
)
def test_what_is_not_supported_is_refused(fields: dict[str, Any], named: str) -> None:
    spec = TopicSpec.model_validate(
        {"name": "t", "pipeline": "p", "schema": {"format": "avro", "file": "t.avsc"}, **fields}
    )
    with pytest.raises(TableflowError) as refused:
        Ingestor(spec, NOWHERE, settings())
    assert named in str(refused.value)
