"""Every request of `deploy` to Confluent, sent and judged: unknown, read-only and missing fields,
wrong enums, parameters that are missing or unknown, a key of the wrong kind.

The judge is the emulator, which is as strict as the vendor's OpenAPI documents, here without a
stack: what needs the broker, the registry or the engine is judged, remembered and reported again.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from botocore.exceptions import ClientError
from moto import mock_aws
from own_aws import URL_VARIABLES, serving
from pydantic import SecretStr
from stackless import MALFORMED, NO_DELAYS, NOWHERE, Stackless, age_keys

from topicberg.clients.confluent import ApiError
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.settings.models import UnitySettings
from topicberg.topics import TopicSpec, load_topics
from topicberg_deploy import engine, polling
from topicberg_deploy.confluent import keys
from topicberg_deploy.confluent.integrations import (
    PROVIDER_INTEGRATION,
    CatalogIntegration,
    ProviderIntegration,
)
from topicberg_deploy.confluent.keys import RotatingKey
from topicberg_deploy.confluent.tableflow import TableflowTopic
from topicberg_deploy.context import CLUSTER as CLUSTER_KEY
from topicberg_deploy.context import ENVIRONMENT, DeployContext
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Action, Live, Resource
from topicberg_deploy.rotate import rotate
from topicberg_deploy.settings import DeploySettings
from topicberg_local import state
from topicberg_local.emulators.confluent.account import CATALOG, CLUSTER, INTEGRATION, KEY, Account
from topicberg_local.emulators.confluent.operation import Call
from topicberg_local.emulators.confluent.tableflow import NewSpec
from topicberg_local.emulators.store import Stored

ADMIN = "confluent/role_binding/cluster_admin"
OPEN_CATALOG = {
    "uri": "https://org-open.snowflakecomputing.com/polaris/api/catalog",
    "name": "lake",
    "client_id": "client",
    "client_secret": SecretStr("hush"),
    "scope": "PRINCIPAL_ROLE:ALL",
}
UNITY = {"catalog": "lake", "client_id": "principal", "client_secret": SecretStr("quiet")}
WORKSPACE = "https://dbc-1.cloud.databricks.com"
CATALOG_KEY = "confluent/catalog_integration"
UNITY_KEY = "confluent/unity_integration"
TABLEFLOW, CONNECTOR = "confluent/tableflow", "confluent/connector"


@contextmanager
def served(folder: Path) -> Iterator[Stackless]:
    with pytest.MonkeyPatch.context() as patch, serving() as (_, _, own), mock_aws():
        for name in URL_VARIABLES:
            patch.setenv(name, own)
        patch.setenv("AWS_ACCESS_KEY_ID", "a")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        patch.setenv("NO_PROXY", "127.0.0.1")
        listener, config = socket.create_server(("127.0.0.1", 0)), Settings(state_dir=folder)
        state.save_endpoints(config, {}, NOWHERE)
        account = Account(folder, config, f"http://127.0.0.1:{listener.getsockname()[1]}")
        account.delays = NO_DELAYS
        server = Stackless(account)
        http = uvicorn.Server(uvicorn.Config(server.application(), log_level="warning"))
        thread = threading.Thread(target=http.run, args=([listener],), daemon=True)
        thread.start()
        yield server
        http.should_exit = True
        thread.join(10)
        account.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Stackless]:
    with served(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stackless]:
    """With a deployment, which every test leaves as it should be. Rights take their time."""
    with served(tmp_path_factory.mktemp("deployed")) as server:
        server.account.delays = NO_DELAYS.model_copy(update={"role_binding": 1.0})
        create(server, longest=0.5)
        server.account.delays = NO_DELAYS
        yield server


def opened(
    server: Stackless, catalog: str = "glue", longest: float = 0.01, only: str = ""
) -> tuple[DeployContext, list[Resource]]:
    """A deployment, and its graph as far as it does not need Snowflake.

    :param catalog: that of Snowflake, or ``unity``, which is beside Glue
    :param longest: pause between two attempts
    :param only: the beginning of the keys that are meant; what they need is in the graph as well
    """
    config = Settings.model_validate(
        {
            "deployment": "cloud",
            "prefix": "demo",
            "snowflake_catalog": "glue" if catalog == "unity" else catalog,
            "compute": "none",  # EMR Serverless takes no request of Confluent's
            "unity": {**UNITY, "workspace_url": WORKSPACE if catalog == "unity" else None},
        }
    )
    deploy = DeploySettings.model_validate(
        {
            "confluent_api_key": "LOCALKEY",
            "confluent_api_secret": SecretStr("local-secret"),
            "confluent_url": server.account.url,
            "catalog": OPEN_CATALOG,
        }
    )
    specs = [one for one in load_topics() if one.name == "stock_trades"]
    context = DeployContext(
        config, deploy, specs, sleep=lambda wait: time.sleep(min(wait, longest))
    )
    graph = resources(config, specs)
    chosen = [one for one in graph if "snowflake" not in one.key and one.key.startswith(only)]
    return context, engine.with_needs(chosen, graph) if only else chosen


def quiet(*_: object) -> None:
    pass


def with_tableflow(
    server: Stackless, catalog: str, namespace: str | None = None
) -> tuple[DeployContext, list[Resource]]:
    """The least that Tableflow's API needs is there."""
    context, graph = opened(server, catalog)
    context.config.tableflow_namespace = namespace
    account = "confluent/service_account/app_manager"
    made = (ENVIRONMENT, CLUSTER_KEY, account, ADMIN, "key/tableflow")
    engine.create([one for one in graph if one.key in made], context, quiet)
    context.live[PROVIDER_INTEGRATION] = Live("cspi-1")
    return context, graph


