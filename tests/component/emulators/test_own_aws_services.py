"""EMR Serverless and Athena in the AWS emulator's process: signed, durable, and honest."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError

SECRET = "secret"
ONCE = Config(retries={"max_attempts": 1})


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address, and what kills the process and starts another one."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    running: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        if running:
            running[-1].kill()
            running[-1].wait()
        command = [sys.executable, "-m", "topicberg_local.emulators.aws", "--host", "127.0.0.1"]
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}
        running.append(
            subprocess.Popen(
                [*command, "--port", str(port), "--state-dir", str(tmp_path)],
                env={**os.environ, **keys},
            )
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                requests.get(f"{url}/health", timeout=5).raise_for_status()
            except requests.ConnectionError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            else:
                return

    start()
    yield url, start
    running[-1].kill()
    running[-1].wait()


def client(service: str, url: str, secret: str = SECRET) -> Any:
    make: Any = boto3.client
    return make(
        service,
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="key",
        aws_secret_access_key=secret,
        config=ONCE,
    )


def test_own_services_survive_a_kill(emulator: tuple[str, Callable[[], None]]) -> None:
    url, restart = emulator
    emr, athena = client("emr-serverless", url), client("athena", url)
    made = emr.create_application(
        name="spark", releaseLabel="emr-spark-8.0.0", type="SPARK", tags={"topicberg": "demo"}
    )
    athena.create_work_group(Name="queries")
    restart()
    arn = made["arn"]
    (listed,) = emr.list_applications(states=["CREATED"])["applications"]
    assert (listed["id"], listed["name"]) == (made["applicationId"], "spark")
    assert emr.list_tags_for_resource(resourceArn=arn)["tags"] == {"topicberg": "demo"}
    assert athena.get_work_group(WorkGroup="queries")["WorkGroup"]["State"] == "ENABLED"
    with pytest.raises(ClientError, match=r"(?s)UnsupportedOperation.*no StartQueryExecution"):
        athena.start_query_execution(QueryString="SELECT 1")
    with pytest.raises(ClientError, match=r"(?s)UnsupportedOperation.*no GetDashboardForJobRun"):
        emr.get_dashboard_for_job_run(applicationId=listed["id"], jobRunId="00")
    for service, call in (("emr-serverless", "list_applications"), ("athena", "list_work_groups")):
        with pytest.raises(ClientError, match="InvalidSignatureException"):
            getattr(client(service, url, "wrong"), call)()
