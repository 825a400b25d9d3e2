"""Every request of `deploy` to Confluent, sent and judged: unknown, read-only and missing fields,
wrong enums, parameters that are missing or unknown, a key of the wrong kind.

The judge is the stand-in, which is as strict as the vendor's OpenAPI documents, here without a
stack: what needs the broker, the registry or the engine is judged, remembered and told again.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from moto import mock_aws
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from test_confluent_stand_in import NO_DELAYS, NOWHERE

from topicberg.deploy import engine
from topicberg.deploy.confluent.api import ApiError
from topicberg.deploy.confluent.integrations import PROVIDER_INTEGRATION
from topicberg.deploy.platform import resources
from topicberg.deploy.resource import Live, Resource
from topicberg.deploy.rotate import rotate
from topicberg.deploy.settings import DeploySettings
from topicberg.deploy.world import CLUSTER, ENVIRONMENT, World
from topicberg.local import state
from topicberg.local.confluent.account import Account
from topicberg.local.confluent.errors import not_found
from topicberg.local.confluent.faults import Fault
from topicberg.local.confluent.keys import Bootstrap
from topicberg.local.confluent.operation import Call, Operation
from topicberg.local.confluent.server import OPERATIONS, Server
from topicberg.local.confluent.wire import Answer
from topicberg.settings import Settings
from topicberg.topics import load_topics

OPEN_CATALOG = {
    "catalog_uri": "https://org-open.snowflakecomputing.com/polaris/api/catalog",
    "catalog_name": "lake",
    "catalog_client_id": "client",
    "catalog_client_secret": SecretStr("hush"),
    "catalog_scope": "PRINCIPAL_ROLE:ALL",
}
MALFORMED = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.NOT_IMPLEMENTED,
}
Documents = dict[str, dict[str, Any]]


@dataclass
class Asked:
    """A request and what was said to it."""

    method: str
    path: str
    query: list[tuple[str, str]]
    body: Any
    status: int

    @property
    def operation(self) -> tuple[str, str]:
        return next(
            (one.method, one.path)
            for one in OPERATIONS
            if one.method == self.method and one.match(self.path) is not None
        )


@dataclass
class Stackless(Server):
    """The stand-in without a broker, a registry and an engine."""

    account: Account
    asked: list[Asked] = field(default_factory=list)
    topics: Documents = field(default_factory=dict)
    schemas: dict[str, list[str]] = field(default_factory=dict)
    connectors: Documents = field(default_factory=dict)
    enabled: Documents = field(default_factory=dict)
    catalogs: Documents = field(default_factory=dict)
    synced: list[str | None] = field(default_factory=list)
    """What the next looks at a Tableflow topic tell of its catalog; then that it is in sync."""

    def __post_init__(self) -> None:
        super().__init__(self.account, Bootstrap("LOCALKEY", "local-secret"), "admin-token")
        self._ours: list[tuple[str, Callable[[Call], Answer]]] = [
            (r"/kafka/v3/clusters/[^/]+/topics.*", self._topics),
            (r"/subjects.*", self._subjects),
            (r"/connect/v1/.*", self._connectors),
            (r"/tableflow/v1/tableflow-topics.*", self._tables),
            (r"/tableflow/v1/catalog-integrations.*", self._catalogs),
        ]

    async def handle(self, request: Request) -> Response:
        answer = await super().handle(request)
        content = await request.body()
        self.asked.append(
            Asked(
                request.method,
                request.url.path,
                request.query_params.multi_items(),
                json.loads(content) if content else None,
                answer.status_code,
            )
        )
        return answer

    def _answer(
        self,
        operation: Operation,
        parameters: dict[str, str],
        request: Request,
        content: bytes,
        fault: Fault | None,
    ) -> Response:
        for pattern, handler in self._ours:
            if re.fullmatch(pattern, request.url.path):
                operation = replace(operation, handler=handler)
        return super()._answer(operation, parameters, request, content, fault)

    def _topics(self, call: Call) -> Answer:
        body = json.loads(call.content or b"{}")
        name = call.path.get("topic_name", "")
        if call.method == "POST" and not name:
            configs = {one["name"]: one["value"] for one in body["configs"]}
            self.topics[body["topic_name"]] = {
                "partitions_count": body["partitions_count"],
                "configs": configs,
            }
            return Answer({})
        if not name:
            return Answer({"data": []})
        topic = _known(self.topics, name)
        if call.method == "DELETE":
            del self.topics[name]
        elif call.method == "PATCH":
            topic |= body
        elif call.method == "POST":
            topic["configs"] |= {one["name"]: one["value"] for one in body["data"]}
        elif call.url.endswith("/configs"):
            return Answer({"data": [{"name": k, "value": v} for k, v in topic["configs"].items()]})
        else:
            return Answer({"topic_name": name, **topic})
        return Answer()

    def _subjects(self, call: Call) -> Answer:
        name, _, rest = call.path.get("rest", "").partition("/")
        body = json.loads(call.content or b"{}")
        versions = self.schemas.get(name, [])
        if not name:
            return Answer([*self.schemas])
        if call.method == "POST" and rest == "versions":
            self.schemas.setdefault(name, []).append(body["schema"])
            return Answer({"id": 1})
        if not versions or (call.method == "POST" and body["schema"] not in versions):
            raise not_found(name)
        if call.method == "DELETE" and dict(call.parameters).get("permanent"):
            del self.schemas[name]
        return Answer({"id": 1} if call.method == "POST" else [*range(1, len(versions) + 1)])

    def _connectors(self, call: Call) -> Answer:
        body = json.loads(call.content or b"{}")
        if call.url.endswith("/config/validate"):
            return Answer({"error_count": 0, "configs": []})
        if call.method == "POST":
            self.connectors[body["name"]] = {"config": body["config"], "state": "RUNNING"}
            return Answer({})
        name = call.path.get("connector_name", "")
        if not name:
            return Answer({one: self._shown(one) for one in self.connectors})
        connector = _known(self.connectors, name)
        if call.method == "DELETE":
            del self.connectors[name]
            return Answer({"error": None})
        if call.url.endswith("/resume"):
            connector["state"] = "RUNNING"
        elif call.url.endswith("/config"):
            connector |= {"config": body, "state": "RUNNING"}
        return Answer(self._shown(name)["status"])

    def _shown(self, name: str) -> dict[str, Any]:
        connector = self.connectors[name]
        return {
            "id": {"id": "lcc-1"},
            "info": {"config": connector["config"]},
            "status": {"connector": {"state": connector["state"]}},
        }

    def _tables(self, call: Call) -> Answer:
        body = json.loads(call.content or b"{}")
        if call.method == "POST":
            self.enabled[body["spec"]["display_name"]] = body["spec"]
            return Answer({})
        name = call.path["display_name"]
        spec = _known(self.enabled, name)
        if call.method == "DELETE":
            del self.enabled[name]
            return Answer()
        if call.method == "PATCH":
            spec["config"] |= body["spec"].get("config", {})
            spec |= {k: v for k, v in body["spec"].items() if k != "config"}
        sync = self.synced.pop(0) if self.synced else "SYNCED"
        synced = [{"sync_status": sync}] if sync else []
        status = {"phase": "RUNNING", "catalog_sync_statuses": synced}
        return Answer({"spec": spec, "status": status})

    def _catalogs(self, call: Call) -> Answer:
        body = json.loads(call.content or b"{}")
        if call.method == "POST":
            self.catalogs["tci-1"] = {"id": "tci-1", "status": {"phase": "CONNECTED"}, **body}
            return Answer({})
        if "id" not in call.path:
            return Answer({"data": [*self.catalogs.values()]})
        catalog = _known(self.catalogs, call.path["id"])
        if call.method == "DELETE":
            del self.catalogs[call.path["id"]]
            return Answer()
        if call.method == "PATCH":
            catalog["spec"]["config"] |= body["spec"]["config"]
            catalog["status"] = {"phase": "CONNECTED"}
        return Answer(catalog)


def _known(documents: Documents, name: str) -> dict[str, Any]:
    if name not in documents:
        raise not_found(name)
    return documents[name]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stackless]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    listener = socket.create_server(("127.0.0.1", 0))
    config = Settings(state_dir=tmp_path)
    state.save_endpoints(config, {}, NOWHERE)
    account = Account(tmp_path, config, f"http://127.0.0.1:{listener.getsockname()[1]}")
    account.delays = NO_DELAYS
    server = Stackless(account)
    http = uvicorn.Server(uvicorn.Config(server.application(), log_level="warning"))
    thread = threading.Thread(target=http.run, args=([listener],), daemon=True)
    with mock_aws():
        thread.start()
        yield server
        http.should_exit = True
        thread.join(10)
    account.close()


def opened(server: Stackless, catalog: str = "glue") -> tuple[World, list[Resource]]:
    """A deployment, and its graph as far as it does not need Snowflake."""
    config = Settings.model_validate(
        {"deployment": "cloud", "prefix": "demo", "snowflake_catalog": catalog}
    )
    deploy = DeploySettings.model_validate(
        {
            "confluent_api_key": "LOCALKEY",
            "confluent_api_secret": SecretStr("local-secret"),
            "confluent_url": server.account.url,
            **OPEN_CATALOG,
        }
    )
    specs = [one for one in load_topics() if one.name == "stock_trades"]
    world = World(config, deploy, specs, sleep=lambda _: time.sleep(0.01))
    graph = [one for one in resources(config, specs) if "snowflake" not in one.key]
    return world, graph


def quiet(*_: object) -> None:
    pass


def with_tableflow(server: Stackless, catalog: str) -> tuple[World, list[Resource]]:
    """The least that Tableflow's API needs is there."""
    world, graph = opened(server, catalog)
    account = "confluent/service_account/app_manager"
    keys = (ENVIRONMENT, CLUSTER, account, "confluent/role_binding/cluster_admin", "key/tableflow")
    engine.create([one for one in graph if one.key in keys], world, quiet)
    world.remember(PROVIDER_INTEGRATION, Live("cspi-1"))
    return world, graph