def create(server: Stackless, longest: float = 0.01, only: str = "") -> DeployContext:
    context, graph = opened(server, longest=longest, only=only)
    context.irrevocable = True
    engine.create(graph, context, quiet)
    again, graph = opened(server, only=only)
    assert {step.action for step in engine.plan(graph, again)} == {"keep"}
    return again


def drift(server: Stackless) -> None:
    """Change by hand what can be changed, and see it."""
    context, graph = opened(server, only="confluent/service_account/")
    engine.plan(graph, context)
    account = context.need("confluent/service_account/app_consumer").id
    context.confluent.cloud.patch(f"/iam/v2/service-accounts/{account}", {"description": "by hand"})
    server.topics["stock_trades"]["partitions_count"] = 3
    server.topics["stock_trades"]["configs"] |= {"cleanup.policy": "compact", "retention.ms": "1"}
    server.connectors["SampleSourceConnector"]["state"] = "PAUSED"
    server.connectors["SampleSourceConnector"]["config"]["quickstart"] = "USERS"
    table = server.enabled["stock_trades"]
    table |= {"suspended": True, "table_formats": ["DELTA"]}
    table["config"]["retention_ms"] = "86400000"
    context, graph = opened(server)
    (waiting,) = [step for step in engine.plan(graph, context) if "irrevocable" in step.reason]
    assert (waiting.resource.key, waiting.action) == ("confluent/topic/stock_trades", "keep")
    assert "sets partitions: 3 → 6, cleanup.policy: compact → delete, which" in waiting.reason
    context.irrevocable = True
    assert {step.resource.key for step in engine.plan(graph, context) if step.lines()} == {
        "confluent/service_account/app_consumer",
        "confluent/topic/stock_trades",
        "confluent/connector/stock_trades",
        "confluent/tableflow/stock_trades",
    }


def test_every_request_is_as_the_apis_want_it(server: Stackless) -> None:
    context = create(server)
    live = context.need(ENVIRONMENT)
    environment = next(one for one in opened(server)[1] if one.key == ENVIRONMENT)
    environment.update(context, live, {"stream_governance": ("ESSENTIALS", "ADVANCED")})
    drift(server)
    create(server)
    context, graph = opened(server)
    assert rotate(graph, context, quiet, force=True) == 8
    assert engine.delete(engine.existing(graph, context, quiet), context, quiet) == {}

    assert [one for one in server.asked if one.status in MALFORMED] == []
    # Schemas go with the environment: no account has the right to delete them, or needs it.
    assert not any(one.method == "DELETE" and "/subjects" in one.path for one in server.asked)
    assert {one.operation for one in server.asked if one.method != "GET"} >= CHANGING


