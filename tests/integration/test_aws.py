"""The AWS emulator: Glue as AWS behaves, signed requests only; nothing for who has no key."""

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
from conftest import KillService
from repository import PROJECT_ROOT

from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg_local import state
from topicberg_local.ports import choose

pytestmark = pytest.mark.integration

DATABASE = "aws_test"


def client(stack: Endpoints, service: str, key: str, secret: str, token: str | None = None) -> Any:
    make: Any = boto3.client
    return make(
        service,
        region_name=settings().aws_region,
        endpoint_url=stack.aws,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=token,
    )


def entry(location: str) -> dict[str, Any]:
    parameters = {"table_type": "ICEBERG", "metadata_location": location}
    return {"Name": "t", "TableType": "EXTERNAL_TABLE", "Parameters": parameters}


@pytest.fixture
def glue(stack: Endpoints) -> Iterator[Any]:
    glue = stack.boto3("glue")
    glue.create_database(DatabaseInput={"Name": DATABASE})
    glue.create_table(DatabaseName=DATABASE, TableInput=entry("s3://b/0"))
    yield glue
    glue.delete_database(Name=DATABASE)


def code(call: Callable[..., Any], **arguments: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return str(caught.value.response["Error"]["Code"])


def test_glue_answers_as_aws(glue: Any) -> None:
    assert code(glue.get_database, Name="none") == "EntityNotFoundException"
    assert code(glue.get_table, DatabaseName=DATABASE, Name="none") == "EntityNotFoundException"
    again = {"DatabaseInput": {"Name": DATABASE}}
    assert code(glue.create_database, **again) == "AlreadyExistsException"
    table = {"DatabaseName": DATABASE, "TableInput": entry("s3://b/1")}
    assert code(glue.create_table, **table) == "AlreadyExistsException"
    table["TableInput"] = entry("s3://b/1") | {"Name": "none"}
    assert code(glue.update_table, **table) == "EntityNotFoundException"


def test_update_table_is_optimistic(glue: Any) -> None:
    def version() -> str:
        return str(glue.get_table(DatabaseName=DATABASE, Name="t")["Table"]["VersionId"])

    def archived() -> int:
        return len(glue.get_table_versions(DatabaseName=DATABASE, TableName="t")["TableVersions"])

    first = version()
    update = {"DatabaseName": DATABASE, "TableInput": entry("s3://b/1"), "VersionId": first}
    glue.update_table(**update, SkipArchive=True)
    assert int(version()) == int(first) + 1
    assert archived() == 1
    assert code(glue.update_table, **update) == "ConcurrentModificationException"
    glue.update_table(DatabaseName=DATABASE, TableInput=entry("s3://b/2"))
    assert archived() == 2
    location = glue.get_table(DatabaseName=DATABASE, Name="t")["Table"]["Parameters"]
    assert location["metadata_location"] == "s3://b/2"


def test_requests_are_signed_by_a_known_key(stack: Endpoints) -> None:
    key = stack.aws_access_key.get_secret_value()
    for service, action, unknown, wrong in (
        ("glue", "get_databases", "UnrecognizedClientException", "InvalidSignatureException"),
        ("iam", "list_users", "InvalidClientTokenId", "SignatureDoesNotMatch"),
    ):
        assert code(getattr(client(stack, service, "AKIAIOSFODNN7EXAMPLE", "x"), action)) == unknown
        assert code(getattr(client(stack, service, key, "x"), action)) == wrong
    assert requests.post(f"{stack.aws}/", timeout=60).status_code == 403
    assert requests.post(f"{stack.aws}/moto-api/reset", timeout=60).status_code == 403
    assert code(stack.boto3("sqs").list_queues) == "UnsupportedOperation"


def test_keys_of_iam_and_sts_work_until_deleted(stack: Endpoints) -> None:
    iam = stack.boto3("iam")
    iam.create_user(UserName="stand-in-test")
    made = iam.create_access_key(UserName="stand-in-test")["AccessKey"]
    glue = client(stack, "glue", made["AccessKeyId"], made["SecretAccessKey"])
    glue.get_databases()
    arguments = {"UserName": "stand-in-test", "AccessKeyId": made["AccessKeyId"]}
    iam.update_access_key(**arguments, Status="Inactive")
    assert code(glue.get_databases) == "UnrecognizedClientException"
    iam.delete_access_key(**arguments)
    iam.delete_user(UserName="stand-in-test")
    role = f"arn:aws:iam::{settings().aws_account_id}:role/any"
    assumed = stack.boto3("sts").assume_role(RoleArn=role, RoleSessionName="test")["Credentials"]
    credentials = (assumed[k] for k in ("AccessKeyId", "SecretAccessKey", "SessionToken"))
    client(stack, "glue", *credentials).get_databases()


def test_kill_9_loses_nothing(stack: Endpoints, glue: Any, kill_service: KillService) -> None:
    secrets, ssm, iam = stack.boto3("secretsmanager"), stack.boto3("ssm"), stack.boto3("iam")
    secrets.create_secret(Name="/stand-in-test/secret", SecretString="s3cret")
    ssm.put_parameter(Name="/stand-in-test/p", Value="v", Type="String")
    iam.create_role(RoleName="stand-in-test", AssumeRolePolicyDocument="{}")
    for number in range(20):
        glue.update_table(DatabaseName=DATABASE, TableInput=entry(f"s3://b/{number}"))
    kill_service("aws")
    table = glue.get_table(DatabaseName=DATABASE, Name="t")["Table"]
    assert table["Parameters"]["metadata_location"] == "s3://b/19"
    assert secrets.get_secret_value(SecretId="/stand-in-test/secret")["SecretString"] == "s3cret"
    assert ssm.get_parameter(Name="/stand-in-test/p")["Parameter"]["Value"] == "v"
    role = iam.get_role(RoleName="stand-in-test")["Role"]["Arn"]
    assert role == f"arn:aws:iam::{settings().aws_account_id}:role/stand-in-test"
    secrets.delete_secret(SecretId="/stand-in-test/secret", ForceDeleteWithoutRecovery=True)
    ssm.delete_parameter(Name="/stand-in-test/p")
    iam.delete_role(RoleName="stand-in-test")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"topicberg-aws-state 1 moto 4.0.0 python 3.11\nx\ny", "moto 4.0.0"),
        (b"", "was written by"),
        (None, "its checksum does not match"),
    ],
    ids=["another moto", "empty", "damaged"],
)
def test_a_state_that_cannot_be_loaded_is_not_dropped(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    from topicberg_local.emulators.aws.state import State

    state = State(tmp_path)
    if content is None:
        state.load()
        state._saved = b""
        state.save()
        content = state.path.read_bytes()[:-1]
    state.path.write_bytes(content)
    command = [sys.executable, "-m", "topicberg_local.emulators.aws", "--port", "1"]
    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path)],
        env=os.environ | {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert str(state.path) in done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert state.path.read_bytes() == content


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
        answer = requests.request(method, stack.confluent + path, auth=key, json={}, timeout=60)
        assert answer.status_code == 401, (method, answer.text)


def test_the_supervisor(stack: Endpoints) -> None:
    context = state.load_context(settings())
    call = "<methodCall><methodName>supervisor.shutdown</methodName></methodCall>"
    for auth in (None, ("topicberg", "wrong"), ("topicberg", "")):
        answer = requests.post(f"{context.url('supervisor')}/RPC2", call, auth=auth, timeout=60)
        assert answer.status_code == 401
    assert requests.get(stack.confluent + "/health", timeout=60).ok


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
        snowflake.connector.connect(**account, password="wrong", login_timeout=60)


@pytest.fixture
def viewers(tmp_path: Path) -> Iterator[str]:
    """Address of a web server that only shows."""
    port, home = choose({}, {})["confluent"], tmp_path / "home"
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