def create(server: Stackless) -> World:
    world, graph = opened(server)
    engine.create(graph, world, quiet)
    again, graph = opened(server)
    assert {step.action for step in engine.plan(graph, again)} == {"keep"}
    return again


def drift(server: Stackless) -> None:
    """Change by hand what can be changed, and see it."""
    world, graph = opened(server)
    engine.plan(graph, world)
    account = world.need("confluent/service_account/app_consumer").id
    world.cloud.patch(f"/iam/v2/service-accounts/{account}", {"description": "by hand"})
    server.topics["stock_trades"]["partitions_count"] = 3
    server.topics["stock_trades"]["configs"]["cleanup.policy"] = "compact"
    server.connectors["SampleSourceConnector"]["state"] = "PAUSED"
    server.connectors["SampleSourceConnector"]["config"]["quickstart"] = "USERS"
    table = server.enabled["stock_trades"]
    table |= {"suspended": True, "table_formats": ["DELTA"]}
    table["config"]["retention_ms"] = "86400000"
    world, graph = opened(server)
    assert {step.resource.key for step in engine.plan(graph, world) if step.lines()} == {
        "confluent/service_account/app_consumer",
        "confluent/topic/stock_trades",
        "confluent/connector/stock_trades",
        "confluent/tableflow/stock_trades",
    }


