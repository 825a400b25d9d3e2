"""What a user sees when something outside of the engine is down, missing, full or refuses.

Each outage is real: the services of the stack answer as they do. After each fix the engine goes
on by itself and nothing is lost.
"""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema
from kafka_topics import ORDER, Topic, avro
from pydantic import SecretStr

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.formats.framing import wire_prefix
from topicberg.settings import settings

pytestmark = pytest.mark.integration

UNUSED = "http://127.0.0.1:9"  # the discard port: nothing listens


@pytest.fixture
def topic(make_topic: Callable[..., Topic]) -> Topic:
    """With one row in its table, and another one on the way."""
    topic: Topic = make_topic()
    topic.send(ORDER, [{"id": 1, "note": "before"}])
    topic.ingest()
    topic.send(ORDER, [{"id": 2, "note": "during"}])
    return topic


def refused(topic: Topic, **endpoints: object) -> TopicbergError:
    """How the engine fails with other endpoints."""
    whole = topic.endpoints
    topic.endpoints = whole.model_copy(update=endpoints)
    with pytest.raises(TopicbergError) as error:
        topic.ingest()
    topic.endpoints = whole
    return error.value


def goes_on(topic: Topic) -> None:
    topic.ingest()
    assert [row["id"] for row in topic.rows("id")] == [1, 2]


def test_the_registry_is_down(topic: Topic) -> None:
    error = refused(topic, schema_registry=f"{UNUSED}/apis/ccompat/v7")
    assert f"schema registry does not answer (subject {topic.spec.value_subject})" in str(error)
    assert error.hint
    goes_on(topic)


def test_a_subject_is_missing(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic()
    topic.send_raw([b"\x00\x00\x00\x00\x01\x02"])
    error = refused(topic)
    assert f"subject {topic.spec.value_subject} does not exist" in str(error)
    assert error.hint


def test_a_reference_is_missing(make_topic: Callable[..., Topic]) -> None:
    topic = make_topic(schema={"format": "json", "file": "of-the-registry"})
    address = {"type": "object", "properties": {"home": {"$ref": "address.json"}}}
    registry = topic.endpoints.schema_registry_client()
    number = registry.register_schema(topic.spec.value_subject, Schema(json.dumps(address), "JSON"))
    topic.send_raw([wire_prefix(number) + b'{"home": {}}'])
    error = refused(topic)
    assert "address.json" in str(error)
    assert topic.spec.value_subject in str(error)
    assert error.hint


@pytest.fixture
def bucket(stack: Endpoints) -> Iterator[str]:
    """A bucket of its own."""
    s3, name = stack.boto3("s3"), f"outage-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=name)
    yield name
    empty(stack, name)
    s3.delete_bucket(Bucket=name)


def empty(stack: Endpoints, bucket: str) -> dict[str, bytes]:
    """Delete every object of a bucket; what there was."""
    s3 = stack.boto3("s3")
    objects = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", ()):
            key = item["Key"]
            objects[key] = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
            s3.delete_object(Bucket=bucket, Key=key)
    return objects


@pytest.mark.slow  # Spark asks for a minute
def test_missing_bucket_is_reported(
    make_topic: Callable[..., Topic], bucket: str, stack: Endpoints
) -> None:
    topic = make_topic()
    topic.config = settings().model_copy(update={"bucket": bucket})
    topic.send(ORDER, [{"id": 1, "note": "before"}])
    topic.ingest()
    objects = empty(stack, bucket)
    stack.boto3("s3").delete_bucket(Bucket=bucket)
    topic.send(ORDER, [{"id": 2, "note": "during"}])
    try:
        error = refused(topic)
    finally:
        stack.boto3("s3").create_bucket(Bucket=bucket)
    assert "bucket" in str(error)
    assert "restore" in str(error.hint)
    for key, body in objects.items():
        stack.boto3("s3").put_object(Bucket=bucket, Key=key, Body=body)
    goes_on(topic)


def test_the_store_refuses_the_credentials(topic: Topic) -> None:
    keys = {"s3_access_key": SecretStr("nobody"), "s3_secret_key": SecretStr("knows-this")}
    error = refused(topic, **keys)
    assert "the object store refuses the credentials" in str(error)
    assert "knows-this" not in str(error)
    goes_on(topic)


@contextmanager
def read_only(catalog: str) -> Iterator[str]:
    """The REST catalog, where nothing may be written: 403 as the REST specification has it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                token = {"Authorization": self.headers["Authorization"]}
                request = urllib.request.Request(catalog + self.path, headers=token)  # noqa: S310
                with urllib.request.urlopen(request) as answer:  # noqa: S310
                    self._answer(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                self._answer(error.code, error.read())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            message = {"message": "read only", "type": "ForbiddenException", "code": 403}
            self._answer(403, json.dumps({"error": message}).encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("evolves", [True, False])
def test_the_catalog_is_read_only(topic: Topic, evolves: bool) -> None:
    if evolves:
        topic.send(avro(*ORDER["fields"], {"name": "more", "type": "int", "default": 0}), [])
    with read_only(topic.endpoints.iceberg_rest) as url:
        error = refused(topic, iceberg_rest=url)
    assert "the catalog refuses to write" in str(error)
    assert error.hint
    goes_on(topic)


def fill(file: Path) -> None:
    """Write until the file system is full."""
    with file.open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


def test_the_disk_is_full(make_topic: Callable[..., Topic], stack: Endpoints) -> None:
    """The bucket lies on a file system of 1 MiB."""
    name = f"full-{uuid.uuid4().hex[:8]}"
    folder = settings().state_dir / "s3" / "objects" / name
    stack.boto3("s3").create_bucket(Bucket=name)
    options = ["-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs"]
    mounted = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip("this user may not mount a file system")
    try:
        topic = make_topic()
        topic.config = settings().model_copy(update={"bucket": name})
        topic.send(ORDER, [{"id": 1, "note": "before"}])
        topic.ingest()
        ballast = folder / "ballast"
        fill(ballast)
        topic.send(ORDER, [{"id": 2, "note": "during"}])
        error = refused(topic)
        assert "the object store failed" in str(error)  # S3 itself says no more
        assert "full disk" in str(error.hint)
        ballast.unlink()
        goes_on(topic)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # S3 may read it still
        folder.rmdir()
