"""The local stack: what survives, who may connect, what its commands say."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil
import pytest
import requests
import shared_stack
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry import Schema
from filelock import FileLock
from living_files import contents

from topicberg.endpoints import Endpoints
from topicberg.errors import StackNotRunningError
from topicberg.orchestration.resources import Spark
from topicberg.settings import settings
from topicberg_local import stack as local_stack
from topicberg_local import state, supervisor

pytestmark = [pytest.mark.integration, pytest.mark.project, pytest.mark.alone]

MARK = "kept_by_the_stack"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from topicberg.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def kafka_holds(endpoints: Endpoints) -> bool:
    consumer = Consumer({**endpoints.kafka_config(), "group.id": MARK, "log_level": 0})
    with suppress(Exception):
        consumer.assign([TopicPartition(MARK, 0, 0)])
        message = consumer.poll(20)
        return message is not None and message.value() == b"here"
    return False


def put_kafka(endpoints: Endpoints) -> None:
    admin = endpoints.kafka_admin()
    for future in admin.create_topics([NewTopic(MARK, 1, 1)]).values():
        with suppress(Exception):  # from the test before
            future.result()
    producer = Producer(endpoints.kafka_config())
    producer.produce(MARK, b"here")
    assert producer.flush(20) == 0


def put_schema(endpoints: Endpoints) -> None:
    endpoints.schema_registry_client().register_schema(MARK, Schema('"string"', "AVRO"))


def put_object(endpoints: Endpoints) -> None:
    endpoints.boto3("s3").put_object(Bucket=settings().bucket, Key=MARK, Body=b"here")


def put_namespace(endpoints: Endpoints) -> None:
    endpoints.catalog().create_namespace_if_not_exists(MARK)


def put_database(endpoints: Endpoints) -> None:
    glue = endpoints.boto3("glue")
    with suppress(glue.exceptions.AlreadyExistsException):
        glue.create_database(DatabaseInput={"Name": MARK})


def snowflake(endpoints: Endpoints, sql: str) -> list[Any]:
    import snowflake.connector

    account = endpoints.snowflake.model_dump()
    account["password"] = endpoints.snowflake.password.get_secret_value()
    with snowflake.connector.connect(**account, login_timeout=60) as connection:
        return list(connection.cursor().execute(sql).fetchall())


def environments(endpoints: Endpoints, body: Any = None) -> requests.Response:
    """List the first ones; with a body, create one."""
    assert endpoints.confluent_api_key
    return requests.request(
        "POST" if body else "GET",
        f"{endpoints.confluent}/org/v2/environments",
        json=body,
        auth=(endpoints.confluent_api_key, endpoints.confluent_api_secret.get_secret_value()),
        timeout=60,
    )


def put_environment(endpoints: Endpoints) -> None:
    assert environments(endpoints, {"display_name": MARK}).status_code in (201, 409)


# Service → (put something there, whether it is still there)
KEPT: dict[str, tuple[Callable[[Endpoints], object], Callable[[Endpoints], bool]]] = {
    "kafka": (put_kafka, kafka_holds),
    "schema_registry": (put_schema, lambda e: MARK in e.schema_registry_client().get_subjects()),
    "s3": (
        put_object,
        lambda e: (
            e.boto3("s3").get_object(Bucket=settings().bucket, Key=MARK)["Body"].read() == b"here"
        ),
    ),
    "iceberg_rest": (put_namespace, lambda e: (MARK,) in e.catalog().list_namespaces()),
    "aws": (
        put_database,
        lambda e: e.boto3("glue").get_database(Name=MARK)["Database"]["Name"] == MARK,
    ),
    "snowflake": (
        lambda e: snowflake(e, f"CREATE DATABASE IF NOT EXISTS {MARK}"),
        lambda e: bool(snowflake(e, f"SHOW DATABASES LIKE '{MARK}'")),
    ),
    "confluent": (
        put_environment,
        lambda e: MARK in [one["display_name"] for one in environments(e).json()["data"]],
    ),
}


def put_all(endpoints: Endpoints) -> None:
    for put, _ in KEPT.values():
        put(endpoints)


def lost(endpoints: Endpoints) -> list[str]:
    return [name for name, (_, holds) in KEPT.items() if not holds(endpoints)]


def test_everything_killed_at_once(stack: Endpoints) -> None:
    """As after a power cut, supervisor included; a process that has a session gets a new one."""
    put_all(stack)
    Spark().spark_session.range(1).collect()
    killed = supervisor.stack_processes(settings().state_dir)
    for process in killed:
        process.kill()
    psutil.wait_procs(killed, timeout=60)
    done = run("status", "--json")
    assert done.returncode == 1
    stopped = json.loads(done.stdout)
    assert {service["state"] for service in stopped["services"].values()} == {"stopped"}
    config = settings()
    with ThreadPoolExecutor() as pool:  # as several Dagster processes do
        for future in [pool.submit(local_stack.ensure_running, config) for _ in range(3)]:
            future.result()
    assert shared_stack.up(config) == stack
    assert lost(stack) == []
    assert Spark().spark_session.range(2).count() == 2


@pytest.mark.slow  # when everything is killed at once, so is the supervisor
def test_supervisor_killed(stack: Endpoints) -> None:
    """Its services are orphans then: the next start ends them first."""
    assert state.load_context(settings())
    pid = int((settings().state_dir / "supervisor" / "supervisord.pid").read_text())
    before = {service.pid for service in local_stack.status(settings())}
    psutil.Process(pid).kill()
    local_stack.ensure_running(settings())
    assert not before & {service.pid for service in local_stack.status(settings())}
    assert len(supervisor.stack_processes(settings().state_dir)) < 15


@pytest.mark.slow  # the demo ends its stack; a start finds less after a kill than after an end
def test_down_and_up_keep_everything(stack: Endpoints) -> None:
    put_all(stack)
    log = settings().state_dir / "logs" / "supervisor.log"
    earlier, done = len(log.read_text()), run("down")
    assert (done.returncode, done.stdout) == (0, "the stack is down\n")
    assert "with SIGKILL" not in log.read_text()[earlier:], "a service did not end by itself"
    assert supervisor.stack_processes(settings().state_dir) == []
    assert run("down").stdout == "the stack was not running\n"

    done = run("status", "--json")
    assert done.returncode == 1
    stopped = json.loads(done.stdout)
    assert {service["state"] for service in stopped["services"].values()} == {"stopped"}
    assert stopped["endpoints"] == {}

    config = settings()
    with pytest.raises(StackNotRunningError, match="`topicberg down` has ended it"):
        local_stack.ensure_running(config)  # as a run does that goes on
    assert run("up").returncode == 0
    assert lost(stack) == []


def test_second_up(stack: Endpoints) -> None:
    done = run("up")
    assert done.returncode == 0, done.stderr
    with FileLock(state.lock_file(settings())):
        done = run("up")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the stack is being started or stopped by another command")


def test_status_and_env(stack: Endpoints) -> None:
    done = run("status", "--json")
    assert done.returncode == 0, done.stdout
    shown = json.loads(done.stdout)
    assert list(shown["services"]) == list(local_stack.SERVICES)
    for name, service in shown["services"].items():
        assert service["state"] == "running"
        assert psutil.pid_exists(service["pid"])
        assert service["port"], name
        assert service["url"], name
    assert shown["endpoints"]["kafka_bootstrap"] == stack.kafka_bootstrap
    assert set(shown["endpoints"]) == {
        "kafka_bootstrap",
        "schema_registry",
        "s3",
        "iceberg_rest",
        "spark_connect",
        "aws",
        "snowflake",
        "confluent",
    }
    exports = run("env").stdout
    assert f"export SPARK_REMOTE={shlex.quote(stack.spark_connect)}\n" in exports
    assert f"ICEBERG_REST_TOKEN={stack.iceberg_rest_token.get_secret_value()}\n" in exports
    assert "AWS_SECRET_ACCESS_KEY=" in exports


def test_only_loopback(stack: Endpoints) -> None:
    listening = [
        connection.laddr.ip
        for process in supervisor.stack_processes(settings().state_dir)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 10
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_secrets_stay_in_private_files(stack: Endpoints) -> None:
    folder = settings().state_dir
    secrets = [
        secret
        for name, secret in json.loads((folder / "credentials.json").read_text()).items()
        if name != "s3_access_key"
    ]
    processes = supervisor.stack_processes(folder)
    arguments = " ".join(part for process in processes for part in process.cmdline())
    logs = "".join(log.read_text(errors="replace") for log in (folder / "logs").iterdir())
    for secret in secrets:
        assert secret not in arguments
        assert secret not in logs
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path, permissions, content in contents(folder):
        if any(secret.encode() in content for secret in secrets):
            assert permissions == 0o600, path
