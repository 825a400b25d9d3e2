"""The Confluent emulator without a broker, a registry and an engine: as strict, and quick."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import pytest
from botocore.exceptions import ClientError
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response

from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg_deploy.confluent import keys
from topicberg_local.emulators.confluent import (
    catalogs,
    connector_checks,
    kafka_rest,
    subjects,
    tableflow,
)
from topicberg_local.emulators.confluent.account import CATALOG, CONNECTOR, TABLE, Account, Delays
from topicberg_local.emulators.confluent.errors import bad_request, not_found
from topicberg_local.emulators.confluent.keys import Bootstrap
from topicberg_local.emulators.confluent.materialization import CatalogStatus
from topicberg_local.emulators.confluent.operation import Call, HttpResponse, Operation
from topicberg_local.emulators.confluent.server import OPERATIONS, Fault, Server
from topicberg_local.emulators.confluent.tableflow import NewSpec
from topicberg_local.emulators.store import Stored

MALFORMED = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.NOT_IMPLEMENTED,
}
URL = "http://127.0.0.1:1"
NOWHERE = Endpoints(
    kafka_bootstrap="127.0.0.1:1",
    schema_registry=URL,
    iceberg_rest=URL,
    spark_connect="",
    snowflake=SnowflakeEndpoint(account="", user="", password=SecretStr("")),
)
NO_DELAYS = Delays.model_validate(dict.fromkeys(Delays.model_fields, 0))
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
    """What needs the broker, the registry or the engine is judged, kept and reported again."""

    account: Account
    asked: list[Asked] = field(default_factory=list)
    topics: Documents = field(default_factory=dict)
    schemas: dict[str, list[str]] = field(default_factory=dict)
    connectors: Documents = field(default_factory=dict)
    enabled: Documents = field(default_factory=dict)
    kept_catalogs: Documents | None = None
    """Catalog integrations, as they were sent, with catalogs that can all be reached; None: with
    Glue, as the emulator has them.
    """
    written: set[str] = field(default_factory=set)
    """Topics that have records."""
    engine: Callable[[str], None] = lambda topic: None
    """Creates the table of a topic that has records."""

    def __post_init__(self) -> None:
        super().__init__(self.account, Bootstrap("LOCALKEY", "local-secret"), "admin-token")
        self._ours: list[tuple[str, Callable[[Call], HttpResponse]]] = [
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
            theirs = handler == self._catalogs and self.kept_catalogs is None
            if re.fullmatch(pattern, request.url.path) and not theirs:
                operation = replace(operation, handler=handler)
        return super()._answer(operation, parameters, request, content, fault)

    def _topics(self, call: Call) -> HttpResponse:
        body, name = json.loads(call.content or b"{}"), call.path.get("topic_name", "")
        if call.method != "GET":
            kafka_rest.demand(call, name or body.get("topic_name"))
        if call.method == "POST" and not name:
            configs = {one["name"]: one["value"] for one in body["configs"]}
            self.topics[body["topic_name"]] = {
                "partitions_count": body["partitions_count"],
                "configs": configs,
            }
            return HttpResponse({})
        if not name:
            return HttpResponse({"data": []})
        topic = _known(self.topics, name)
        if call.method == "DELETE":
            del self.topics[name]
        elif call.method == "PATCH":
            topic |= body
        elif call.method == "POST":
            topic["configs"] |= {one["name"]: one["value"] for one in body["data"]}
        elif call.url.endswith("/configs"):
            return HttpResponse(
                {"data": [{"name": k, "value": v} for k, v in topic["configs"].items()]}
            )
        else:
            return HttpResponse({"topic_name": name, **topic})
        return HttpResponse()

    def _subjects(self, call: Call) -> HttpResponse:
        subjects.check(call)
        name, _, rest = call.path.get("rest", "").partition("/")
        body, versions = json.loads(call.content or b"{}"), self.schemas.get(name, [])
        if not name:
            return HttpResponse([*self.schemas])
        if call.method == "POST" and rest == "versions":
            self.schemas.setdefault(name, []).append(body["schema"])
            return HttpResponse({"id": 1})
        if not versions or (call.method == "POST" and body["schema"] not in versions):
            raise not_found(name)
        if call.method == "DELETE" and dict(call.parameters).get("permanent"):
            del self.schemas[name]
        return HttpResponse({"id": 1} if call.method == "POST" else [*range(1, len(versions) + 1)])

    def _connectors(self, call: Call) -> HttpResponse:
        body = json.loads(call.content or b"{}")
        if call.url.endswith("/config/validate"):
            return HttpResponse({"error_count": 0, "configs": []})
        if call.method == "POST":
            self._start(call, body["name"], body["config"])
            return HttpResponse({})
        name = call.path.get("connector_name", "")
        if not name:
            return HttpResponse({one: self._shown(one) for one in self.connectors})
        connector = _known(self.connectors, name)
        if call.method == "DELETE":
            del self.connectors[name]
            self.account.store.delete(CONNECTOR, [(call.path["kafka_cluster_id"], name)])
            return HttpResponse({"error": None})
        if call.url.endswith("/resume"):
            connector["state"] = "RUNNING"
        elif call.url.endswith("/config"):
            self._start(call, name, body)
        return HttpResponse(self._shown(name)["status"])

    def _start(self, call: Call, name: str, config: dict[str, str]) -> None:
        """As a service account may; one that may not write fails."""
        environment, cluster = call.path["environment_id"], call.path["kafka_cluster_id"]
        who, topic = config["kafka.service.account.id"], config["kafka.topic"]
        if unseen := connector_checks.unseen_cluster(self.account, environment, cluster, who):
            raise bad_request(unseen)
        trace = connector_checks.problem(self.account, environment, cluster, who, topic)
        state = "FAILED" if trace else "RUNNING"
        self.connectors[name] = {"config": config, "state": state, "trace": trace}
        inside = {"environment": environment, "cluster": cluster}
        self.account.store.put(Stored(CONNECTOR, (cluster, name), inside))
        if not trace:
            self.written.add(topic)

    def _shown(self, name: str) -> dict[str, Any]:
        connector = self.connectors[name]
        status = {"state": connector["state"], "trace": connector["trace"]}
        return {
            "id": {"id": "lcc-1"},
            "info": {"config": connector["config"]},
            "status": {"connector": status},
        }

    def _tables(self, call: Call) -> HttpResponse:
        body = json.loads(call.content or b"{}")
        if call.method == "POST":
            self._enable(call, call.body.spec, body["spec"])
            return HttpResponse({})
        if "display_name" not in call.path:
            return HttpResponse({"data": [{"spec": spec} for spec in self.enabled.values()]})
        name = call.path["display_name"]
        spec = _known(self.enabled, name)
        if call.method == "DELETE":
            del self.enabled[name]
            inside = self.account.store.all(TABLE, lambda table: table.name[1] == name)
            self.account.store.delete(TABLE, [table.name for table in inside])
            return HttpResponse()
        if call.method == "PATCH":
            spec["config"] |= body["spec"].get("config", {})
            spec |= {k: v for k, v in body["spec"].items() if k != "config"}
        return HttpResponse({"spec": spec, "status": self._status(name)})

    def _enable(self, call: Call, given: NewSpec, spec: dict[str, Any]) -> None:
        topic, environment, cluster = given.display_name, given.environment, given.kafka_cluster
        tableflow.demand(call, given, f"{topic}-value")
        policy = self.topics[topic]["configs"]["cleanup.policy"]
        self.enabled[topic] = {**spec, "mode": "UPSERT" if "compact" in policy else "APPEND"}
        properties = {
            "environment": environment.id,
            "cluster": cluster.id,
            "integration": spec["storage"].get("provider_integration_id"),
            "spec": {"table_formats": given.table_formats},
        }
        self.account.store.put(Stored(TABLE, (cluster.id, topic), properties))

    def _status(self, topic: str) -> dict[str, Any]:
        """Without a record there is no table, and nothing that a catalog could have."""
        if topic not in self.written:
            return {"phase": "PENDING"}
        synced = CatalogStatus("SYNCED", at=time.time())
        try:
            self.engine(topic)
        except ClientError as error:  # e.g. the role lacks a grant of Lake Formation
            synced = CatalogStatus("FAILED", str(error))
        syncs = []
        # https://docs.confluent.io/cloud/current/topics/tableflow/concepts/tableflow-storage.html
        in_bucket = self.enabled[topic]["storage"]["kind"] != "Managed"
        for catalog in self.account.store.all(CATALOG) if in_bucket else ():
            self.tables._synced[catalog.name[0], topic] = synced
            sync = {"sync_status": synced.sync, "catalog_integration_id": catalog.name[0]}
            syncs.append(sync | ({"error_message": synced.error} if synced.error else {}))
        mode = self.enabled[topic]["mode"]
        return {"phase": "RUNNING", "write_mode": mode, "catalog_sync_statuses": syncs}

    def _catalogs(self, call: Call) -> HttpResponse:
        kept = self.kept_catalogs
        assert kept is not None
        body = json.loads(call.content or b"{}")
        if call.method == "POST":
            id = f"tci-{len(kept) + 1}"
            kept[id] = {"id": id, "status": {"phase": "CONNECTED"}, **body}
            return HttpResponse({})
        if "id" not in call.path:
            return HttpResponse({"data": [_without_login(one) for one in kept.values()]})
        catalog = _known(kept, call.path["id"])
        if call.method == "DELETE":
            del kept[call.path["id"]]
            return HttpResponse()
        if call.method == "PATCH":
            catalog["spec"]["config"] |= body["spec"]["config"]
            catalog["status"] = {"phase": "CONNECTED"}
        return HttpResponse(_without_login(catalog))


def _without_login(catalog: dict[str, Any]) -> dict[str, Any]:
    """Return a catalog integration as the API does."""
    spec = {**catalog["spec"], "config": catalogs.shown(catalog["spec"]["config"])}
    return {**catalog, "spec": spec}


def _known(documents: Documents, name: str) -> dict[str, Any]:
    if name not in documents:
        raise not_found(name)
    return documents[name]


def age_keys(patch: pytest.MonkeyPatch) -> None:
    """Let all keys be old enough for every list, instead of waiting for ten minutes."""
    patch.setattr(keys, "YOUNG", timedelta(0))
