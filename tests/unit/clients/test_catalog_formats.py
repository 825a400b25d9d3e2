"""Tables of format versions and types that PyIceberg cannot read are one clear error."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from topicberg.endpoints import LakeEndpoints
from topicberg.errors import TableflowError, TableFormatError
from topicberg.settings import Settings

TABLE = "shop", "order items"


@pytest.fixture
def tables() -> Iterator[dict[str, Any]]:
    """A catalog that has one table; ``metadata`` is what it answers, ``url`` is its address."""
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    created = new_table_metadata(
        schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://lake/t", {}
    )
    served: dict[str, Any] = {"metadata": json.loads(created.model_dump_json())}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            of_table = {"metadata-location": "s3://lake/t/1.json", "metadata": served["metadata"]}
            config: dict[str, Any] = {"defaults": {}, "overrides": {}}
            body = json.dumps(config if "/config" in self.path else of_table).encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        served["url"] = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield served
        http.shutdown()
        thread.join()


def load(tables: dict[str, Any]) -> Any:
    return LakeEndpoints(iceberg_rest=tables["url"]).catalog(Settings()).load_table(TABLE)


def test_table_of_a_known_version_is_loaded(tables: dict[str, Any]) -> None:
    assert load(tables).name() == TABLE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format-version": 4}, "format version 4"),
        (
            {
                "format-version": 3,
                "schemas": [
                    {
                        "type": "struct",
                        "schema-id": 0,
                        "fields": [{"id": 1, "name": "v", "required": False, "type": "variant"}],
                    }
                ],
            },
            "Unsupported field type: 'variant'",
        ),
    ],
    ids=["newer version", "unknown type"],
)
def test_table_that_cannot_be_read_is_one_error(
    tables: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    tables["metadata"] |= change
    with pytest.raises(TableFormatError) as raised:
        load(tables)
    assert raised.value.message.startswith("table shop.order items: ")
    assert reason in raised.value.message
    assert raised.value.hint
    assert isinstance(raised.value, TableflowError), "it suspends the topic"