def test_rows_are_deleted_earlier_only_if_that_is_irrevocable(server: Stackless) -> None:
    create(server)
    config = server.enabled["stock_trades"]["config"]
    context, graph = opened(server)
    (table,) = [one for one in graph if isinstance(one, TableflowTopic)]
    day = 86_400_000
    for before, wanted, is_irrevocable, after in (
        (None, 30, False, None),
        (90, 30, False, 90),
        (90, 30, True, 30),
        (30, 90, False, 90),
    ):
        config.pop("data_retention_ms", None)
        config |= {} if before is None else {"data_retention_ms": str(before * day)}
        config["retention_ms"] = "86400000"  # differs as well
        kept = table.spec.tableflow.model_copy(update={"data_retention_ms": wanted * day})
        changed = replace(table, spec=table.spec.model_copy(update={"tableflow": kept}))
        context, _ = opened(server)
        engine.plan(graph, context)
        context.irrevocable = is_irrevocable
        step = engine.examine(changed, context)
        waits = wanted != after
        assert ("--irrevocable` deletes rows that are older than 30 days" in step.reason) == waits
        engine.converge(changed, context, quiet)
        assert config.get("data_retention_ms") == (None if after is None else str(after * day))
        assert config["retention_ms"] != "86400000"
        assert engine.examine(changed, context).action == Action.KEEP


@pytest.mark.parametrize(
    ("catalog", "key", "field"),
    [("open_catalog", CATALOG_KEY, "custom_namespace"), ("unity", UNITY_KEY, "custom_schema")],
)
def test_namespace_of_catalog_integration_is_sent(
    server: Stackless, catalog: str, key: str, field: str
) -> None:
    """When it is created, when it changes, and when it becomes the cluster's id again."""
    catalogs = server.kept_catalogs = {}
    context, graph = with_tableflow(server, catalog, "finance")
    (integration,) = [one for one in graph if one.key == key]
    engine.converge(integration, context, quiet)
    config = catalogs["tci-1"]["spec"]["config"]
    assert config[field] == "finance"
    for namespace in ("customer360", None):
        context.config.tableflow_namespace = namespace
        step = engine.examine(integration, context)
        assert (step.action, set(step.changes)) == (Action.CHANGE, {"namespace"})
        engine.converge(integration, context, quiet)
        config = catalogs["tci-1"]["spec"]["config"]
        assert config[field] == (namespace or context.cluster)
    assert [one for one in server.asked if one.status in MALFORMED] == []


@pytest.mark.parametrize("catalog", ["open_catalog", "unity"])
def test_only_catalog_integration_of_a_cluster_is_reused_if_it_is_equal(
    server: Stackless, catalog: str
) -> None:
    server.kept_catalogs = {}
    context, graph = with_tableflow(server, catalog)
    key = UNITY_KEY if catalog == "unity" else CATALOG_KEY
    (own,) = [one for one in graph if isinstance(one, CatalogIntegration) and one.key == key]
    replace(own, name="of the platform team").create(context)
    assert engine.examine(own, context).action == Action.KEEP
    context.config.tableflow_namespace = "finance"
    with pytest.raises(TopicbergError, match=r"of the platform team \(tci-1\) .* namespace"):
        engine.examine(own, context)
    # What is not wanted, and what `delete` looks at, may publish to anywhere.
    assert engine.examine(replace(own, wanted=False), context).action == Action.KEEP
    assert [seen.id for _, seen in engine.existing([own], context, quiet)] == ["tci-1"]


