"""Faults by other means than those of the other drills: each alerted, and resolved when it ends.

One stack, with Dagster as `topicberg ui` runs it and a copy of the project; the engine reaches the
registry, the catalog and the object store through proxies that refuse. Faults follow each other. Of
each, the alert has to name the cause, within a minute.

With TOPICBERG_TEST_DRILL_RESULTS=<file>, each drill adds a line of JSON there, of which
``tests/drills/table.py`` makes the third table in docs/drills.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import requests
from confluent_kafka import TopicPartition
from faulty_proxy import Answer, FaultyProxy
from project_copy import copy_project
from waiting import wait_until

from topicberg.alerts.alert import Notice
from topicberg.alerts.channels import alerts_file
from topicberg.alerts.dagster_ui import CODE, DAEMON, WEBSERVER, running_ui
from topicberg.catalogs.snowflake.names import table_path
from topicberg.datagen import runner as datagen
from topicberg.endpoints import Endpoints, runtime_file
from topicberg.settings import Settings, settings
from topicberg.tableflow import control
from topicberg.tableflow.status import read_status
from topicberg.topics import load_topic
from topicberg_local import health
from topicberg_local import stack as local_stack

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

ALERT_SECONDS, PATIENCE_SECONDS = 60.0, 300.0
MISSING_SECONDS = 150.0
"""After which an alert is taken to be missing."""
TOPIC, NAME = "airline.sunset", "airline_sunset"
OTHER_TOPIC, OTHER = "airline.skyone", "airline_skyone"
ENGINE = f"check iceberg/{NAME}:tableflow"
PROXIED = ("schema_registry", "iceberg_rest", "s3")
BLOCKED_SECONDS = 600.0


class Site:
    """The stack, its proxies, Dagster, and a producer of two topics."""

    def __init__(self, stack: Endpoints, folder: Path) -> None:
        self.config: Settings = settings()
        self.direct, self.folder = stack, folder
        self.project = copy_project(folder)
        self.proxies: dict[str, FaultyProxy] = {}
        self.url = ""
        self.ui: subprocess.Popen[bytes] | None = None

    # --- what runs ---

    @contextmanager
    def running(self) -> Iterator[Site]:
        with ExitStack() as proxies:
            for name in PROXIED:
                url = urlsplit(str(getattr(self.direct, name)))
                proxy = FaultyProxy(f"http://{url.netloc}")
                self.proxies[name] = proxies.enter_context(proxy)
            self.produce()  # by the addresses of the services
            kept = runtime_file(self.config).read_text()
            document = json.loads(kept)
            for name, proxy in self.proxies.items():
                path = urlsplit(document["endpoints"][name]).path
                document["endpoints"][name] = proxy.url + path
            runtime_file(self.config).write_text(json.dumps(document))
            kill("tableflow")
            try:
                self.await_engine()  # `topicberg ui` writes the services' own addresses again
                self.start_ui()
                yield self
            finally:
                self.end_ui()
                datagen.stop_all(self.config)
                runtime_file(self.config).write_text(kept)
                kill("tableflow")

    def await_engine(self) -> None:
        """Wait until the engine reaches the services through the proxies."""
        asked: set[str] = set()
        for name, proxy in self.proxies.items():
            proxy.answer = lambda _method, _path, name=name: asked.add(name)  # type: ignore[misc]
        wait_until(lambda: asked == set(PROXIED), PATIENCE_SECONDS)
        for proxy in self.proxies.values():
            proxy.answer = lambda *_: None

    def start_ui(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = int(server.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "TOPICBERG_PROJECT_ROOT": str(self.project)}
        with (self.folder / "ui.log").open("ab") as log:
            self.ui = subprocess.Popen(
                [str(Path(sys.executable).with_name("topicberg")), "ui", "--port", str(port)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(lambda: running_ui(self.config) == self.url, PATIENCE_SECONDS)

        def runs() -> bool:
            states = {one.name: one.state for one in health.dagster_status(self.config)}
            return set(states.values()) == {"running"} and self.ticks("alerts")

        wait_until(runs, PATIENCE_SECONDS)

    def end_ui(self) -> None:
        if self.ui is not None and self.ui.poll() is None:
            os.killpg(self.ui.pid, signal.SIGINT)
            try:
                self.ui.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(self.ui.pid, signal.SIGKILL)

    def process(self, module: str) -> psutil.Process:
        assert self.ui is not None
        children = psutil.Process(self.ui.pid).children(recursive=True)
        return next(one for one in children if module in " ".join(one.cmdline()))

    def produce(self) -> None:
        """Records of both topics, by generators."""
        for topic in (TOPIC, OTHER_TOPIC):
            datagen.start(self.config, topic, rate=2)

    # --- Dagster ---

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = {"query": query, "variables": variables}
        answer = requests.post(f"{self.url}/graphql", json=body, timeout=120).json()
        assert "errors" not in answer, answer
        return dict(answer["data"])

    def location(self) -> str:
        found = self.ask("{workspaceOrError{...on Workspace{locationEntries{name}}}}")
        return str(found["workspaceOrError"]["locationEntries"][0]["name"])

    def sensor(self, name: str) -> dict[str, Any]:
        selector = {
            "repositoryLocationName": self.location(),
            "repositoryName": "__repository__",
            "sensorName": name,
        }
        query = """query($it:SensorSelector!){sensorOrError(sensorSelector:$it){__typename
            ...on Sensor{id sensorState{id selectorId status ticks(limit:1){timestamp}}}}}"""
        return dict(self.ask(query, it=selector)["sensorOrError"]) | {"selector": selector}

    def ticks(self, name: str) -> bool:
        sensor = self.sensor(name)
        return bool(sensor.get("sensorState", {}).get("ticks"))

    def turn_off(self, name: str) -> None:
        query = """mutation($id:String!){stopSensor(id:$id){__typename}}"""
        found = self.ask(query, id=self.sensor(name)["id"])
        assert found["stopSensor"]["__typename"] == "StopSensorMutationResult", found

    def turn_on(self, name: str) -> None:
        query = """mutation($it:SensorSelector!){startSensor(sensorSelector:$it){__typename}}"""
        found = self.ask(query, it=self.sensor(name)["selector"])
        assert found["startSensor"]["__typename"] == "Sensor", found

    def reload(self) -> None:
        self.ask(
            """mutation($name:String!){reloadRepositoryLocation(repositoryLocationName:$name){
            __typename}}""",
            name=self.location(),
        )

    # --- what is reported ---

    def sent(self) -> list[Notice]:
        file = alerts_file(self.config)
        lines = file.read_text().splitlines() if file.exists() else []
        return [Notice.model_validate_json(line) for line in lines]

    def bucket(self) -> Path:
        identifier = load_topic(TOPIC).table_identifier(self.config)
        location = self.direct.catalog(self.config).load_table(identifier).location()
        return self.config.state_dir / "s3" / "objects" / urlsplit(location).netloc


def kill(name: str) -> None:
    """SIGKILL; its supervisor starts it again."""
    for service in local_stack.status(settings()):
        if service.name == name and service.pid is not None:
            with suppress(psutil.Error):
                psutil.Process(service.pid).kill()


class CrashLoop(threading.Thread):
    """A service that ends as soon as it serves."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        self._name, self.over = name, threading.Event()

    def run(self) -> None:
        while not self.over.wait(3.0):
            (service,) = (s for s in local_stack.status(settings()) if s.name == self._name)
            if service.running:
                kill(self._name)

    def end(self) -> None:
        self.over.set()
        self.join()