def test_every_request_is_as_the_apis_want_it(server: Stackless) -> None:
    world = create(server)
    live = world.need(ENVIRONMENT)
    environment = next(one for one in opened(server)[1] if one.key == ENVIRONMENT)
    environment.update(world, live, {"stream_governance": ("ESSENTIALS", "ADVANCED")})
    drift(server)
    create(server)
    world, graph = opened(server)
    assert rotate(graph, world, quiet, force=True) == 6
    left = engine.delete(engine.existing(graph, world, quiet), world, quiet)
    assert left == {}

    assert [one for one in server.asked if one.status in MALFORMED] == []
    assert {one.operation for one in server.asked if one.method != "GET"} >= CHANGING


def test_requests_to_open_catalog(server: Stackless) -> None:
    world, graph = with_tableflow(server, "open_catalog")
    (catalog,) = [one for one in graph if one.key == "confluent/catalog_integration"]
    engine.converge(catalog, world, quiet)
    server.catalogs["tci-1"]["spec"]["config"]["warehouse"] = "another"
    engine.converge(catalog, world, quiet)
    assert server.catalogs["tci-1"]["spec"]["config"] == {
        "kind": "Snowflake",
        "endpoint": "https://org-open.snowflakecomputing.com",
        "warehouse": "lake",
        "allowed_scope": "PRINCIPAL_ROLE:ALL",
        "client_id": "client",
        "client_secret": "hush",
    }
    server.catalogs["tci-1"]["spec"]["config"]["client_secret"] = "an older one"
    server.catalogs["tci-1"]["status"] = {"phase": "FAILED"}
    live = engine.converge(catalog, world, quiet)
    assert server.catalogs["tci-1"]["spec"]["config"]["client_secret"] == "hush"
    engine.remove(catalog, world, live)

    assert [one for one in server.asked if one.status in MALFORMED] == []
    changing = [one.operation for one in server.asked if "catalog-int" in one.path]
    assert changing.count(("PATCH", CATALOG_INTEGRATION)) == 2