def test_provider_integration_of_the_same_role_is_reused(server: Stackless) -> None:
    context, graph = opened(server, only=ENVIRONMENT)
    engine.create(graph, context, quiet)
    integration = ProviderIntegration(PROVIDER_INTEGRATION, "demo", role="tableflow")
    replace(integration, name="of the platform team").create(context)
    live = engine.converge(integration, context, quiet)
    assert live.facts["external_id"]
    assert len(server.account.store.all(INTEGRATION)) == 1


@pytest.mark.parametrize(
    ("catalog", "key", "drifting", "expected"),
    [
        (
            "open_catalog",
            CATALOG_KEY,
            "warehouse",
            {
                "kind": "Snowflake",
                "endpoint": "https://org-open.snowflakecomputing.com",
                "warehouse": "lake",
                "allowed_scope": "PRINCIPAL_ROLE:ALL",
                "client_id": "client",
                "client_secret": "hush",
            },
        ),
        (
            "unity",
            UNITY_KEY,
            "catalog_name",
            {
                "kind": "Unity",
                "workspace_endpoint": WORKSPACE,
                "catalog_name": "lake",
                "client_id": "principal",
                "client_secret": "quiet",
            },
        ),
    ],
)
def test_catalog_integration_with_a_login_is_created_changed_and_deleted(
    server: Stackless, catalog: str, key: str, drifting: str, expected: dict[str, str]
) -> None:
    catalogs = server.kept_catalogs = {}
    context, graph = with_tableflow(server, catalog)
    (integration,) = [one for one in graph if one.key == key]
    engine.converge(integration, context, quiet)
    catalogs["tci-1"]["spec"]["config"][drifting] = "another"
    engine.converge(integration, context, quiet)
    assert catalogs["tci-1"]["spec"]["config"] == expected
    catalogs["tci-1"]["spec"]["config"]["client_secret"] = "an older one"
    catalogs["tci-1"]["status"] = {"phase": "FAILED"}
    live = engine.converge(integration, context, quiet)
    assert catalogs["tci-1"]["spec"]["config"] == expected
    engine.remove(integration, context, live)
    context.record.drop(key)
    assert context.record.get(f"login of {key}") is None

    assert [one for one in server.asked if one.status in MALFORMED] == []
    changing = [one.operation for one in server.asked if "catalog-int" in one.path]
    assert changing.count(("PATCH", CATALOG_INTEGRATION)) == 2


@pytest.mark.parametrize(("catalog", "key"), [("open_catalog", CATALOG_KEY), ("unity", UNITY_KEY)])
@pytest.mark.parametrize("field", ["client_id", "client_secret"])
def test_another_login_is_planned_and_sent_while_the_earlier_one_works(
    server: Stackless, catalog: str, key: str, field: str
) -> None:
    """As a secret is rotated; the plan shows neither."""
    catalogs = server.kept_catalogs = {}
    context, graph = with_tableflow(server, catalog)
    (integration,) = [one for one in graph if one.key == key]
    engine.converge(integration, context, quiet)
    assert engine.examine(integration, context).action is Action.KEEP
    new = {field: SecretStr("a new one") if field == "client_secret" else "a new one"}
    if catalog == "unity":
        unity = context.config.unity.model_copy(update=new)
        context.config = context.config.model_copy(update={"unity": unity})
    else:
        login = context.deploy.catalog.model_copy(update=new)
        context.deploy = context.deploy.model_copy(update={"catalog": login})
    step = engine.examine(integration, context)
    assert (step.action, step.lines()) == (
        Action.CHANGE,
        ["login: an earlier one → that of the settings"],
    )
    engine.converge(integration, context, quiet)
    assert catalogs["tci-1"]["spec"]["config"][field] == "a new one"
    again = opened(server, catalog)[0]  # another process
    again.config, again.deploy = context.config, context.deploy
    for needed in (ENVIRONMENT, CLUSTER_KEY, "key/tableflow"):
        again.live[needed] = context.need(needed)
    again.live[PROVIDER_INTEGRATION] = Live("cspi-1")
    assert engine.examine(integration, again).action is Action.KEEP


