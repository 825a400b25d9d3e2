"""Each login as settings state it, and as each client gets it."""

from __future__ import annotations

import base64
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from clocks import Clock

from topicberg.endpoints import Endpoints, LakeEndpoints, SnowflakeEndpoint
from topicberg.errors import LoginError, TopicbergError
from topicberg.kafka import fetch
from topicberg.kafka.fetch import fetcher
from topicberg.logins import from_environment
from topicberg.logins.catalog import CatalogLogin, CatalogSettings
from topicberg.logins.kafka import KafkaLogin, KafkaSettings
from topicberg.logins.registry import RegistryLogin, RegistrySettings
from topicberg.settings import Settings

SECRET = "correct-horse-battery"
OAUTH = {
    "OAUTH__CLIENT_ID": "engine",
    "OAUTH__CLIENT_SECRET": SECRET,
    "OAUTH__TOKEN_URI": "https://idp.example/token",
}
LAKE = "spark.sql.catalog.lake"
CONFIG = Settings(aws_region="eu-west-1", aws_account_id="123456789012")


@pytest.fixture
def stated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``stated(prefix, **values)``: settings, until the test ends."""

    def state(prefix: str, **values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"TOPICBERG_{prefix}_{name}", value)

    return state


def catalog() -> CatalogLogin:
    return from_environment(CatalogSettings, "the Iceberg catalog", "docs/catalogs.md")


def kafka() -> KafkaLogin:
    return from_environment(KafkaSettings, "Kafka", "docs/kafka.md")


def registry() -> RegistryLogin:
    return from_environment(RegistrySettings, "the schema registry", "docs/kafka.md")


@pytest.mark.parametrize(
    ("given", "auth"),
    [({}, None), (OAUTH, "oauth2"), ({"TOKEN": SECRET}, "token"), ({"AUTH": "none"}, "none")],
)
def test_catalog_kind_follows_from_settings(stated: Any, given: Any, auth: str | None) -> None:
    stated("ICEBERG_REST", **given)
    assert catalog().auth == auth


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"AUTH": "oauth2"}, "requires TOPICBERG_ICEBERG_REST_OAUTH__CLIENT_ID, TOPICBE"),
        ({"OAUTH__CLIENT_ID": "engine"}, "requires TOPICBERG_ICEBERG_REST_OAUTH__CLIENT_SECRET"),
        ({"AUTH": "token"}, "requires TOPICBERG_ICEBERG_REST_TOKEN"),
        ({"OAUTH__CLIENT_SECRET": SECRET}, "requires TOPICBERG_ICEBERG_REST_OAUTH__CLIENT_ID"),
        ({**OAUTH, "TOKEN": SECRET}, "set TOPICBERG_ICEBERG_REST_AUTH"),
        ({"AUTH": "kerberos"}, "TOPICBERG_ICEBERG_REST_AUTH: Input should be 'none'"),
        ({**OAUTH, "OAUTH__TOKEN_URI": SECRET}, "_OAUTH__TOKEN_URI: String should match"),
        ({"ROLE_ARN": "arn:aws:iam::123456789012:role/r"}, "set TOPICBERG_ICEBERG_REST_AUTH=sigv4"),
        ({"DELEGATION": "remote-signing"}, "DuckDB and PyArrow cannot sign"),
    ],
)
def test_catalog_wrong_settings_are_named(stated: Any, given: Any, reason: str) -> None:
    stated("ICEBERG_REST", **given)
    with pytest.raises(TopicbergError) as wrong:
        catalog()
    assert reason in wrong.value.message
    assert SECRET not in str(wrong.value)
    assert "docs/catalogs.md" in str(wrong.value.hint)


@pytest.mark.usefixtures("catalogs_are_properties")
def test_catalog_oauth_for_each_client(stated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stated(
        "ICEBERG_REST",
        **OAUTH,
        OAUTH__SCOPE="PRINCIPAL_ROLE:ALL",
        OAUTH__AUDIENCE="lake",
        WAREHOUSE="main",
        HEADERS='{"Polaris-Realm": "R"}',
        DELEGATION="vended-credentials",
    )
    monkeypatch.setattr("topicberg.logins.oauth.OAuthClient.token", lambda _: "the-token")
    lake = LakeEndpoints(
        iceberg_rest="https://catalog",
        iceberg_login=catalog(),
        s3_access_key="own-key",
        s3_secret_key="own-secret",
    )
    found: Any = lake.catalog(CONFIG)
    assert (found["warehouse"], found["header.Polaris-Realm"]) == ("main", "R")
    assert found["header.X-Iceberg-Access-Delegation"] == "vended-credentials"
    session, renew_at = lake.spark_session(CONFIG)
    assert renew_at is None
    assert (
        session.items()
        >= {
            LAKE: "org.apache.iceberg.spark.SparkCatalog",
            f"{LAKE}.uri": "https://catalog",
            f"{LAKE}.warehouse": "main",
            f"{LAKE}.rest.auth.type": "oauth2",
            f"{LAKE}.credential": f"engine:{SECRET}",
            f"{LAKE}.oauth2-server-uri": "https://idp.example/token",
            f"{LAKE}.scope": "PRINCIPAL_ROLE:ALL",
            f"{LAKE}.audience": "lake",
            f"{LAKE}.token-exchange-enabled": "false",
            f"{LAKE}.header.Polaris-Realm": "R",
            f"{LAKE}.header.X-Iceberg-Access-Delegation": "vended-credentials",
        }.items()
    )
    secret, options = lake.login.duckdb("eu-west-1")
    assert secret is not None
    assert "TOKEN 'the-token'" in secret
    assert "MAP {'Polaris-Realm': 'R'}" in secret
    assert options.endswith("'vended_credentials', DEFAULT_REGION 'eu-west-1'")
    assert lake.iceberg_rest_headers() == {
        "Polaris-Realm": "R",
        "Authorization": "Bearer the-token",
    }
    for properties in (found, session, lake.spark_properties(CONFIG)):
        assert "own-key" not in properties.values()
        assert "own-secret" not in properties.values()
    for shown in (found, lake.spark_properties(CONFIG), repr(lake)):
        assert SECRET not in str(shown)


def test_catalog_basic_gives_spark_a_token(stated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stated("ICEBERG_REST", **OAUTH, OAUTH__CLIENT_AUTH="basic")
    until = ("the-token", 7.0)
    monkeypatch.setattr("topicberg.logins.oauth.OAuthClient.token_until", lambda _: until)
    session, renew_at = catalog().spark("eu-west-1")
    assert (session["token"], session["token-refresh-enabled"]) == ("the-token", "false")
    assert renew_at == 7.0
    assert SECRET not in str(session)


@pytest.mark.usefixtures("catalogs_are_properties")
def test_catalog_s3_tables_chooses_locations(stated: Any) -> None:
    arn = "arn:aws:s3tables:eu-west-1:123456789012:bucket/b"
    stated("ICEBERG_REST", AUTH="sigv4", SIGNING="s3tables", WAREHOUSE=arn)
    url = "https://s3tables.eu-west-1.amazonaws.com/iceberg"
    lake = LakeEndpoints(iceberg_rest=url, iceberg_login=catalog())
    found: Any = lake.catalog(CONFIG)
    expected = {
        "warehouse": arn,
        "rest.sigv4-enabled": "true",
        "rest.signing-name": "s3tables",
        "rest.signing-region": "eu-west-1",
    }
    assert found.items() >= {**expected, "topicberg.locations": "catalog"}.items()
    assert (
        lake.spark_session(CONFIG)[0].items()
        >= {f"{LAKE}.{name}": value for name, value in expected.items()}.items()
    )
    assert lake.login.duckdb("eu-west-1") == (
        None,
        "AUTHORIZATION_TYPE 'sigv4', ACCESS_DELEGATION_MODE 'none'",
    )


def test_catalog_without_login_leaves_spark_alone() -> None:
    for lake in (
        LakeEndpoints(iceberg_rest="http://rest"),
        LakeEndpoints(iceberg_rest="https://glue.eu-west-1.amazonaws.com/iceberg"),
        LakeEndpoints(iceberg_rest="http://rest", iceberg_rest_token="local-token"),
    ):
        assert lake.spark_session(CONFIG) == ({}, None)


def test_catalog_public_form_needs_secrets_of_the_job(
    stated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated("ICEBERG_REST", **OAUTH, HEADERS='{"Polaris-Realm": "R"}')
    login = catalog()
    public = login.public()
    assert SECRET not in str(public)
    assert CatalogLogin.from_public(public).model_dump() == login.model_dump()
    monkeypatch.delenv("TOPICBERG_ICEBERG_REST_OAUTH__CLIENT_SECRET")
    with pytest.raises(TopicbergError, match="TOPICBERG_ICEBERG_REST_OAUTH__CLIENT_SECRET"):
        CatalogLogin.from_public(public)
    monkeypatch.delenv("TOPICBERG_ICEBERG_REST_HEADERS")
    with pytest.raises(TopicbergError, match="_HEADERS lacks Polaris-Realm"):
        CatalogLogin.from_public(public)


@pytest.mark.parametrize(
    ("given", "auth", "protocol"),
    [
        ({}, "plain", "SASL_SSL"),
        ({"AUTH": "scram_256"}, "scram_256", "SASL_SSL"),
        ({"SECURITY_PROTOCOL": "PLAINTEXT"}, "none", "PLAINTEXT"),
        ({"SECURITY_PROTOCOL": "SSL"}, "none", "SSL"),
        ({"AUTH": "none"}, "none", "PLAINTEXT"),
        (OAUTH, "oidc", "SASL_SSL"),
        ({"AUTH": "msk_iam"}, "msk_iam", "SASL_SSL"),
    ],
)
def test_kafka_kind_follows_from_settings(
    stated: Any, given: Any, auth: str, protocol: str
) -> None:
    stated("KAFKA", **given)
    assert (kafka().auth, kafka().security_protocol) == (auth, protocol)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"AUTH": "oidc"}, "requires TOPICBERG_KAFKA_OAUTH__CLIENT_ID"),
        ({"OAUTH__CLIENT_SECRET": SECRET}, "requires TOPICBERG_KAFKA_OAUTH__CLIENT_ID"),
        ({"KEY_FILE": __file__}, "requires TOPICBERG_KAFKA_CERTIFICATE_FILE"),
        ({"AUTH": "mtls"}, "requires TOPICBERG_KAFKA_CERTIFICATE_FILE"),
        ({"AUTH": "scram", "SECURITY_PROTOCOL": "SSL"}, "does not fit"),
        ({"CA_FILE": "/nowhere.pem"}, "TOPICBERG_KAFKA_CA_FILE: there is no file /nowhere.pem"),
        ({"AUTH": "gssapi"}, "TOPICBERG_KAFKA_AUTH: Input should be"),
    ],
)
def test_kafka_wrong_settings_are_named(stated: Any, given: Any, reason: str) -> None:
    stated("KAFKA", **given)
    with pytest.raises(TopicbergError) as wrong:
        kafka()
    assert reason in wrong.value.message


def test_kafka_scram() -> None:
    assert KafkaLogin(auth="scram", api_key='a"b', api_secret="c\\d").librdkafka() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": 'a"b',
        "sasl.password": "c\\d",
    }


def test_kafka_oidc() -> None:
    given: Any = {name.removeprefix("OAUTH__").lower(): value for name, value in OAUTH.items()}
    login = KafkaLogin(oauth={**given, "scope": "kafka"}, extensions={"logicalCluster": "lkc-1"})
    found = login.librdkafka()
    assert found["sasl.oauthbearer.token.endpoint.url"] == OAUTH["OAUTH__TOKEN_URI"]
    assert found["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1"
    assert SECRET not in repr(login)


def test_kafka_msk_without_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", None)
    login = KafkaLogin(auth="msk_iam").in_region("eu-west-1")
    with pytest.raises(LoginError, match="aws-msk-iam-sasl-signer-python"):
        login.librdkafka()


def test_kafka_msk_token_is_shared_for_half_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client asks again after four fifths of the time that its token had left."""
    clock, made = Clock(monkeypatch, 1_000.0), list[str]()

    def generate(*given: str) -> tuple[str, int]:
        made.append(" ".join((*given, str(len(made)))))
        return made[-1], clock.now_ms + 900_000

    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", generate)
    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token_from_role_arn", generate)
    role = "arn:aws:iam::123456789012:role/reader"
    own, of_role = (
        KafkaLogin(auth="msk_iam", role_arn=arn).in_region("r").librdkafka()["oauth_cb"]
        for arn in (None, role)
    )
    assert own("") == own("") == ("r 0", 1_900)
    assert of_role("") == (f"r {role} 1", 1_900)
    clock.now += 449
    assert pickle.loads(pickle.dumps(own))("") == ("r 0", 1_900)
    clock.now += 1
    assert own("") == ("r 2", 2_350)


