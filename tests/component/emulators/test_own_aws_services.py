"""EMR Serverless and Athena in the AWS emulator's process: signed, durable, and honest."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from botocore.exceptions import ClientError
from waiting import wait_until

SECRET = "secret"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}


def client(service: str, url: str, secret: str = SECRET) -> Any:
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": secret}
    make: Any = boto3.client
    return make(service, region_name="us-east-1", endpoint_url=url, **keys)


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=5).ok
    except requests.ConnectionError:
        return False


def test_own_services_survive_a_kill(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = str(found.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "topicberg_local.emulators.aws", "--host", "127.0.0.1"]
    command += ["--port", port, "--state-dir", str(tmp_path)]
    emr, athena = client("emr-serverless", url), client("athena", url)
    with subprocess.Popen(command, env={**os.environ, **KEYS}) as process:
        try:
            wait_until(lambda: answers(url), 60)
            tags = {"topicberg": "demo"}
            made = emr.create_application(
                name="spark", releaseLabel="emr-spark-8.0.0", type="SPARK", tags=tags
            )
            athena.create_work_group(Name="queries")
        finally:
            process.kill()
    with subprocess.Popen(command, env={**os.environ, **KEYS}) as process:
        try:
            wait_until(lambda: answers(url), 60)
            (listed,) = emr.list_applications(states=["CREATED"])["applications"]
            assert (listed["id"], listed["name"]) == (made["applicationId"], "spark")
            assert emr.list_tags_for_resource(resourceArn=made["arn"])["tags"] == tags
            assert athena.get_work_group(WorkGroup="queries")["WorkGroup"]["State"] == "ENABLED"
            with pytest.raises(ClientError, match=r"(?s)UnsupportedOperation.*no StartQuery"):
                athena.start_query_execution(QueryString="SELECT 1")
            with pytest.raises(ClientError, match=r"(?s)UnsupportedOperation.*no GetDashboard"):
                emr.get_dashboard_for_job_run(applicationId=listed["id"], jobRunId="00")
            for service, call in {
                "emr-serverless": "applications",
                "athena": "work_groups",
            }.items():
                with pytest.raises(ClientError, match="InvalidSignatureException"):
                    getattr(client(service, url, "wrong"), f"list_{call}")()
        finally:
            process.kill()