def test_login_that_was_sent_by_another_tool_is_sent_once(server: Stackless) -> None:
    """An adopted integration: nothing tells whether its client is that of the settings."""
    server.kept_catalogs = {}
    context, graph = with_tableflow(server, "unity")
    (integration,) = [one for one in graph if one.key == UNITY_KEY]
    engine.converge(integration, context, quiet)
    context.record.drop(UNITY_KEY)
    assert engine.examine(integration, context).lines() == ["login: unknown → that of the settings"]
    engine.converge(integration, context, quiet)
    assert engine.examine(integration, context).action is Action.KEEP


def test_unity_catalog_is_beside_glue(server: Stackless) -> None:
    """Created after its tables, deleted before them, and refused a second time."""
    server.kept_catalogs = {}
    context, _ = opened(server, "unity")
    document = context.specs[0].model_dump(by_alias=True)
    document["tableflow"]["table_formats"] = ["ICEBERG", "DELTA"]
    specs = context.specs[:] = [TopicSpec.model_validate(document)]
    whole = resources(context.config, specs)
    graph = engine.with_needs([one for one in whole if one.key in (CATALOG_KEY, UNITY_KEY)], whole)
    engine.create(graph, context, quiet)
    assert {one["spec"]["config"]["kind"] for one in server.kept_catalogs.values()} == {
        "AwsGlue",
        "Unity",
    }
    posted = [one.path for one in server.asked if one.method == "POST" and "tableflow" in one.path]
    assert posted[-2:] == ["/tableflow/v1/tableflow-topics", "/tableflow/v1/catalog-integrations"]
    assert {step.action for step in engine.plan(graph, context)} == {"keep"}
    without = context.config.model_copy(update={"unity": UnitySettings()})
    keys = {one.key for one in graph}
    rest = [one for one in resources(without, specs) if one.key in keys]
    steps = {one.resource.key: one.action for one in engine.plan(rest, context)}
    assert {key for key, action in steps.items() if action != Action.KEEP} == {UNITY_KEY}
    assert steps[UNITY_KEY] is Action.DELETE
    assert engine.delete(engine.existing(graph, context, quiet), context, quiet) == {}
    deleted = [
        one.path for one in server.asked if one.method == "DELETE" and "tableflow" in one.path
    ]
    assert deleted[0].startswith("/tableflow/v1/catalog-integrations/")
    assert [one for one in server.asked if one.status in MALFORMED] == []


def test_unity_catalog_that_cannot_be_reached_is_reported(server: Stackless) -> None:
    """As the emulator has it, with a reason; everything else is created."""
    context, graph = opened(server, "unity", only="confluent/unity")
    with pytest.raises(engine.DeployError) as caught:
        engine.create(graph, context, quiet)
    assert "1 resources" in caught.value.message
    assert f"Databricks Unity Catalog: the local stack cannot reach a catalog at {WORKSPACE}" in (
        caught.value.message
    )
    assert "quiet" not in str(caught.value)
    step = {one.resource.key: one for one in engine.plan(graph, context)}[UNITY_KEY]
    assert step.lines() == ["login: one that fails → that of the settings"]
    (integration,) = server.account.store.all(CATALOG)
    assert "quiet" not in str(integration.properties)


def test_what_the_tableflow_api_refuses_is_refused(server: Stackless) -> None:
    context, _ = with_tableflow(server, "unity")
    api, path = context.confluent.tableflow, "/tableflow/v1/catalog-integrations"
    place: dict[str, Any] = {"display_name": "stock_trades", **context.place}
    login = {"catalog_name": "c", "client_id": "i", "client_secret": "s"}
    unity = {"kind": "Unity", "workspace_endpoint": WORKSPACE, **login}
    for config, why in (
        ({"kind": "Unity", "catalog_name": "c", "client_id": "i"}, "workspace_endpoint"),
        ({**unity, "warehouse": "w"}, "warehouse"),
        ({"kind": "Horizon"}, "config"),
    ):
        with pytest.raises(ApiError, match=why):
            api.post(path, {"spec": {**place, "config": config}})
    created = api.post(path, {"spec": {**place, "config": unity}})
    assert "client_secret" not in created["spec"]["config"]
    with pytest.raises(ApiError, match="of kind Unity already"):
        api.post(path, {"spec": {**place, "config": unity}})
    change = {**context.place, "config": {"kind": "AwsGlue"}}
    with pytest.raises(ApiError, match="of kind Unity, which cannot change"):
        api.patch(f"{path}/{created['id']}", {"spec": change})
    storage = {"storage": {"kind": "Managed"}, "table_formats": ["DELTA"]}
    with pytest.raises(ApiError, match="Managed Storage"):
        api.post("/tableflow/v1/tableflow-topics", {"spec": {**place, **storage}})


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
    *((method, "/kafka/v3/clusters/{cluster_id}/acls") for method in ("POST", "DELETE")),
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