def test_kafka_msk_token_is_one_for_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS's library signs it here, without a request; the client would send it to the broker."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    login = KafkaLogin(auth="msk_iam").in_region("eu-west-1").librdkafka()
    broker = {"bootstrap.servers": "127.0.0.1:1", "group.id": "reader", "log_level": 0}
    with fetcher(broker | login, "orders", {0: (0, 1)}) as reader:
        assert isinstance(reader, fetch._CompiledFetcher)
    token, until = login["oauth_cb"]("")
    assert 800 < until - time.time() <= 900
    url = base64.urlsafe_b64decode(token + "==").decode()
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert SECRET not in url


def test_kafka_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text("-----BEGIN NOTHING-----")
    login = KafkaLogin(
        auth="mtls",
        ca_file=tmp_path / "ca",
        certificate_file=tmp_path / "certificate",
        key_file=tmp_path / "key",
    )
    with pytest.raises(LoginError) as wrong:
        login.librdkafka()
    assert "TOPICBERG_KAFKA_KEY_FILE" in str(wrong.value.hint)


def test_kafka_options_survive_the_runtime_file() -> None:
    assert Endpoints.model_validate(
        Endpoints(
            kafka_bootstrap="broker:9092",
            schema_registry="https://sr",
            iceberg_rest="https://rest",
            spark_connect="",
            snowflake=SnowflakeEndpoint(account="a", user="u"),
        ).model_dump()
    ).kafka_config() == {"bootstrap.servers": "broker:9092", "security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("given", "auth"),
    [
        ({}, None),
        ({"AUTH": "none"}, "none"),
        ({"API_KEY": "k", "API_SECRET": SECRET}, "basic"),
        ({"TOKEN": SECRET}, "bearer"),
        (OAUTH, "oauth2"),
    ],
)
def test_registry_kind_follows_from_settings(stated: Any, given: Any, auth: str | None) -> None:
    stated("SCHEMA_REGISTRY", **given)
    assert registry().auth == auth
    assert SECRET not in repr(registry())


def test_registry_wrong_settings_are_named(stated: Any) -> None:
    stated("SCHEMA_REGISTRY", AUTH="mtls")
    with pytest.raises(TopicbergError, match="requires TOPICBERG_SCHEMA_REGISTRY_CERTIFICATE_FI"):
        registry()


def test_registry_bearer_sends_the_token() -> None:
    login = RegistryLogin(auth="bearer", token=SECRET, extensions={"logicalCluster": "lsrc-1"})
    fields = login.client()["bearer.auth.custom.provider.function"]({})
    assert fields == {"bearer.auth.token": SECRET, "bearer.auth.logical.cluster": "lsrc-1"}
