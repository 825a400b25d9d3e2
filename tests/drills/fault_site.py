"""A stack with Dagster, on which faults follow each other, each alerted and resolved.

Dagster runs as `topicberg ui` runs it, with a copy of the project; the engine reaches the registry,
the catalog and the object store through proxies that refuse. Of each fault, the alert has to name
the cause, within a minute.

With TOPICBERG_TEST_DRILL_RESULTS=<file>, each drill adds a line of JSON there, of which
``tests/drills/table.py`` makes the third table in docs/contributing/drills.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
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
import requests
from faults import note
from faulty_proxy import Answer, FaultyProxy
from project_copy import copy_project
from waiting import wait_until

from topicberg.alerts.alert import Notice
from topicberg.alerts.channels import alerts_file
from topicberg.alerts.dagster_processes import running_ui
from topicberg.endpoints import Endpoints, runtime_file
from topicberg.files import replace_file
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.status import read_status
from topicberg.topics import load_topic
from topicberg_local import health
from topicberg_local import stack as local_stack
from topicberg_local.datagen import runner as datagen

ALERT_SECONDS, PATIENCE_SECONDS = 60.0, 600.0
MISSING_SECONDS = 150.0
"""After which an alert is taken to be missing."""
TOPIC, NAME = "airline.sunset", "airline_sunset"
OTHER_TOPIC, OTHER = "airline.skyone", "airline_skyone"
ENGINE = f"check iceberg/{NAME}:tableflow"
TABLE = (f"iceberg/{NAME}",)
PROXIED = ("schema_registry", "iceberg_rest", "s3")
End = Callable[[], object]
"""Ends a fault."""


class Addresses(threading.Thread):
    """Keeps the file of the addresses as it is to be: runs write the services' own there again,
    when they find a service that is not up yet.
    """

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(daemon=True)
        self._path, self.text, self._over = path, text, threading.Event()
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        with self._lock:
            self.text = text
            replace_file(self._path, text)

    def run(self) -> None:
        while not self._over.wait(0.05):
            with self._lock:
                if self._path.read_text() != self.text:
                    replace_file(self._path, self.text)

    def end(self) -> None:
        self._over.set()
        self.join()


class Site:
    """The stack, its proxies, Dagster, and a producer of two topics."""

    def __init__(self, stack: Endpoints, folder: Path) -> None:
        self.config: Settings = settings()
        self.direct, self.folder = stack, folder
        self.project = copy_project(folder)
        self.proxies: dict[str, FaultyProxy] = {}
        self.addresses: Addresses | None = None
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
                document["endpoints"][name] = proxy.url + urlsplit(document["endpoints"][name]).path
            self.addresses = Addresses(runtime_file(self.config), json.dumps(document))
            self.addresses.start()
            kill("tableflow")
            try:
                self.await_engine()
                self.start_ui()
                yield self
            finally:
                self.end_ui()
                datagen.stop_all(self.config)
                self.addresses.end()
                replace_file(runtime_file(self.config), kept)
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
        children = psutil.Process(self.ui.pid).children(recursive=True)
        return next(one for one in children if module in " ".join(one.cmdline()))

    def produce(self) -> None:
        """Records of both topics, by generators."""
        for topic in (TOPIC, OTHER_TOPIC):
            datagen.start(self.config, topic, rate=2)

    # --- Dagster ---

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        body = {"query": query, "variables": variables}
        answer = requests.post(f"{self.url}/graphql", json=body, timeout=PATIENCE_SECONDS).json()
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
        return bool(self.sensor(name).get("sensorState", {}).get("ticks"))

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


@dataclass(frozen=True)
class Fault:
    what: str
    """For the table in docs/contributing/drills.md."""
    begin: Callable[[Site], End]
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
        return self.what


def refused(service: str, which: str, answer: Answer) -> Callable[[Site], End]:
    """Let a proxy answer requests whose "METHOD path" matches."""

    def begin(site: Site) -> End:
        proxy = site.proxies[service]
        proxy.answer = lambda method, path: answer if re.search(which, f"{method} {path}") else None

        def end() -> None:
            proxy.answer = lambda *_: None

        return end

    return begin


@contextmanager
def committing_site(stack: Endpoints, folder: Path) -> Iterator[Site]:
    """Yield a site whose engine commits both topics."""
    with Site(stack, folder).running() as site:

        def commits() -> bool:
            topics = TOPIC, OTHER_TOPIC
            return all(read_status(site.config, topic).phase == "RUNNING" for topic in topics)

        wait_until(commits, PATIENCE_SECONDS)
        yield site


def drill(site: Site, fault: Fault) -> None:
    """Begin a fault, wait for its alert, end it, and wait until the alert is resolved."""
    seen = len(site.sent())

    def notices(state: str) -> list[Notice]:
        found = [one for one in site.sent()[seen:] if re.fullmatch(fault.key, one.alert.key)]
        return [one for one in found if one.state == state]

    began, end = time.monotonic(), fault.begin(site)
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
    seconds_resolved, others = time.monotonic() - ended, site.sent()[seen:]
    record(fault, others, seconds_reported, seconds_resolved)
    (notice,) = notices("firing")
    assert re.search(fault.says, notice.alert.what), notice.text
    assert set(fault.tables) <= set(notice.alert.assets)
    assert re.search(fault.fix, notice.alert.remediation or ""), notice.text
    assert len(notices("resolved")) == 1
    assert seconds_reported <= ALERT_SECONDS
    assert not [one for one in others if one.alert.key in fault.healthy]


def record(fault: Fault, sent: list[Notice], reported: float, resolved: float) -> None:
    note(
        other=fault.what,
        alert=next((n.alert.key for n in sent if re.fullmatch(fault.key, n.alert.key)), ""),
        seconds_reported=round(reported, 1),
        seconds_resolved=round(resolved, 1),
        sent=[
            (n.state, n.at.strftime("%H:%M:%S"), n.alert.key, n.alert.what, n.alert.remediation)
            for n in sent
        ],
    )