def stored(server: Stackless, kind: str) -> Stored:
    (found,) = server.account.store.all(kind)
    return found


def actions(server: Stackless, only: str = "") -> dict[str, str]:
    """What is not as it should be."""
    context, graph = opened(server, only=only)
    steps = engine.plan(graph, context)
    return {one.resource.key: one.action.value for one in steps if one.action != "keep"}


def test_a_catalog_integration_goes_on_or_is_replaced(deployed: Stackless) -> None:
    """Nothing makes one that failed try again."""
    catalog = stored(deployed, CATALOG)
    catalog.properties["suspended"] = True
    deployed.account.store.put(catalog)
    assert actions(deployed, CATALOG_KEY) == {CATALOG_KEY: "change"}
    create(deployed, only=CATALOG_KEY)
    assert stored(deployed, CATALOG).name == catalog.name
    catalog.properties |= {"verdict": "the role cannot be assumed", "suspended": False}
    deployed.account.store.put(catalog)
    assert actions(deployed, CATALOG_KEY) == {CATALOG_KEY: "replace"}
    create(deployed, only=CATALOG_KEY)
    assert stored(deployed, CATALOG).name != catalog.name


def test_another_write_mode_is_told_and_nothing_is_lost(deployed: Stackless) -> None:
    deployed.enabled["stock_trades"]["mode"] = "UPSERT"
    assert actions(deployed, TABLEFLOW) == {f"{TABLEFLOW}/stock_trades": "replace"}
    with pytest.raises(engine.DeployError, match="write_mode"):
        create(deployed, only=TABLEFLOW)
    assert deployed.enabled["stock_trades"].pop("mode") == "UPSERT"
    deployed.enabled["stock_trades"]["mode"] = "APPEND"


def test_catalogs_that_do_not_get_a_table_are_reported(server: Stackless) -> None:
    context, graph = opened(server)
    (table,) = [one for one in graph if one.key == "confluent/tableflow/stock_trades"]
    syncs = [
        {"catalog_type": "AWS_GLUE", "sync_status": "SYNCED"},
        {"catalog_type": "UNITY", "sync_status": "FAILED", "error_message": "no USE CATALOG"},
        {"catalog_type": "SNOWFLAKE", "sync_status": "DISCONNECTED"},
    ]
    facts = {"write_mode": "APPEND", "status": {"catalog_sync_statuses": syncs}}
    assert table.remark(context, Live("stock_trades", {}, facts)) == (
        "catalog UNITY: no USE CATALOG; catalog SNOWFLAKE: the catalog integration is disconnected"
    )


def test_unknown_write_mode_is_reported_and_left(deployed: Stackless) -> None:
    """Confluent's API lists UPSERT_HISTORY, which no spec asks for."""
    deployed.enabled["stock_trades"]["mode"] = "UPSERT_HISTORY"
    context, graph = opened(deployed, only=TABLEFLOW)
    steps = {step.resource.key: step for step in engine.plan(graph, context)}
    step = steps[f"{TABLEFLOW}/stock_trades"]
    assert (step.action, "in mode UPSERT_HISTORY" in step.reason) == (Action.KEEP, True)
    reported: list[str] = []
    engine.create(graph, context, lambda _, what: reported.append(what))
    assert any("UPSERT_HISTORY" in what for what in reported)
    assert deployed.enabled["stock_trades"]["mode"] == "UPSERT_HISTORY"
    deployed.enabled["stock_trades"]["mode"] = "APPEND"


