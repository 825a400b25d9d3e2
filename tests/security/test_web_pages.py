"""A page of another origin in the operator's browser changes nothing and reads nothing.

Against all that answers HTTP on a running stack, and the Dagster UI as `topicberg ui` runs it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from other_user import as_other_user, needs_users
from security.corpus import REQUESTS
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from topicberg.endpoints import Endpoints
from topicberg.settings import settings
from topicberg_local import state
from topicberg_local.ports import choose

pytestmark = [pytest.mark.integration, pytest.mark.project]

MUTATION = 'mutation { setConcurrencyLimit(concurrencyKey: "attacked", limit: 7) }'
LIMITS = "{ instance { concurrencyLimits { concurrencyKey } } }"
NAMES = [attack["name"] for attack in REQUESTS]


def ask(
    address: str, method: str, path: str, headers: dict[str, str], body: str | None = None
) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of an answer; ``headers`` are all that are sent."""
    connection = HTTPConnection(address, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body or "")))
    connection.endheaders((body or "").encode())
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace"), dict(answer.getheaders())


def attack_on(address: str, attack: dict[str, Any], path: str) -> tuple[int, str, dict[str, str]]:
    port = address.rpartition(":")[2]
    headers = {name: value.format(port=port) for name, value in attack["headers"].items()}
    if attack.get("query"):
        path += f"?query={quote(MUTATION)}"
    body = json.dumps({"query": MUTATION}) if attack.get("json") else None
    return ask(address, attack["method"], path, headers, body)


@pytest.fixture(scope="module")
def ui(stack: Endpoints) -> Iterator[str]:
    """Host and port of the Dagster UI, started as users do."""
    port = choose({}, {})["confluent"]
    command = [str(Path(sys.executable).with_name("topicberg")), "ui", "--port", str(port)]
    with (settings().state_dir / "ui.log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "TOPICBERG_STATE_DIR": str(settings().state_dir)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 240
            while True:
                try:
                    assert ask(f"127.0.0.1:{port}", "GET", "/server_info", {})[0] == 200
                    break
                except ConnectionError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(1)
            yield f"127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def graphql(address: str, query: str) -> Any:
    headers = {"Content-Type": "application/json", "Origin": f"http://{address}"}
    status, body, _ = ask(address, "POST", "/graphql", headers, json.dumps({"query": query}))
    assert status == 200, body
    return json.loads(body)["data"]


def limits(ui: str) -> set[str]:
    found = graphql(ui, LIMITS)["instance"]["concurrencyLimits"]
    return {one["concurrencyKey"] for one in found}


@pytest.mark.parametrize("attack", REQUESTS, ids=NAMES)
@pytest.mark.parametrize("path", ["/graphql", "/report_asset_materialization/attacked"])
def test_ui_request_of_another_page_is_refused(ui: str, attack: dict[str, Any], path: str) -> None:
    status, body, headers = attack_on(ui, attack, path)
    if path != "/graphql" and attack["method"] == "GET" and status in (200, 405):
        return  # the page that shows every other path, or no such method
    assert status == 403
    assert body.startswith("refused: ")
    assert not any(name.lower().startswith("access-control") for name in headers)


def test_ui_attacks_change_nothing_and_users_do(ui: str) -> None:
    for attack in REQUESTS:
        attack_on(ui, attack, "/graphql")
    assert "attacked" not in limits(ui)
    assert graphql(ui, MUTATION) == {"setConcurrencyLimit": True}
    assert "attacked" in limits(ui)
    graphql(ui, 'mutation { deleteConcurrencyLimit(concurrencyKey: "attacked") }')


def test_ui_link_from_another_page_is_followed(ui: str) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    status, body, found = ask(ui, "GET", "/runs", {**headers, "Sec-Fetch-Dest": "document"})
    assert (status, found["x-frame-options"]) == (200, "DENY")
    assert "Dagster" in body


def test_ui_websocket_of_another_page_is_refused(ui: str) -> None:
    def open_socket(origin: str) -> ClientConnection:
        return connect(
            f"ws://{ui}/graphql",
            origin=Origin(origin),
            subprotocols=[Subprotocol("graphql-ws")],
            proxy=None,
        )

    with open_socket(f"http://{ui}") as own:
        own.send(json.dumps({"type": "connection_init"}))
        assert json.loads(own.recv(10))["type"] == "connection_ack"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus) as refused:
            open_socket(origin)
        assert refused.value.response.status_code == 403


@needs_users
def test_ui_another_user_of_the_machine_is_refused(ui: str) -> None:
    code = f"""
from http.client import HTTPConnection
import json
for method, path, body in (
    ("GET", "/", None), ("GET", "/server_info", None),
    ("POST", "/graphql", {json.dumps({"query": MUTATION})!r}),
):
    for more in ({{}}, {{"X-Forwarded-For": "127.0.0.1"}}, {{"X-Real-IP": "127.0.0.1"}}):
        connection = HTTPConnection("{ui}", timeout=60)
        connection.request(method, path, body, {{"Content-Type": "application/json", **more}})
        answer = connection.getresponse()
        print(answer.status, answer.read().decode().strip())
"""
    lines = as_other_user(code, "http.client", "json").splitlines()
    assert lines == ["403 refused: the client is a process of another user"] * 9
    assert "attacked" not in limits(ui)


READS = {"confluent": "/health", "snowflake": "/health", "aws": "/health", "tableflow": "/metrics"}
"""Paths that ask for no key."""


def addresses() -> dict[str, str]:
    context = state.load_context(settings())
    return {name: f"127.0.0.1:{port}" for name, port in context.ports.items()}


@pytest.mark.parametrize("service", READS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
    ids=str,
)
def test_service_request_of_another_page_is_refused(
    stack: Endpoints, service: str, headers: dict[str, str]
) -> None:
    address = addresses()[service]
    assert ask(address, "GET", READS[service], {})[0] == 200
    status, body, _ = ask(address, "GET", READS[service], headers)
    assert (status, body[:8]) == (403, "refused:")


def test_registry_request_of_another_page_is_refused(stack: Endpoints) -> None:
    address, path = addresses()["schema_registry"], urlsplit(stack.schema_registry).path
    change = json.dumps({"schema": '"string"'})
    for origin in ("http://evil.example", "http://127.0.0.1:8888", "http://localhost:8888", "null"):
        for method, where, body in (
            ("GET", "/subjects", None),
            ("POST", "/subjects/attacked/versions", change),
            ("DELETE", "/subjects/attacked", None),
        ):
            headers = {"Origin": origin, "Content-Type": "application/json"}
            assert ask(address, method, path + where, headers, body)[0] == 403, (origin, method)
    # Without an origin, only what needs no preflight request can be sent.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        where = f"{path}/subjects/attacked/versions"
        status, *_ = ask(address, "POST", where, {"Content-Type": kind}, change)
        assert status in (403, 415)
    status, body, _ = ask(address, "GET", f"{path}/subjects", {})
    assert status == 200
    assert "attacked" not in body


@pytest.mark.parametrize("name", ["iceberg_rest", "s3", "supervisor"])
def test_service_with_a_key_refuses_a_page(stack: Endpoints, name: str) -> None:
    paths = {"iceberg_rest": "/v1/namespaces", "s3": f"/{settings().bucket}", "supervisor": "/RPC2"}
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
        headers = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
        status, _, found = ask(addresses()[name], method, paths[name], headers, "x")
        assert status >= 400
        assert "access-control-allow-origin" not in {key.lower() for key in found}
