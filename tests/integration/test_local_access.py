"""Who has no key of the local stack gets nothing of its control planes; viewers change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from repository import PROJECT_ROOT

from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg_local import state
from topicberg_local.ports import choose

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "path",
    [
        "/org/v2/environments",
        "/iam/v2/api-keys",
        "/tableflow/v1/tableflow-topics",
        "/connect/v1/environments/e/clusters/c/connectors",
    ],
)
@pytest.mark.parametrize("key", [None, ("LOCALTOPICBERG00", "wrong"), ("nobody", "")])
def test_confluents_control_plane(stack: Endpoints, path: str, key: tuple[str, str] | None) -> None:
    for method in ("GET", "POST"):
        answer = requests.request(method, stack.confluent + path, auth=key, json={}, timeout=10)
        assert answer.status_code == 401, (method, answer.text)


def test_the_supervisor(stack: Endpoints) -> None:
    context = state.load_context(settings())
    assert context
    call = "<methodCall><methodName>supervisor.shutdown</methodName></methodCall>"
    for auth in (None, ("topicberg", "wrong"), ("topicberg", "")):
        answer = requests.post(f"{context.url('supervisor')}/RPC2", call, auth=auth, timeout=10)
        assert answer.status_code == 401
    assert requests.get(stack.confluent + "/health", timeout=10).ok


def test_aws_and_the_object_store(stack: Endpoints) -> None:
    calls: tuple[tuple[str, str | None, Callable[[Any], Any]], ...] = (
        ("glue", stack.aws, lambda client: client.get_databases()),
        ("secretsmanager", stack.aws, lambda client: client.list_secrets()),
        ("s3", stack.s3, lambda client: client.list_objects_v2(Bucket=settings().bucket)),
    )
    for service, url, call in calls:
        for key in (None, "wrong"):
            client = boto3.client(
                service,
                endpoint_url=url,
                region_name="us-east-1",
                aws_access_key_id="topicberg" if key else None,
                aws_secret_access_key=key,
                config=Config(signature_version=UNSIGNED) if key is None else None,
            )
            with pytest.raises(ClientError) as raised:
                call(client)
            assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 401, 403)


def test_snowflake(stack: Endpoints) -> None:
    import snowflake.connector

    account = stack.snowflake.model_dump(exclude={"password"})
    with pytest.raises(snowflake.connector.errors.DatabaseError, match="Incorrect username"):
        snowflake.connector.connect(**account, password="wrong", login_timeout=10)


@pytest.fixture
def viewers(tmp_path: Path) -> Iterator[str]:
    """Address of a web server that only shows."""
    port = choose({}, {})["confluent"]
    home = tmp_path / "home"
    home.mkdir()
    command = ["-m", "dagster_webserver", "--read-only", "-h", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(
        [sys.executable, *command, "-w", str(PROJECT_ROOT / "workspace.yaml")],
        cwd=PROJECT_ROOT,
        env={**os.environ, "DAGSTER_HOME": str(home), "TOPICBERG_STATE_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    requests.get(f"http://127.0.0.1:{port}/server_info", timeout=2)
                    break
                except requests.ConnectionError:
                    assert server.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/graphql"
        finally:
            server.terminate()


@pytest.mark.slow
def test_a_viewers_web_server_changes_nothing(viewers: str) -> None:
    def ask(query: str) -> dict[str, object]:
        answer = requests.post(viewers, json={"query": query}, timeout=60).json()
        assert "errors" not in answer, answer
        data: dict[str, object] = answer["data"]
        return data

    shown = ask("{ assetNodes { id } permissions { permission value } }")
    assert shown["assetNodes"]
    allowed = {one["permission"] for one in shown["permissions"] if one["value"]}  # type: ignore
    assert allowed <= {"view_schedule"}
    done = ask(
        "mutation { launchRun(executionParams: {selector: {repositoryLocationName: "
        '"topicberg", repositoryName: "__repository__", jobName: "stock_trades"}, '
        'runConfigData: "{}"}) { __typename } }'
    )
    assert done == {"launchRun": {"__typename": "UnauthorizedError"}}
    done = ask(
        'mutation { wipeAssets(assetPartitionRanges: [{assetKey: {path: ["a"]}}]) { __typename } }'
    )
    assert done == {"wipeAssets": {"__typename": "UnauthorizedError"}}
