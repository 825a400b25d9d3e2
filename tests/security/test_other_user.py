"""Another user of the machine gets nothing of the stack that has a key, and runs no code in it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
import requests
from living_files import contents
from other_user import as_other_user, needs_users

from topicberg.endpoints import Endpoints
from topicberg.query import Engine, run_query
from topicberg.settings import settings
from topicberg.spark import new_session
from topicberg_local import state

pytestmark = [pytest.mark.integration, needs_users]

ENGINES: tuple[Engine, ...] = ("duckdb", "spark")


def test_state_directory_is_closed(stack: Endpoints) -> None:
    found = as_other_user(
        f"""
import os
for path in {[str(settings().state_dir / name) for name in ("", "credentials.json", "logs")]!r}:
    try:
        os.stat(path) if not path.endswith("/") else os.listdir(path)
        print("open", path) if os.access(path, os.R_OK) else print("closed")
    except PermissionError:
        print("closed")
"""
    )
    assert set(found.split()) == {"closed"}


def test_spark_runs_nothing_without_the_token(stack: Endpoints) -> None:
    """Neither with none nor with a wrong one; not through the other ports of Spark either."""
    address = stack.spark_connect.partition("//")[2].partition("/")[0]
    found = as_other_user(
        f"""
import grpc
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc
stub = base_pb2_grpc.SparkConnectServiceStub(grpc.insecure_channel("{address}"))
request = base_pb2.AnalyzePlanRequest(
    session_id="00112233-4455-6677-8899-aabbccddeeff",
    spark_version=base_pb2.AnalyzePlanRequest.SparkVersion(),
)
for token in (None, "", "wrong", "Bearer ", "{"A" * 32}"):
    metadata = [("authorization", f"Bearer {{token}}")] if token is not None else []
    try:
        stub.AnalyzePlan(request, metadata=metadata, timeout=60)
        print("answered")
    except grpc.RpcError as error:
        print(error.code().name)
""",
        "grpc",
        "pyspark.sql.connect.proto.base_pb2_grpc",
    )
    assert found.split() == ["UNAUTHENTICATED"] * 5
    session = new_session(stack.spark_connect)
    try:
        assert session.range(3).count() == 3
        assert session.conf.get("spark.authenticate") == "true"
    finally:
        session.stop()


def test_catalog_refuses_requests_without_the_token(stack: Endpoints) -> None:
    header, payload, signature = stack.iceberg_rest_token.get_secret_value().split(".")
    none = "eyJhbGciOiJub25lIn0"  # {"alg":"none"}
    found = as_other_user(
        f"""
from http.client import HTTPConnection
for header in (
    None, "Bearer", "Bearer x", "Basic dG9waWNiZXJnOng=", "Bearer {none}.{payload}.",
    "Bearer {header}.{payload}.", "Bearer {header}.{payload}.{signature[::-1]}",
):
    for method, path in (
        ("GET", "/v1/config"), ("GET", "/v1/namespaces"), ("POST", "/v1/namespaces"),
        ("POST", "/v1/oauth/tokens"), ("DELETE", "/v1/namespaces/lkc-local"), ("GET", "/"),
        ("GET", "//v1/namespaces"), ("GET", "/v1/%2e%2e/v1/namespaces"), ("TRACE", "/v1/config"),
    ):
        connection = HTTPConnection("{stack.iceberg_rest.partition("//")[2]}", timeout=60)
        connection.request(method, path, b"{{}}", {{"Authorization": header}} if header else {{}})
        print(connection.getresponse().status)
""",
        "http.client",
    )
    assert set(found.split()) <= {"400", "403"}
    assert found.split().count("403") == 49  # Jetty itself refuses two of the paths


def test_services_with_keys_tell_nothing(stack: Endpoints) -> None:
    context = state.load_context(settings())
    ports = {name: context.ports[name] for name in ("s3", "aws", "supervisor", "confluent")}
    found = as_other_user(
        f"""
from http.client import HTTPConnection
for name, port in {ports!r}.items():
    for method, path in (("GET", "/{settings().bucket}"), ("GET", "/RPC2"), ("POST", "/"),
                         ("GET", "/org/v2/environments"), ("GET", "/")):
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, b"")
        print(connection.getresponse().status)
connection = HTTPConnection("127.0.0.1", {context.ports["tableflow"]}, timeout=60)
connection.request("GET", "/metrics")
print(connection.getresponse().status)
""",
        "http.client",
    )
    assert all(int(status) >= 400 for status in found.split()), found


def test_own_user_has_everything(stack: Endpoints) -> None:
    assert isinstance(stack.catalog().list_namespaces(), list)
    for engine in ENGINES:
        assert run_query("SELECT 1 AS one", engine, stack, settings()).scalar() == 1
    assert requests.get(
        f"{stack.iceberg_rest}/v1/config", headers=stack.iceberg_rest_headers(), timeout=60
    ).ok


def test_spark_expands_no_variable_of_its_environment(stack: Endpoints) -> None:
    """Neither in SQL text nor in names, also not in a session that another user created."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    assert stack.s3_secret_key
    names = ("env:AWS_SECRET_ACCESS_KEY", "system:user.dir", "spark:spark.app.name", "hivevar:x")
    for session in (
        new_session(stack.spark_connect),
        ConnectSession.builder.remote(stack.spark_connect).create(),
    ):
        try:
            for name in names:
                row = session.sql(f"SELECT '${{{name}}}' AS `${{{name}}}`").collect()[0]
                assert row.asDict() == {f"${{{name}}}": f"${{{name}}}"}
        finally:
            session.stop()


def test_tokens_are_only_in_private_files(stack: Endpoints) -> None:
    folder, token = settings().state_dir, stack.iceberg_rest_token
    secrets = [
        token.get_secret_value(),
        *(
            json.loads((folder / "credentials.json").read_text())[name]
            for name in ("spark_token", "iceberg_signing_key")
        ),
    ]
    processes = ""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended meanwhile
            processes += path.read_text(errors="replace")
    for secret in secrets:
        assert secret not in processes
    for path, permissions, content in contents(folder):
        if any(secret.encode() in content for secret in secrets):
            assert permissions & 0o077 == 0, path
            assert "logs" not in path.relative_to(folder).parts, path