def test_write_mode_of_a_new_table_is_compared(
    deployed: Stackless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tableflow derives it from the topic, and may find something else than the plan did."""
    enable = deployed._enable

    def upserting(call: Call, given: NewSpec, spec: dict[str, Any]) -> None:
        enable(call, given, spec)
        deployed.enabled[given.display_name]["mode"] = "UPSERT"

    monkeypatch.setattr(deployed, "_enable", upserting)
    del deployed.enabled["stock_trades"]
    with pytest.raises(engine.DeployError, match="write mode UPSERT, its spec wants APPEND"):
        create(deployed, only=TABLEFLOW)
    deployed.enabled["stock_trades"]["mode"] = "APPEND"


def test_a_connector_that_failed_is_started_again(deployed: Stackless) -> None:
    """E.g. because its role bindings were not honoured everywhere yet."""
    connector = deployed.connectors["SampleSourceConnector"]
    assert connector["state"] == "RUNNING"
    connector |= {"state": "FAILED", "trace": "User does not have WRITE access to topic t"}
    assert actions(deployed, CONNECTOR) == {f"{CONNECTOR}/stock_trades": "change"}
    create(deployed, only=CONNECTOR)


def key_ids(server: Stackless) -> set[str]:
    return {key.name[0] for key in server.account.store.all(KEY)}


def let_lists_lag(server: Stackless, *old: str) -> None:
    """:param old: kinds of which lists have long had what is there"""
    server.account.delays = NO_DELAYS.model_copy(update={"listing": 3600.0})
    for kind in (CLUSTER, *old):
        for one in server.account.store.all(kind):
            one.created -= 7200
            server.account.store.put(one)


def test_a_list_that_lags_costs_no_key(deployed: Stackless) -> None:
    """A rotation whose new keys no list shows yet, and another process after it."""
    before = key_ids(deployed)
    let_lists_lag(deployed, KEY)
    context, graph = opened(deployed, only="key/")
    assert rotate(graph, context, quiet, force=True) == 8
    assert before < key_ids(deployed)
    assert len(key_ids(deployed)) == len(before) + 8
    context, graph = opened(deployed, only="key/")
    assert {step.action for step in engine.plan(graph, context)} == {"keep"}
    context, graph = opened(deployed, only="key/")
    engine.plan(graph, context)
    published = context.confluent.active_key("key/kafka_app_manager").id
    assert published in key_ids(deployed) - before
    assert rotate(graph, context, quiet) == 0
    assert published in key_ids(deployed)
    deployed.account.delays = NO_DELAYS


def test_keys_that_no_list_shows_are_kept(
    deployed: Stackless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who deploys may not list keys, or not see them at all: they work."""
    before = key_ids(deployed)
    let_lists_lag(deployed)
    age_keys(monkeypatch)
    assert actions(deployed, "key/") == {}
    context, graph = opened(deployed, only="key/")
    monkeypatch.setattr(keys, "is_shown", lambda *_: False)
    assert {step.action for step in engine.plan(graph, context)} == {"keep"}
    assert rotate(graph, context, quiet) == 0
    assert key_ids(deployed) == before
    deployed.account.delays = NO_DELAYS


def test_plan_keeps_keys_that_it_may_neither_see_nor_read(
    deployed: Stackless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the policy and the Confluent user of CI's plans: only the reader's keys are read."""
    let_lists_lag(deployed)
    monkeypatch.setattr(keys, "is_shown", lambda *_: False)
    context, graph = opened(deployed, only="key/")
    context.only_plans = True

    def deny(params: dict[str, Any], **_: Any) -> None:
        if "/reader/" not in params["SecretId"]:
            error: Any = {"Error": {"Code": "AccessDeniedException", "Message": "no"}}
            raise ClientError(error, "GetSecretValue")

    events = context.secrets.client.meta.events
    events.register("provide-client-params.secrets-manager.GetSecretValue", deny)
    assert {step.action for step in engine.plan(graph, context)} == {"keep"}
    deployed.account.delays = NO_DELAYS


def test_new_keys_of_clusters_are_tried_again_after_a_minute(
    deployed: Stackless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers learn of a key one after the other; keys that are old enough are known to all."""
    pauses: list[float] = []

    def long_pauses(change: Callable[[DeployContext, list[Resource]], Any]) -> list[float]:
        context, graph = opened(deployed, only="key/")
        pauses.clear()
        context = replace(context, sleep=pauses.append)
        change(context, graph)
        return [pause for pause in pauses if pause >= keys.SPREAD_SECONDS]

    create_again = long_pauses(lambda context, graph: engine.create(graph, context, quiet))
    assert len(create_again) == 6  # the run that created the keys may have been killed
    rotated = long_pauses(lambda context, graph: rotate(graph, context, quiet, force=True))
    assert len(rotated) == 2 * 6  # the keys that are active, and those that take their place
    age_keys(monkeypatch)
    assert long_pauses(lambda context, graph: engine.create(graph, context, quiet)) == []


def test_a_key_is_asked_again_only_after_a_pause(deployed: Stackless) -> None:
    """Two answers at once may both come from the server that knows the key."""
    context, graph = opened(deployed, only="key/tableflow")
    pauses: list[float] = []
    engine.create(graph, replace(context, sleep=pauses.append), quiet)
    assert pauses == [polling.FIRST_SECONDS]


def test_an_orphan_is_deleted_once_no_list_can_lag(
    deployed: Stackless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key whose secret is not stored."""
    context, graph = opened(deployed, only="key/kafka_app_manager")
    engine.plan(graph, context)
    key = next(one for one in graph if one.key == "key/kafka_app_manager")
    assert isinstance(key, RotatingKey)
    orphan = context.confluent.cloud.post("/iam/v2/api-keys", {"spec": key._spec(context)})["id"]
    assert actions(deployed, "key/kafka_app_manager") == {}
    age_keys(monkeypatch)
    assert actions(deployed, "key/kafka_app_manager") == {"key/kafka_app_manager": "change"}
    create(deployed, only="key/kafka_app_manager")
    assert orphan not in key_ids(deployed)


def test_managed_storage_needs_neither_bucket_nor_catalog(server: Stackless) -> None:
    """Its table is in Tableflow's own catalog only, so no asset and no other table is of it."""
    context, _ = opened(server)
    document = context.specs[0].model_dump(by_alias=True)
    document["tableflow"]["storage"] = "managed"
    spec = TopicSpec.model_validate(document)
    context.specs[:] = [spec]
    whole = resources(context.config, [spec])
    (table,) = [one for one in whole if one.key == f"{TABLEFLOW}/stock_trades"]
    graph = engine.with_needs([table], whole)
    engine.create(graph, context, quiet)
    assert server.enabled["stock_trades"]["storage"] == {"kind": "Managed"}
    assert not {"aws/bucket", "confluent/catalog_integration", PROVIDER_INTEGRATION} & {
        *table.needs
    }
    assert {step.action for step in engine.plan(graph, context)} == {"keep"}
    wanted = {one.key for one in whole if one.wanted}
    assert not {key for key in wanted if key.endswith("/stock_trades") and "snowflake" in key}
    assert not spec.has_table(context.config)
    assert spec.has_table(Settings())  # topicberg's engine writes to the bucket
    context.specs[:] = [one for one in load_topics() if one.name == "stock_trades"]
    moved = resources(context.config, context.specs)
    (table,) = [one for one in moved if one.key == table.key]
    needed = engine.with_needs([table], moved)
    engine.create([one for one in needed if one.key in table.within], context, quiet)
    steps = {one.resource.key: one for one in engine.plan(needed, context)}
    assert steps[table.key].changes["storage"][0] == [
        "Managed",
        None,
        None,
    ]  # it cannot be changed in place
