"""The stack's state directory and ports: what is refused, and with which words."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from topicberg.endpoints import bypass_proxy, load_endpoints, stopped_file
from topicberg.errors import StackError, StackNotRunningError
from topicberg.settings import Settings
from topicberg_local import (
    health,
    iceberg_rest,
    kafka,
    ports,
    schema_registry,
    spark,
    stack,
    state,
    supervisor,
)
from topicberg_local.progress import LogReport
from topicberg_local.service import Context, Service


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state dir 100%")


@pytest.fixture
def context(config: Settings) -> Context:
    state.prepare_dir(config)
    return Context(config, ports.choose({}, {}), state.credentials(config))


def test_ports_stay_the_same_and_below_the_ephemeral_range() -> None:
    first = ports.choose({}, {})
    assert len(set(first.values())) == len(ports.NAMES)
    assert all(20_000 <= port < 32_000 for port in first.values())
    assert ports.choose({}, first) == first


def test_port_taken_by_another_process_is_given_up() -> None:
    first = ports.choose({}, {})
    with socket.socket() as other:
        other.bind(("127.0.0.1", first["kafka"]))
        other.listen()
        second = ports.choose({}, first)
    assert second["kafka"] not in first.values()
    assert {**first, "kafka": 0} == {**second, "kafka": 0}


def test_fixed_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StackError) as caught:
            ports.choose({"kafka": port}, {})
    me = psutil.Process()
    assert caught.value.message == f"port {port} for kafka is taken by {me.name()} (pid {me.pid})"
    assert "TOPICBERG_PORTS" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"kafak": 9092}, "TOPICBERG_PORTS names 'kafak', which has no port"),
        ({"kafka": 29092, "s3": 29092}, "gives port 29092 to s3 and to another service"),
        ({"kafka": 123_456}, "port 123456 for kafka is taken"),
    ],
)
def test_fixed_ports_that_make_no_sense(fixed: dict[str, int], words: str) -> None:
    with pytest.raises(StackError, match=words):
        ports.choose(fixed, {})


def test_directories_that_hold_more_than_state(tmp_path: Path) -> None:
    for place in (Path("/"), Path.home(), Settings().project_root):
        foreign = Settings(state_dir=place)
        for command in (stack.up, stack.reset):
            with pytest.raises(StackError, match="cannot be the state directory"):
                command(foreign)
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "letter").touch()
    with pytest.raises(StackError, match="is not topicberg's state"):
        stack.reset(Settings(state_dir=papers))
    assert (papers / "letter").exists()


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match=r"file/state cannot be written: Not a directory"):
        stack.up(Settings(state_dir=tmp_path / "file" / "state"))


def test_directory_that_no_class_path_can_name(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="cannot use a path with ':'"):
        stack.up(Settings(state_dir=tmp_path / "a:b"))


def test_full_disk_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free, available = 10**9, 10**9

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: Usage())
        with pytest.raises(StackError, match=r"has 0.9 GB free, the stack needs 2"):
            state.check_resources(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", Usage)
        with pytest.raises(StackError, match=r"0.9 GB of memory are available, the stack needs 3"):
            state.check_resources(tmp_path)


def test_secrets_are_private(context: Context) -> None:
    path = context.config.state_dir / "credentials.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert state.credentials(context.config) == context.credentials


@pytest.mark.parametrize("name", ["ports.json", "credentials.json", "runtime.json"])
@pytest.mark.parametrize("content", ["", "{", '{"kafka": "x"}', "\0\0\0"])
def test_damaged_file(context: Context, name: str, content: str) -> None:
    state.save_ports(context)
    path = context.config.state_dir / name
    path.write_text(content)
    with pytest.raises(StackError) as caught:
        stack.ensure_running(context.config)
    assert str(path) in caught.value.message
    assert "damaged" in caught.value.message
    assert path.read_text() == content
    stack.reset(context.config)  # works all the same
    assert not context.config.state_dir.exists()


@pytest.mark.parametrize("name", ["ports.json", "credentials.json"])
def test_file_that_cannot_be_read_is_not_damaged(context: Context, name: str) -> None:
    state.save_ports(context)
    path = context.config.state_dir / name
    path.unlink()
    path.mkdir()
    with pytest.raises(StackError, match=f"{name} cannot be read: Is a directory") as caught:
        stack.status(context.config)
    assert "reset" not in str(caught.value.hint)
    with pytest.raises(StackError, match=r"catalog\.db cannot be read"):
        iceberg_rest._check(context.folder("catalog.db"))


def test_deleted_secrets_are_generated_by_no_reader(context: Context) -> None:
    config, path = context.config, context.config.state_dir / "credentials.json"
    state.save_ports(context)
    path.unlink()
    assert {service.state for service in stack.status(config)} == {"stopped"}
    variables = os.environ | {supervisor.STACK_VARIABLE: str(config.state_dir)}
    with subprocess.Popen(["sleep", "30"], env=variables) as process:
        for call in (stack.status, stack.ensure_running, stack.up):
            with pytest.raises(StackError, match=r"credentials\.json is damaged \(missing"):
                call(config)
        assert process.poll() is None
        assert not path.exists()
        assert stack.down(config) is True
    stack.reset(config)


def prepare(service: Service) -> None:
    service.prepare()


@pytest.mark.parametrize("content", [None, "", "garbage\n", "version=1\nnode.id=1\n"])
def test_damaged_kafka(context: Context, content: str | None) -> None:
    data = context.folder("kafka/data")
    if content is not None:
        (data / "meta.properties").write_text(content)
    with pytest.raises(StackError, match=r"meta\.properties is damaged"):
        prepare(kafka.service(context))


@pytest.mark.parametrize("content", [b"not a database at all", b"SQLite format 3\0" + b"x" * 5000])
def test_damaged_catalog(context: Context, content: bytes) -> None:
    (context.folder("iceberg_rest") / "catalog.db").write_bytes(content)
    with pytest.raises(StackError, match=r"catalog\.db is damaged"):
        prepare(iceberg_rest.service(context))


def test_damaged_schemas(context: Context) -> None:
    (context.folder("schema_registry") / "registry.mv.db").write_bytes(b"x" * 9000)
    with pytest.raises(StackError, match=r"registry\.mv\.db is damaged"):
        prepare(schema_registry.service(context))


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "go\nException in thread main: oh\n\tat a.b(C.java)\nCaused by: the reason\n\tat d",
            "the reason",
        ),
        ("2026 ERROR Exiting: bind failed\n2026 INFO bye\n", "2026 ERROR Exiting: bind failed"),
        ("only this\n\n", "only this"),
        ("", ""),
    ],
)
def test_last_words(tmp_path: Path, log: str, reason: str) -> None:
    path = tmp_path / "service.log"
    path.write_text(log)
    assert health.last_words(path) == reason


def test_status_of_what_never_ran(config: Settings) -> None:
    states = stack.status(config)
    assert {service.state for service in states} == {"stopped"}
    assert json.dumps([service.url for service in states])
    assert not config.state_dir.exists()
    assert stack.down(config) is False
    assert stack.reset(config) is False


def test_run_after_down_starts_no_stack(context: Context) -> None:
    config = context.config
    state.save_ports(context)
    assert stack.down(config) is False
    with pytest.raises(StackNotRunningError, match="`topicberg down` has ended it") as caught:
        stack.ensure_running(config)
    assert "topicberg up" in str(caught.value.hint)
    assert not supervisor.stack_processes(config.state_dir)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_down_that_stops_nothing_leaves_no_mark(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, mark = context.config, stopped_file(context.config)
    monkeypatch.setattr(stack, "FileLock", lambda path, timeout: FileLock(path, timeout=0.1))
    with FileLock(state.lock_file(config)), pytest.raises(StackError, match="being started"):
        stack.down(config)
    assert not mark.exists()
    monkeypatch.setattr(stack, "end_runs", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stack.down(config)
    assert not mark.exists()

    def up_that_ends(*_: object) -> None:
        with pytest.raises(StackNotRunningError, match="has ended it"):
            load_endpoints(config)  # as a sensor does, which requests no run then
        mark.unlink()

    monkeypatch.setattr(stack, "end_runs", up_that_ends)
    stack.down(config)
    assert mark.exists()
    mark.unlink()
    monkeypatch.setattr(stack, "_stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stack.down(config)
    assert mark.exists(), "a part of the stack may be stopped"


@pytest.mark.parametrize("left", [None, ".topicberg/dagster"])
def test_run_of_a_moved_project_starts_no_stack(tmp_path: Path, left: str | None) -> None:
    root = tmp_path / "earlier"
    if left:  # Dagster makes the folder of its storage
        (root / left).mkdir(parents=True)
    config = Settings(project_root=root, state_dir=root / ".topicberg")
    with pytest.raises(StackNotRunningError, match="does not exist any more"):
        stack.ensure_running(config)
    assert not (config.state_dir / "credentials.json").exists()


class Supervisor:
    """All services run, whether or not they answer."""

    def processes(self) -> dict[str, dict[str, object]]:
        return {name: {"start": 1, "statename": "RUNNING"} for name in ("kafka", "spark")}


def test_service_that_is_not_ready_is_named_and_the_others_stay(context: Context) -> None:
    def healthy(_endpoints: object) -> None:
        raise ConnectionError("no broker yet\nat a.b.C")

    late, ready = kafka.service(context), spark.service(context)
    services = [replace(late, healthy=healthy), replace(ready, healthy=lambda _: None)]
    control: Any = Supervisor()
    endpoints: Any = None
    with pytest.raises(health.NotReadyError) as caught:
        health.wait(context, services, endpoints, control, LogReport(), seconds=0.5)
    assert caught.value.message.startswith("not ready after 0 s: kafka: no broker yet. The other")
    assert "services (1) run" in caught.value.message
    assert str(caught.value.hint).startswith("run `topicberg up` again")


def test_relative_state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services and clients run in other directories."""
    monkeypatch.chdir(tmp_path)
    assert Settings(state_dir=Path("mine")).state_dir == tmp_path / "mine"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "127.0.0.1,localhost"),
        (".corp", ".corp,127.0.0.1,localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("*", "*"),
    ],
)
def test_no_proxy_before_the_stack(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    monkeypatch.setenv("NO_PROXY", before)
    monkeypatch.setenv("no_proxy", before)
    bypass_proxy()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == after
