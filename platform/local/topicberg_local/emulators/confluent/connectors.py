"""``/connect/v1``: Datagen source connectors, which are the local generators.

A connector's topic needs a spec with a generator of the same kind; what the generator cannot do is
refused. Its rate is that of ``max.interval``, or else the spec's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import Field

from topicberg_local.datagen.status import ALIVE, read_status
from topicberg_local.emulators.confluent import clusters, errors
from topicberg_local.emulators.confluent import connector_checks as checks
from topicberg_local.emulators.confluent.account import CONNECTOR, Account
from topicberg_local.emulators.confluent.operation import Body, Call, Operation, Query
from topicberg_local.emulators.store import Stored

PATH = "/connect/v1/environments/{environment_id}/clusters/{kafka_cluster_id}"


class NewConnector(Body):
    name: str = Field(min_length=1)
    config: checks.Configuration


class ListQuery(Query):
    expand: Annotated[str, Field(pattern=r"^(id|info|status)(,(id|info|status))*$")] = ""


def _refuse_wrong(
    account: Account, cluster: Stored, name: str, config: checks.Configuration
) -> None:
    """:raises Refusal: the configuration cannot be; another connector has its topic"""
    if config.get("connector.class", checks.PLUGIN) != checks.PLUGIN:
        raise errors.unsupported(
            f"the connector class {config['connector.class']}; there is {checks.PLUGIN}"
        )
    wrong = checks.complaints(account, cluster, config)
    if config.get("name") != name:
        wrong.setdefault("name", []).append(f"it is '{config.get('name')}', not '{name}'")
    if wrong:
        raise errors.bad_request(
            "; ".join(f"{key}: {' '.join(texts)}" for key, texts in wrong.items())
        )
    for other in account.find(CONNECTOR, topic=config["kafka.topic"]):
        if other.name != (cluster.name[0], name):
            raise errors.unsupported(f"two connectors on one topic: {other.name[1]} and {name}")


def _state(account: Account, connector: Stored) -> tuple[str, str]:
    """State and trace, as the service names them."""
    properties = connector.properties
    if properties["paused"]:
        return "PAUSED", ""
    if time.time() < properties["started"] + account.delays.connector:
        return "PROVISIONING", ""
    if problem := checks.denied(account, connector):
        return "FAILED", problem
    status = read_status(account.config, properties["topic"])
    if status is not None and status.state in ALIVE:
        return ("RUNNING" if status.state == "running" else "PROVISIONING"), ""
    return ("FAILED" if properties["trace"] else "PROVISIONING"), properties["trace"]


def _status(account: Account, connector: Stored) -> dict[str, Any]:
    name = connector.name[1]
    state, trace = _state(account, connector)
    tasks = [{"id": 0, "state": state, "worker_id": name, "msg": trace}]
    return {
        "name": name,
        "type": "source",
        "connector": {"state": state, "worker_id": name, "trace": trace},
        "tasks": [] if state == "PROVISIONING" else tasks,
    }


def _cluster(call: Call) -> Stored:
    environment, name = call.path["environment_id"], call.path["kafka_cluster_id"]
    return clusters.require_main(call.account, environment, name, "connectors")


def _require(call: Call) -> tuple[Stored, Stored]:
    """Cluster and connector."""
    cluster, name = _cluster(call), call.path["connector_name"]
    missing = errors.not_found(f"Connector {name}")
    return cluster, call.account.require(CONNECTOR, (cluster.name[0], name), missing)


def _info(account: Account, cluster: Stored, connector: Stored) -> dict[str, Any]:
    name = connector.name[1]
    return {
        "name": name,
        "config": checks.shown(account, cluster, connector.properties["config"]),
        "tasks": [{"connector": name, "task": 0}],
        "type": "source",
    }


def _create(call: Call) -> dict[str, Any]:
    body: NewConnector = call.body
    account, cluster = call.account, _cluster(call)
    if account.store.get(CONNECTOR, (cluster.name[0], body.name)):
        raise errors.Refusal(HTTPStatus.CONFLICT, f"A connector named {body.name} exists already.")
    _refuse_wrong(account, cluster, body.name, body.config)
    properties = {
        "id": account.new_id(CONNECTOR, "lcc"),
        "environment": cluster.properties["environment"],
        "cluster": cluster.name[0],
        "config": checks.kept(body.config),
        "principal": checks.principal_of(account, body.config),
        "topic": body.config["kafka.topic"],
        "paused": False,
    }
    stored = Stored(CONNECTOR, (cluster.name[0], body.name), properties)
    _start(call, stored)
    return {**_info(account, cluster, stored), "tasks": []}


def _list(call: Call) -> list[str] | dict[str, Any]:
    account, cluster = call.account, _cluster(call)
    connectors = account.find(CONNECTOR, cluster=cluster.name[0])
    if not call.query.expand:
        return [connector.name[1] for connector in connectors]
    parts: dict[str, Callable[[Stored], Any]] = {
        "id": lambda connector: {"id": connector.properties["id"], "id_type": "ID"},
        "info": partial(_info, account, cluster),
        "status": partial(_status, account),
    }
    expanded = call.query.expand.split(",")
    return {each.name[1]: {part: parts[part](each) for part in expanded} for each in connectors}


def _put_config(call: Call) -> dict[str, Any]:
    config: checks.Configuration = call.body
    account, (cluster, connector) = call.account, _require(call)
    _refuse_wrong(account, cluster, connector.name[1], config)
    call.generators.end(connector)
    connector.properties |= {
        "config": checks.kept(config),
        "principal": checks.principal_of(account, config) or connector.properties["principal"],
        "topic": config["kafka.topic"],
    }
    _start(call, connector)
    return _info(account, cluster, connector)


def _pause(call: Call) -> None:
    _, connector = _require(call)
    connector.properties["paused"] = True
    call.account.store.put(connector)
    call.generators.end(connector)


def _resume(call: Call) -> None:
    _, connector = _require(call)
    connector.properties["paused"] = False
    _start(call, connector)


def _start(call: Call, connector: Stored) -> None:
    """Let a new generator try."""
    connector.properties |= {"started": time.time(), "trace": ""}
    connector.properties.pop("denied", None)
    call.account.store.put(connector)
    call.generators.wake()


def _delete(call: Call) -> dict[str, Any]:
    _pause(call)
    call.account.store.delete(CONNECTOR, [_require(call)[1].name])
    return {"error": None}


def _validate(call: Call) -> dict[str, Any]:
    cluster = _cluster(call)
    if call.path["plugin_name"] != checks.PLUGIN:
        raise errors.unsupported(
            f"the connector plugin {call.path['plugin_name']}; there is {checks.PLUGIN}"
        )
    return checks.validated(call.account, cluster, call.body)


_operation = partial(Operation, shape=errors.Shape.CONNECT, rated=False, invalid_is_400=True)
_ALL, _ONE = PATH + "/connectors", PATH + "/connectors/{connector_name}"
_VALIDATION = PATH + "/connector-plugins/{plugin_name}/config/validate"
OPERATIONS = [
    _operation("GET", _ALL, _list, query=ListQuery),
    _operation("POST", _ALL, _create, 201, body=NewConnector),
    _operation("DELETE", _ONE, _delete),
    _operation("PUT", _ONE + "/config", _put_config, body=checks.Configuration),
    _operation("GET", _ONE + "/status", lambda call: _status(call.account, _require(call)[1])),
    _operation("PUT", _ONE + "/pause", _pause, 202),
    _operation("PUT", _ONE + "/resume", _resume, 202),
    _operation("PUT", _VALIDATION, _validate, body=checks.Configuration),
]
