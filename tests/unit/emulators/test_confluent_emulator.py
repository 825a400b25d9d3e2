"""The Confluent emulator by itself: what it refuses, its shapes of errors, keys, pages, faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stackless import NO_DELAYS, NOWHERE
from starlette.testclient import TestClient

from topicberg.settings import Settings
from topicberg_local import state
from topicberg_local.emulators.confluent.account import Account
from topicberg_local.emulators.confluent.keys import Bootstrap
from topicberg_local.emulators.confluent.operation import Page, listing
from topicberg_local.emulators.confluent.roles import covers
from topicberg_local.emulators.confluent.server import Server
from topicberg_local.emulators.store import Stored

URL = "http://127.0.0.1:1"
CLOUD = ("LOCALKEY", "local-secret")


ADMIN = {"Authorization": "Bearer admin-token"}


class Cloud:
    """Short calls of the emulator, with the first Cloud key."""

    def __init__(self, folder: Path) -> None:
        config = Settings(state_dir=folder)
        state.save_endpoints(config, {}, NOWHERE)
        self.account = Account(folder, config, URL)
        self.account.delays = NO_DELAYS
        server = Server(self.account, Bootstrap(*CLOUD), "admin-token")
        self.client = TestClient(server.application(), base_url=URL)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        auth: tuple[str, str] | None = CLOUD,
        headers: dict[str, str] | None = None,
    ) -> Any:
        return self.client.request(method, path, json=body, auth=auth, headers=headers)  # type: ignore[arg-type]  # None: none at all

    def made(self, path: str, body: Any) -> Any:
        answer = self.call("POST", path, body)
        assert answer.status_code in (201, 202), answer.text
        return answer.json()

    def environment(self) -> str:
        return str(self.made("/org/v2/environments", {"display_name": "e"})["id"])

    def cluster(self, environment: str) -> str:
        return str(self.made("/cmk/v2/clusters", cluster(environment))["id"])

    def service_account(self, name: str = "s") -> str:
        return str(self.made("/iam/v2/service-accounts", {"display_name": name})["id"])

    def key(self, owner: str, resource: dict[str, str] | None = None) -> tuple[str, str]:
        spec: dict[str, Any] = {"owner": {"id": owner}}
        if resource:
            spec["resource"] = resource
        made = self.made("/iam/v2/api-keys", {"spec": spec})
        return made["id"], made["spec"]["secret"]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path)
    yield cloud
    cloud.account.close()


def cluster(inside: str, **changes: Any) -> dict[str, Any]:
    spec = {
        "display_name": "c",
        "availability": "SINGLE_ZONE",
        "cloud": "AWS",
        "region": "us-east-1",
        "config": {"kind": "Standard"},
        "environment": {"id": inside},
    }
    return {"spec": spec | changes}


def error(answer: Any) -> dict[str, Any]:
    (only,) = answer.json()["errors"]
    return dict(only)


# --- keys ---


def test_every_api_wants_a_key_of_its_own_kind(cloud: Cloud) -> None:
    environment = cloud.environment()
    lkc, owner = cloud.cluster(environment), cloud.service_account()
    (registry,) = cloud.call("GET", f"/srcm/v3/clusters?environment={environment}").json()["data"]
    keys = {
        "cloud": cloud.key(owner),
        "kafka": cloud.key(owner, {"id": lkc, "kind": "Cluster", "api_version": "cmk/v2"}),
        "registry": cloud.key(owner, {"id": registry["id"], "kind": "Cluster"}),
        "tableflow": cloud.key(
            owner, {"id": "tableflow", "kind": "Tableflow", "api_version": "tableflow/v1"}
        ),
    }
    reads = {
        "cloud": "/org/v2/environments",
        "kafka": f"/kafka/v3/clusters/{lkc}",
        "tableflow": "/tableflow/v1/regions",
    }
    for kind, path in reads.items():
        for other, key in keys.items():
            expected = 200 if kind == other else 401
            assert cloud.call("GET", path, auth=key).status_code == expected, (kind, other)
    assert error(cloud.call("GET", "/org/v2/environments", auth=keys["kafka"]))["detail"] == (
        "invalid API key: make sure you're using a Cloud API Key and not a Kafka API Key"
    )
    html = cloud.call("GET", reads["kafka"], auth=keys["cloud"])
    assert html.headers["Content-Type"].startswith("text/html")
    assert cloud.call("GET", "/subjects", auth=keys["kafka"]).json()["error_code"] == 40101


def test_a_kafka_key_opens_one_cluster(cloud: Cloud) -> None:
    environment = cloud.environment()
    first, second = cloud.cluster(environment), cloud.cluster(environment)
    key = cloud.key(cloud.service_account(), {"id": first, "kind": "Cluster"})
    assert cloud.call("GET", f"/kafka/v3/clusters/{first}", auth=key).status_code == 200
    assert cloud.call("GET", f"/kafka/v3/clusters/{second}", auth=key).status_code == 401


@pytest.mark.parametrize(
    "auth", [None, ("LOCALKEY", "wrong"), ("NOSUCHKEY", "x"), ("", "")], ids=str
)
def test_nobody_enters_without_a_key(cloud: Cloud, auth: tuple[str, str] | None) -> None:
    answer = cloud.call("GET", "/org/v2/environments", auth=auth)
    assert answer.status_code == 401
    assert error(answer)["status"] == "401"
    assert answer.headers["WWW-Authenticate"].startswith("Basic")
    assert cloud.call("GET", "/emulator/v1/faults", auth=auth).status_code == 401


def test_a_new_key_is_unknown_for_a_while(cloud: Cloud) -> None:
    cloud.account.delays = NO_DELAYS.model_copy(update={"api_key": 60})
    key = cloud.key(cloud.service_account())
    assert cloud.call("GET", "/org/v2/environments", auth=key).status_code == 401
    cloud.account.delays = NO_DELAYS
    assert cloud.call("GET", "/org/v2/environments", auth=key).status_code == 200
    assert cloud.call("DELETE", f"/iam/v2/api-keys/{key[0]}").status_code == 204
    assert cloud.call("GET", "/org/v2/environments", auth=key).status_code == 401
    assert cloud.call("GET", f"/iam/v2/api-keys/{key[0]}").status_code == 403


def test_a_secret_is_told_once_and_kept_nowhere(cloud: Cloud, tmp_path: Path) -> None:
    key, secret = cloud.key(cloud.service_account())
    for path in (f"/iam/v2/api-keys/{key}", "/iam/v2/api-keys"):
        assert "secret" not in cloud.call("GET", path).text
    files = list(tmp_path.rglob("account.db*"))
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


@pytest.mark.parametrize(
    ("resource", "status"),
    [
        ({"id": "tableflow"}, 422),
        ({"id": "tableflow", "kind": "Cluster", "api_version": "cmk/v2"}, 422),
        ({"id": "lkc-local", "kind": "Region"}, 422),
        ({"id": "lkc-none", "kind": "Cluster"}, 404),
        ({"id": "lsrc-none", "kind": "Cluster"}, 404),
        ({"id": "aws.us-east-1", "kind": "Region", "api_version": "fcpm/v2"}, 501),
        ({"id": "ksqlDB-1", "kind": "ksqlDB"}, 501),
    ],
)
def test_a_key_is_for_what_exists_and_is_called_what_it_is(
    cloud: Cloud, resource: dict[str, str], status: int
) -> None:
    cloud.cluster(cloud.environment())
    spec = {"owner": {"id": cloud.service_account()}, "resource": resource}
    assert cloud.call("POST", "/iam/v2/api-keys", {"spec": spec}).status_code == status


# --- what is refused ---

ROLE = {"principal": "User:u-local1", "role_name": "MetricsViewer", "crn_pattern": "crn://x"}
TABLE = {
    "display_name": "t",
    "environment": {"id": "e"},
    "kafka_cluster": {"id": "c"},
    "storage": {"kind": "ByobAws", "bucket_name": "b", "provider_integration_id": "p"},
}


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/org/v2/environments", {}, "/display_name"),
        ("/org/v2/environments", {"display_name": 1}, "/display_name"),
        ("/org/v2/environments", {"display_name": None}, "/display_name"),
        ("/org/v2/environments", {"display_name": "a", "id": "env-1"}, "/id"),
        ("/org/v2/environments", {"display_name": "a", "colour": "red"}, "/colour"),
        (
            "/org/v2/environments",
            {"display_name": "a", "stream_governance_config": {"package": "FREE"}},
            "/stream_governance_config/package",
        ),
        ("/cmk/v2/clusters", cluster("e", status={}), "/spec/status"),
        ("/cmk/v2/clusters", cluster("e", http_endpoint="http://x"), "/spec/http_endpoint"),
        ("/cmk/v2/clusters", cluster("e", cloud="aws"), "/spec/cloud"),
        ("/cmk/v2/clusters", cluster("e", availability="EXTREME"), "/spec/availability"),
        ("/cmk/v2/clusters", cluster("e", config={"kind": "Dedicated"}), "/spec/config/cku"),
        ("/cmk/v2/clusters", cluster("e", config={"kind": "Gold"}), "/spec/config"),
        (
            "/cmk/v2/clusters",
            cluster("e", environment={"id": "e", "related": "x"}),
            "/spec/environment/related",
        ),
        ("/iam/v2/api-keys", {"spec": {"owner": {"id": ""}}}, "/spec/owner/id"),
        ("/iam/v2/api-keys", {"spec": {"owner": {"id": "s"}, "secret": "x"}}, "/spec/secret"),
        ("/pim/v1/integrations", {"environment": {"id": "e"}}, "/config"),
    ],
)
def test_a_wrong_body_is_refused_by_its_field(
    cloud: Cloud, path: str, body: dict[str, Any], pointer: str
) -> None:
    answer = cloud.call("POST", path, body)
    assert answer.status_code == 422
    assert error(answer)["status"] == "422"
    assert error(answer)["source"] == {"pointer": pointer}


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"config": {"retention_ms": 604800000}}, "/spec/config/retention_ms"),
        ({"config": {"retention_ms": "86399999"}}, "/spec/config/retention_ms"),
        ({"config": {"data_retention_ms": "1"}}, "/spec/config/data_retention_ms"),
        ({"config": {"enable_compaction": True}}, "/spec/config/enable_compaction"),
        (
            {"config": {"error_handling": {"mode": "LOG", "log_target": "x"}}},
            "/spec/config/error_handling/log_target",
        ),
        (
            {"config": {"error_handling": {"mode": "SKIP"}, "record_failure_strategy": "SUSPEND"}},
            "/spec/config",
        ),
        ({"table_formats": []}, "/spec/table_formats"),
        ({"table_formats": ["ICEBERG", "ICEBERG"]}, "/spec/table_formats"),
        ({"table_formats": ["HUDI"]}, "/spec/table_formats/0"),
        ({"storage": {**TABLE["storage"], "table_path": "s3://x"}}, "/spec/storage/table_path"),  # type: ignore[dict-item]
        ({"status": {}}, "/spec/status"),
    ],
)
def test_a_wrong_tableflow_topic_is_refused_by_its_field(
    cloud: Cloud, changes: dict[str, Any], pointer: str
) -> None:
    reference = {"id": "tableflow", "kind": "Tableflow", "api_version": "tableflow/v1"}
    key, body = cloud.key(cloud.service_account(), reference), {"spec": TABLE | changes}
    answer = cloud.call("POST", "/tableflow/v1/tableflow-topics", body, auth=key)
    assert answer.status_code == 422
    assert error(answer)["source"] == {"pointer": pointer}


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/cmk/v2/clusters", "environment"),
        ("/cmk/v2/clusters?environment=", "environment"),
        ("/srcm/v3/clusters", "environment"),
        ("/iam/v2/role-bindings", "crn_pattern"),
        ("/org/v2/environments?page_size=101", "page_size"),
        ("/org/v2/environments?page_size=many", "page_size"),
        ("/org/v2/environments?page_token=mine", "page_token"),
        ("/org/v2/environments?display_name=a", "display_name"),
    ],
)
def test_a_wrong_query_is_refused_by_its_parameter(cloud: Cloud, path: str, parameter: str) -> None:
    answer = cloud.call("GET", path)
    assert answer.status_code == 400
    assert error(answer)["source"] == {"parameter": parameter}


def test_what_is_not_there_is_not_answered_with_success(cloud: Cloud) -> None:
    for method, path in (
        ("GET", "/fcpm/v2/compute-pools"),
        ("POST", "/srcm/v2/clusters"),
        ("GET", "/"),
        ("POST", "/kafka/v3/clusters/lkc-local/topics/t/records"),
    ):
        answer = cloud.call(method, path)
        assert answer.status_code == 501
        assert f"{method} {path}" in answer.text
    wrong = cloud.call("PUT", "/org/v2/environments")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "POST, GET")


def test_a_body_is_json_and_says_so(cloud: Cloud) -> None:
    def post(content: bytes, media_type: str) -> int:
        return cloud.client.post(
            "/org/v2/environments",
            content=content,
            auth=CLOUD,
            headers={"Content-Type": media_type},
        ).status_code

    assert post(b'{"display_name": "a"}', "text/plain") == 415
    assert post(b'{"display_name": ', "application/json") == 400
    assert post(b"", "application/json") == 400
    assert post(b'{"display_name": "a"}', "application/json; charset=utf-8") == 201


def test_each_api_has_its_shape_of_errors(cloud: Cloud) -> None:
    environment = cloud.environment()
    lkc = cloud.cluster(environment)
    connect = f"/connect/v1/environments/{environment}/clusters/{lkc}"
    missing = cloud.call("GET", f"/pim/v1/integrations/x?environment={environment}")
    assert (missing.status_code, missing.json()["error_code"]) == (404, 404)
    missing = cloud.call("GET", f"{connect}/connectors/x/status")
    assert (missing.status_code, missing.json()["error_code"]) == (404, 404)
    missing = cloud.call("GET", "/iam/v2/role-bindings/rb-x")
    assert (missing.status_code, missing.json()["error_code"]) == (403, 40301)
    refused = cloud.call("POST", f"{connect}/connectors", {"name": "a"})
    assert (refused.status_code, refused.json()["code"]) == (400, 400)
    refused = cloud.call("GET", f"{connect}/connectors", auth=None)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, 401)
    refused = cloud.call("POST", "/iam/v2/role-bindings", ROLE | {"principal": "me"})
    assert (refused.status_code, error(refused)["status"]) == (400, "400")


# --- lives of objects ---


def test_an_environment_lives(cloud: Cloud) -> None:
    name = cloud.environment()
    again = cloud.call("POST", "/org/v2/environments", {"display_name": "e"})
    assert again.status_code == 409
    assert again.headers["Location"] == f"{URL}/org/v2/environments/{name}"
    path = f"/org/v2/environments/{name}"
    change = {"stream_governance_config": {"package": "ADVANCED"}}
    changed = cloud.call("PATCH", path, change).json()
    assert changed["display_name"] == "e"
    assert changed["stream_governance_config"]["package"] == "ADVANCED"
    assert changed["metadata"]["updated_at"] > changed["metadata"]["created_at"]
    lkc = cloud.cluster(name)
    assert cloud.call("DELETE", path).status_code == 409
    assert cloud.call("DELETE", f"/cmk/v2/clusters/{lkc}?environment={name}").status_code == 204
    assert cloud.call("DELETE", path).status_code == 204
    assert cloud.call("GET", path).status_code == 404
    assert cloud.call("GET", f"/srcm/v3/clusters?environment={name}").status_code == 404


def test_a_cluster_takes_its_time_and_brings_a_registry(cloud: Cloud) -> None:
    environment = cloud.environment()
    registries = f"/srcm/v3/clusters?environment={environment}"
    assert cloud.call("GET", registries).json()["data"] == []
    cloud.account.delays = NO_DELAYS.model_copy(update={"cluster": 60})
    made = cloud.made("/cmk/v2/clusters", cluster(environment))
    assert (made["status"]["phase"], made["spec"]["availability"]) == ("PROVISIONING", "LOW")
    assert "http_endpoint" not in made["spec"]
    assert cloud.call("GET", registries).json()["data"] == []
    cloud.account.delays = NO_DELAYS.model_copy(update={"schema_registry": 60})
    ready = cloud.call("GET", f"/cmk/v2/clusters/{made['id']}?environment={environment}").json()
    assert (ready["status"]["phase"], ready["spec"]["http_endpoint"]) == ("PROVISIONED", URL)
    (registry,) = cloud.call("GET", registries).json()["data"]
    assert registry["status"]["phase"] == "PROVISIONING"
    cloud.account.delays = NO_DELAYS
    (registry,) = cloud.call("GET", registries).json()["data"]
    assert registry["status"]["phase"] == "PROVISIONED"
    cloud.cluster(environment)
    assert len(cloud.call("GET", registries).json()["data"]) == 1


def test_a_deleted_cluster_goes_slowly_and_then_is_forbidden(cloud: Cloud) -> None:
    environment = cloud.environment()
    lkc = cloud.cluster(environment)
    key = cloud.key(cloud.service_account(), {"id": lkc, "kind": "Cluster"})
    cloud.account.delays = NO_DELAYS.model_copy(update={"deletion": 60})
    path = f"/cmk/v2/clusters/{lkc}?environment={environment}"
    assert cloud.call("DELETE", path).status_code == 204
    assert cloud.call("GET", path).status_code == 200
    assert cloud.call("DELETE", path).status_code == 204
    assert cloud.call("GET", f"/kafka/v3/clusters/{lkc}/topics", auth=key).status_code == 401
    assert cloud.cluster(environment) == lkc  # whose id the local tables are named after
    cloud.account.delays = NO_DELAYS
    assert cloud.call("DELETE", path).status_code == 204
    assert cloud.call("GET", path).status_code == 403
    assert cloud.call("GET", f"/cmk/v2/clusters?environment={environment}").json()["data"] == []


def test_a_protected_cluster_stays(cloud: Cloud) -> None:
    environment = cloud.environment()
    made = cloud.made("/cmk/v2/clusters", cluster(environment, deletion_protection=True))
    path = f"/cmk/v2/clusters/{made['id']}?environment={environment}"
    assert cloud.call("DELETE", path).status_code == 409
    off = {"spec": {"environment": {"id": environment}, "deletion_protection": False}}
    assert cloud.call("PATCH", f"/cmk/v2/clusters/{made['id']}", off).status_code == 200
    assert cloud.call("DELETE", path).status_code == 204


def test_a_service_account_takes_its_keys_and_bindings_with_it(cloud: Cloud) -> None:
    owner = cloud.service_account()
    assert cloud.call("POST", "/iam/v2/service-accounts", {"display_name": "s"}).status_code == 409
    key, crn = cloud.key(owner), cloud.account.crn()
    role = {"principal": f"User:{owner}", "role_name": "MetricsViewer", "crn_pattern": crn}
    binding = cloud.made("/iam/v2/role-bindings", role)["id"]
    assert cloud.call("POST", "/iam/v2/role-bindings", role).status_code == 409
    found = cloud.call("GET", f"/iam/v2/role-bindings?crn_pattern={crn}").json()["data"]
    assert [one["id"] for one in found] == [binding]
    assert cloud.call("DELETE", f"/iam/v2/service-accounts/{owner}").status_code == 204
    assert cloud.call("GET", f"/iam/v2/role-bindings/{binding}").status_code == 403
    assert cloud.call("GET", "/org/v2/environments", auth=key).status_code == 401


def test_a_binding_names_what_exists(cloud: Cloud) -> None:
    owner, crn = cloud.service_account(), cloud.account.crn()
    right = {"principal": f"User:{owner}", "role_name": "ResourceOwner", "crn_pattern": crn}
    for wrong in (
        {"principal": "User:sa-none"},
        {"role_name": "Emperor"},
        {"crn_pattern": "crn://confluent.cloud/organization=other"},
        {"crn_pattern": f"{crn}/environment=env-none"},
        {"crn_pattern": f"{crn}/environment=*/cloud-cluster=lkc-none"},
    ):
        assert cloud.call("POST", "/iam/v2/role-bindings", right | wrong).status_code == 400, wrong
    made = cloud.call("POST", "/iam/v2/role-bindings", right)
    assert made.status_code == 201
    gone = cloud.call("DELETE", f"/iam/v2/role-bindings/{made.json()['id']}")
    assert (gone.status_code, gone.json()["principal"]) == (200, f"User:{owner}")


@pytest.mark.parametrize(
    ("pattern", "crn", "is_covered"),
    [
        ("crn://c/organization=o", "crn://c/organization=o/environment=e", True),
        ("crn://c/organization=o/environment=e", "crn://c/organization=o/environment=e", True),
        ("crn://c/organization=o/environment=e", "crn://c/organization=o/environment=e2", False),
        ("crn://c/organization=o/environment=*", "crn://c/organization=o/environment=e2", True),
        ("crn://c/organization=o/environment=e/x=y", "crn://c/organization=o/environment=e", False),
    ],
)
def test_a_binding_covers_what_is_below_it(pattern: str, crn: str, is_covered: bool) -> None:
    assert covers(pattern, crn) is is_covered


def test_an_integration_has_a_role_of_its_own(cloud: Cloud) -> None:
    environment, role = cloud.environment(), "arn:aws:iam::000000000000:role/customer"
    body = {
        "display_name": "i",
        "provider": "AWS",
        "config": {"kind": "AwsIntegrationConfig", "customer_iam_role_arn": role},
        "environment": {"id": environment},
    }
    made = cloud.made("/pim/v1/integrations", body)
    assert made["config"]["iam_role_arn"] != role
    assert made["config"]["external_id"]
    assert made["usages"] == []
    assert cloud.call("POST", "/pim/v1/integrations", body).status_code == 409
    path = f"/pim/v1/integrations/{made['id']}?environment={environment}"
    assert cloud.call("GET", path).json() == made
    assert cloud.call("DELETE", f"/org/v2/environments/{environment}").status_code == 409
    assert cloud.call("DELETE", path).status_code == 204
    assert cloud.call("GET", path).status_code == 404


def test_nothing_is_lost_when_it_ends(cloud: Cloud, tmp_path: Path) -> None:
    environment, owner = cloud.environment(), cloud.service_account()
    lkc, key, again = cloud.cluster(environment), cloud.key(owner), Cloud(tmp_path)
    assert again.account.organization == cloud.account.organization
    assert (
        again.call("GET", "/org/v2/environments", auth=key).json()["data"][0]["id"] == environment
    )
    path = f"/cmk/v2/clusters/{lkc}?environment={environment}"
    assert again.call("GET", path).json() == cloud.call("GET", path).json()
    again.account.close()


def test_of_two_at_once_one_creates(cloud: Cloud) -> None:
    def create(_: int) -> int:
        answer = cloud.call("POST", "/iam/v2/service-accounts", {"display_name": "same"})
        return int(answer.status_code)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(create, range(8))) == [201] + [409] * 7


# --- pages ---


@given(st.integers(0, 30), st.integers(1, 100), st.sets(st.integers(0, 29)))
def test_a_page_neither_repeats_nor_skips_when_others_go(
    count: int, size: int, deleted: set[int]
) -> None:
    """Objects are deleted after the first page; many were made at the same moment."""
    objects = [
        Stored("x", (f"{number:02}",), created=float(number // 3)) for number in range(count)
    ]
    token, found, first = "", [], True
    while first or token:
        page = Page(page_size=size, page_token=token)
        document = listing(objects, page, "http://x", [], "v", "X", lambda one: {"id": one.name[0]})
        found += [one["id"] for one in document["data"]]
        token = document["metadata"].get("next", "").partition("page_token=")[2]
        token = token.replace("%3D", "=")
        if first:
            seen, objects = set(found), [one for one in objects if int(one.name[0]) not in deleted]
            first = False
    assert len(found) == len(set(found))
    assert set(found) == seen | {one.name[0] for one in objects}


# --- faults and delays ---


def ask_for(cloud: Cloud, **fault: Any) -> None:
    made = cloud.call("POST", "/emulator/v1/faults", fault, auth=None, headers=ADMIN)
    assert made.status_code == 201, made.text


def test_the_next_requests_fail_as_asked(cloud: Cloud) -> None:
    ask_for(cloud, kind="429", times=1, path="environments", method="GET", seconds=7)
    ask_for(cloud, kind="503", times=2, path="environments", method="GET")
    limited = cloud.call("GET", "/org/v2/environments")
    assert (limited.status_code, limited.content) == (429, b"")
    assert (limited.headers["Retry-After"], limited.headers["X-RateLimit-Reset"]) == ("7", "7")
    assert cloud.call("GET", "/iam/v2/service-accounts").status_code == 200
    statuses = [cloud.call("GET", "/org/v2/environments").status_code for _ in range(3)]
    assert statuses == [503, 503, 200]
    ask_for(cloud, kind="unsynced", times=1)
    assert cloud.call("GET", "/org/v2/environments").status_code == 401
    left = cloud.call("GET", "/emulator/v1/faults", auth=None, headers=ADMIN).json()
    assert [fault["hits"] for fault in left] == [1, 2, 1]


@pytest.mark.parametrize(
    "more", [{}, {"times": 1, "percent": 2}, {"times": 1, "path": "("}, {"times": 1, "host": "x"}]
)
def test_a_fault_that_cannot_be_is_refused(cloud: Cloud, more: dict[str, Any]) -> None:
    fault = {"kind": "500"} | more
    answer = cloud.call("POST", "/emulator/v1/faults", fault, auth=None, headers=ADMIN)
    assert answer.status_code == 422


def test_delays_can_be_changed_and_stay(cloud: Cloud, tmp_path: Path) -> None:
    path = "/emulator/v1/delays"
    changed = cloud.call("PATCH", path, {"cluster": 9}, auth=None, headers=ADMIN)
    assert changed.json()["cluster"] == 9
    for wrong in ({"cluster": -1}, {"lunch": 1}, {"cluster": "long"}):
        assert cloud.call("PATCH", path, wrong, auth=None, headers=ADMIN).status_code == 422
    again = Account(tmp_path, cloud.account.config, URL)
    assert again.delays.cluster == 9
    again.close()


def test_answers_tell_the_limits_where_the_api_does(cloud: Cloud) -> None:
    rated = cloud.call("GET", "/org/v2/environments")
    again = cloud.call("GET", "/org/v2/environments")
    left = [int(answer.headers["X-RateLimit-Remaining"]) for answer in (rated, again)]
    assert left[1] < left[0] or left[1] > 1990  # a new minute may have begun
    assert int(rated.headers["X-RateLimit-Reset"]) <= 60
    assert "X-RateLimit-Limit" not in cloud.call("GET", "/iam/v2/api-keys").headers
    assert len({answer.headers["X-Request-Id"] for answer in (rated, again)}) == 2


def test_older_credentials_get_what_is_new(tmp_path: Path) -> None:
    config = Settings(state_dir=tmp_path)
    old = {"s3_secret_key": "a", "supervisor_password": "b", "snowflake_password": "c"}
    (tmp_path / "credentials.json").write_text(json.dumps(old))
    first = state.credentials(config)
    assert first.s3_secret_key.get_secret_value() == "a"
    assert first.confluent_api_secret == state.credentials(config).confluent_api_secret