@dataclass(frozen=True)
class Fault:
    name: str
    what: str
    """For the table in docs/drills.md."""
    begin: Callable[[Site], Callable[[], object]]
    """Begins it, and returns what ends it."""
    key: str
    """Of the alert."""
    says: str
    """The cause, in its text."""
    fix: str
    """The fix, in its remediation."""
    tables: tuple[str, ...] = ()
    """Those that the alert names."""
    healthy: tuple[str, ...] = ()
    """Keys of alerts that must not be sent."""

    def __str__(self) -> str:
        return self.name


def refused(service: str, which: str, answer: Answer) -> Callable[[Site], Callable[[], object]]:
    """Let a proxy answer requests whose "METHOD path" matches."""

    def begin(site: Site) -> Callable[[], object]:
        proxy = site.proxies[service]
        proxy.answer = lambda method, path: answer if re.search(which, f"{method} {path}") else None

        def end() -> None:
            proxy.answer = lambda *_: None

        return end

    return begin


def s3_error(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()


def catalog_error(code: int, kind: str, message: str) -> Answer:
    body = {"error": {"code": code, "type": kind, "message": message}}
    return code, "application/json", json.dumps(body).encode()


COMMITS = r"^POST /v1/namespaces/[^/]+/tables/[^/]+$"


def black_hole(site: Site) -> Callable[[], object]:
    """The registry accepts requests and never answers the engine; to others it does."""
    over = threading.Event()

    def silent(_method: str, _path: str) -> None:
        over.wait(BLOCKED_SECONDS)

    proxy = site.proxies["iceberg_rest"]
    proxy.answer = silent

    def end() -> None:
        proxy.answer = lambda *_: None
        over.set()

    return end


def without_bucket(site: Site) -> Callable[[], object]:
    bucket = site.bucket()
    away = bucket.with_name("moved")
    bucket.rename(away)

    def end() -> None:
        shutil.rmtree(bucket, ignore_errors=True)
        away.rename(bucket)

    return end


def without_metadata(site: Site) -> Callable[[], object]:
    """Someone deletes the newest metadata file of one table."""
    control.disable(site.config, TOPIC)
    time.sleep(5)
    catalog = site.direct.catalog(site.config)
    table = catalog.load_table(load_topic(TOPIC).table_identifier(site.config))
    path = site.bucket() / urlsplit(table.metadata_location).path.lstrip("/")
    away = path.with_name("moved")
    path.rename(away)
    control.enable(site.config, TOPIC)
    return lambda: away.rename(path)


def crash_loop(name: str) -> Callable[[Site], Callable[[], object]]:
    def begin(_site: Site) -> Callable[[], object]:
        loop = CrashLoop(name)
        loop.start()
        return loop.end

    return begin


def daemon_killed(site: Site) -> Callable[[], object]:
    site.process("dagster._daemon").kill()
    return site.start_ui


def sensor_off(name: str) -> Callable[[Site], Callable[[], object]]:
    def begin(site: Site) -> Callable[[], object]:
        site.turn_off(name)
        return lambda: site.turn_on(name)

    return begin


def code_broken(site: Site) -> Callable[[], object]:
    """Someone saves half a statement, and reloads."""
    file = site.project / "definitions.py"
    text = file.read_text()
    file.write_text(f"{text}\ndefs = (\n")
    site.reload()

    def end() -> None:
        file.write_text(text)
        site.reload()

    return end


def spec_broken(site: Site) -> Callable[[], object]:
    file = site.project / "platform/topics/airline.sunset.yaml"
    text = file.read_text()
    file.write_text(text.replace("write_mode: append", "write_mode: apend"))

    def end() -> None:
        file.write_text(text)

    return end


def storage_locked(site: Site) -> Callable[[], object]:
    """Another program holds the locks of Dagster's databases, as a backup does."""
    paths = sorted((site.config.state_dir / "dagster").rglob("*.db"))
    connections = [
        sqlite3.connect(path, isolation_level=None, check_same_thread=False) for path in paths
    ]
    for connection in connections:
        connection.execute("PRAGMA busy_timeout=60000")
        connection.execute("BEGIN EXCLUSIVE")

    def end() -> None:
        for connection in connections:
            connection.rollback()
            connection.close()

    return end


def snowflake_table_replaced(site: Site) -> Callable[[], object]:
    """Someone puts a view in the place of one table of Snowflake."""
    import snowflake.connector

    account = site.direct.snowflake.model_dump()
    account["password"] = site.direct.snowflake.password.get_secret_value()
    source = (site.config.cluster_id, load_topic(TOPIC).glue_name)
    path = table_path(site.config, NAME.upper(), source).sql

    def run(*statements: str) -> None:
        with snowflake.connector.connect(**account, login_timeout=10) as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    run(f"DROP TABLE {path}", f"CREATE VIEW {path} AS SELECT 1 AS one")
    return lambda: run(f"DROP VIEW {path}")


def start_again(site: Site) -> None:
    """Drop the table, as the alert says: the engine ingests what the topic has."""
    spec = load_topic(TOPIC)
    site.direct.catalog(site.config).drop_table(spec.table_identifier(site.config))


def retention_passed(site: Site) -> Callable[[], object]:
    """Kafka deletes records of a topic that was not ingested for a while."""
    control.disable(site.config, TOPIC)
    time.sleep(15)  # records arrive, and no batch is in progress
    admin = site.direct.kafka_admin()
    (future,) = admin.delete_records([TopicPartition(TOPIC, 0, -1)]).values()
    future.result(30)
    control.enable(site.config, TOPIC)
    return lambda: start_again(site)


def topic_deleted(site: Site) -> Callable[[], object]:
    datagen.stop(site.config, TOPIC)
    admin = site.direct.kafka_admin()
    admin.delete_topics([TOPIC])[TOPIC].result(30)

    def end() -> None:
        datagen.start(site.config, TOPIC, rate=2)  # it creates the topic
        start_again(site)

    return end


REGISTRY_FAILS = (500, "application/json", b'{"error_code":50001,"message":"store"}')
REGISTRY_REFUSES = (401, "application/json", b'{"error_code":401,"message":"Unauthorized"}')
STORE_REFUSES = (403, "application/xml", s3_error("AccessDenied"))
BUSY = catalog_error(503, "ServiceUnavailableException", "busy")
CONFLICT = catalog_error(409, "CommitFailedException", "branch main has changed")
TABLE = (f"iceberg/{NAME}",)

FAULTS = (
    Fault(
        "store_refuses_key",
        "the object store refuses the key (403)",
        refused("s3", ".", STORE_REFUSES),
        ENGINE,
        "the object store refuses the credentials",
        "access key",
        TABLE,
    ),
    Fault(
        "registry_fails_for_one_subject",
        "the registry answers 500 for one subject",
        refused("schema_registry", f"{TOPIC}-value", REGISTRY_FAILS),
        ENGINE,
        f"the schema registry fails .*{TOPIC}-value",
        "logs schema_registry",
        TABLE,
        healthy=(f"check iceberg/{OTHER}:tableflow",),
    ),
    Fault(
        "registry_refuses_login",
        "the registry refuses the login (401)",
        refused("schema_registry", ".", REGISTRY_REFUSES),
        ENGINE,
        "the schema registry refuses the login",
        "TOPICBERG_SCHEMA_REGISTRY_URL",
        TABLE,
    ),
    Fault(
        "catalog_fails_commits",
        "the catalog answers 503 to commits, and to nothing else",
        refused("iceberg_rest", COMMITS, BUSY),
        ENGINE,
        "the catalog fails: .*busy",
        "logs iceberg_rest",
        TABLE,
    ),
    Fault(
        "catalog_conflicts",
        "the catalog answers 409 to every commit",
        refused("iceberg_rest", COMMITS, CONFLICT),
        ENGINE,
        "batches in a row met another commit",
        "second engine",
        TABLE,
    ),
    Fault(
        "catalog_black_hole",
        "the way to the catalog swallows requests",
        black_hole,
        ENGINE,
        "Iceberg's catalog does not answer",
        "Iceberg's catalog",
        TABLE,
    ),
    Fault(
        "bucket_gone",
        "the bucket is deleted",
        without_bucket,
        ENGINE,
        "the bucket of the table does not exist",
        "restore the bucket",
        TABLE,
    ),
    Fault(
        "metadata_gone",
        "the metadata file of one table is deleted",
        without_metadata,
        ENGINE,
        f"table .*{TOPIC}: its metadata file is missing in the object store",
        "restore the file",
        TABLE,
        healthy=(f"check glue/{NAME}:pointer", f"check iceberg/{OTHER}:tableflow"),
    ),
    Fault(
        "store_crash_loop",
        "the object store ends again and again",
        crash_loop("s3"),
        "service s3",
        "does not stay up: it ends again and again",
        "topicberg logs s3",
    ),
    Fault(
        "engine_crash_loop",
        "the engine ends again and again",
        crash_loop("tableflow"),
        "service tableflow",
        "was started again",
        "topicberg logs tableflow",
    ),
    Fault(
        "daemon_killed",
        "Dagster's daemon is killed",
        daemon_killed,
        f"service {WEBSERVER}",
        "the process of `topicberg ui` .* ended",
        "topicberg ui",
    ),
    Fault(
        "sensor_off",
        "someone turns the sensor `snapshots` off",
        sensor_off("snapshots"),
        "silent snapshots",
        "the sensor snapshots was turned off",
        "turn it on",
    ),
    Fault(
        "alerts_off",
        "someone turns the sensor `alerts` off",
        sensor_off("alerts"),
        f"service {CODE}",
        "the sensor alerts is off",
        "turn it on: Automation, alerts",
    ),
    Fault(
        "code_broken",
        "the code location does not load",
        code_broken,
        f"service {CODE}",
        "does not load: .*never closed",
        "correct the file",
    ),
    Fault(
        "spec_broken",
        "someone saves a wrong spec",
        spec_broken,
        "specs",
        "airline.sunset.*write_mode",
        "topicberg topics validate",
    ),
    Fault(
        "storage_locked",
        "Dagster's databases are locked",
        storage_locked,
        f"service {DAEMON}",
        "it cannot write its database .*: database is locked",
        "fuser",
    ),
    Fault(
        "snowflake_table_replaced",
        "a view is in the place of one table of Snowflake",
        snowflake_table_replaced,
        "run register_tables",
        f"Snowflake cannot create the Iceberg table .*{NAME.upper()}: another object has this name",
        "drop or rename the object",
        (),
        (f"check iceberg/{NAME}:tableflow",),
    ),
    Fault(
        "retention_passed",
        "Kafka deletes records before they are ingested",
        retention_passed,
        ENGINE,
        "deleted|retention",
        ".",
        TABLE,
    ),
    Fault(
        "topic_deleted",
        "the topic is deleted",
        topic_deleted,
        ENGINE,
        "does not exist|deleted",
        ".",
        TABLE,
    ),
)


@pytest.fixture(scope="module")
def site(stack: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(stack, tmp_path_factory.mktemp("project")).running() as site:
        config = site.config

        def commits() -> bool:
            return all(
                read_status(config, topic).phase == "RUNNING" for topic in (TOPIC, OTHER_TOPIC)
            )

        wait_until(commits, PATIENCE_SECONDS)
        yield site


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_alerted_in_a_minute_and_resolved(site: Site, fault: Fault) -> None:
    seen = len(site.sent())

    def notices(state: str) -> list[Notice]:
        found = [one for one in site.sent()[seen:] if re.fullmatch(fault.key, one.alert.key)]
        return [one for one in found if one.state == state]

    began = time.monotonic()
    end = fault.begin(site)
    began = time.monotonic()
    try:
        with suppress(Exception):
            wait_until(lambda: notices("firing"), MISSING_SECONDS)
        seconds_reported = time.monotonic() - began
    finally:
        ended = time.monotonic()
        end()
    with suppress(Exception):
        wait_until(lambda: len(notices("resolved")) == len(notices("firing")), PATIENCE_SECONDS)
    seconds_resolved = time.monotonic() - ended
    others = site.sent()[seen:]
    record(fault, others, seconds_reported, seconds_resolved)
    (notice,) = notices("firing")
    assert re.search(fault.says, notice.alert.what), notice.text
    assert set(fault.tables) <= set(notice.alert.assets)
    assert re.search(fault.fix, notice.alert.remediation or ""), notice.text
    assert len(notices("resolved")) == 1
    assert seconds_reported <= ALERT_SECONDS
    assert not [one for one in others if one.alert.key in fault.healthy]


def record(fault: Fault, sent: list[Notice], reported: float, resolved: float) -> None:
    path = os.environ.get("TOPICBERG_TEST_DRILL_RESULTS")
    if not path:
        return
    row = {
        "other": fault.what,
        "alert": next((n.alert.key for n in sent if re.fullmatch(fault.key, n.alert.key)), ""),
        "seconds_reported": round(reported, 1),
        "seconds_resolved": round(resolved, 1),
        "sent": [
            (n.state, n.at.strftime("%H:%M:%S"), n.alert.key, n.alert.what, n.alert.remediation)
            for n in sent
        ],
    }
    with Path(path).open("a") as file:
        file.write(json.dumps(row) + "\n")