CATALOG_INTEGRATION = "/tableflow/v1/catalog-integrations/{id}"
_CLUSTER = "/connect/v1/environments/{environment_id}/clusters/{kafka_cluster_id}"
_KAFKA = "/kafka/v3/clusters/{cluster_id}/topics"
CHANGING = {
    *(("POST", path) for path in ("/org/v2/environments", "/cmk/v2/clusters")),
    *(("POST", f"/iam/v2/{what}") for what in ("service-accounts", "api-keys", "role-bindings")),
    ("POST", "/pim/v1/integrations"),
    ("POST", "/tableflow/v1/catalog-integrations"),
    ("POST", "/tableflow/v1/tableflow-topics"),
    ("PATCH", "/org/v2/environments/{id}"),
    ("PATCH", "/iam/v2/service-accounts/{id}"),
    ("PATCH", "/tableflow/v1/tableflow-topics/{display_name}"),
    ("PUT", f"{_CLUSTER}/connector-plugins/{{plugin_name}}/config/validate"),
    ("POST", f"{_CLUSTER}/connectors"),
    *(("PUT", f"{_CLUSTER}/connectors/{{connector_name}}/{what}") for what in ("config", "resume")),
    ("DELETE", f"{_CLUSTER}/connectors/{{connector_name}}"),
    ("POST", _KAFKA),
    ("PATCH", f"{_KAFKA}/{{topic_name}}"),
    ("DELETE", f"{_KAFKA}/{{topic_name}}"),
    ("POST", f"{_KAFKA}/{{topic_name}}/configs:alter"),
    ("POST", "/subjects/{rest}"),
    ("DELETE", "/subjects/{rest}"),
    *(("DELETE", f"/{what}/{{id}}") for what in ("org/v2/environments", "cmk/v2/clusters")),
    *(
        ("DELETE", f"/iam/v2/{what}/{{id}}")
        for what in ("service-accounts", "api-keys", "role-bindings")
    ),
    ("DELETE", "/pim/v1/integrations/{id}"),
    ("DELETE", CATALOG_INTEGRATION),
    ("DELETE", "/tableflow/v1/tableflow-topics/{display_name}"),
}
"""What changes something; the engine's walk sends it all."""


def test_a_table_is_there_once_its_catalog_has_it(server: Stackless) -> None:
    """What needs it is made from the catalog: Snowflake's table, after Glue's."""
    world, graph = with_tableflow(server, "glue")
    (table,) = [one for one in graph if one.key == "confluent/tableflow/stock_trades"]
    table.create(world)
    live = engine.look(table, world)
    assert live is not None
    server.synced = [None, "PENDING", "PENDING"]
    table.settle(world, live)
    assert server.synced == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/org/v2/environments", {"display_name": "x", "id": "env-1"}),
        ("/org/v2/environments", {"display_name": "x", "colour": "blue"}),
        ("/pim/v1/integrations", {"display_name": "x", "provider": "GCP"}),
        ("/kafka/v3/clusters/lkc-1/topics", {"topic_name": "x"}),
    ],
)
def test_the_judge_judges(server: Stackless, path: str, body: Any) -> None:
    """A request that is wrong in one thing is refused, whoever is behind it."""
    world, _ = opened(server)
    with pytest.raises(ApiError):
        world.cloud.post(path, body)
    assert server.asked[0].status in MALFORMED
