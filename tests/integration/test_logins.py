"""The whole path where everything asks for a login: Kafka by OIDC, SCRAM or mTLS; registry and
Iceberg catalog by OAuth, with keys that the catalog gives out; while tokens expire.

Needs: `no.nav.security:mock-oauth2-server`, downloaded once (30 MB). Kafka, the registry, Iceberg's
catalog and Spark are those of the local stack, with another listener or a proxy before them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import boto3
import dagster as dg
import psutil
import pyarrow as pa
import pytest
import requests
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from confluent_kafka.schema_registry.error import SchemaRegistryError
from found_topics import AVRO_TOPIC
from gateways import Gateway, catalog_gateway, registry_gateway
from httpx2 import HTTPError
from kafka_topics import ORDER, Topic
from moto.server import ThreadedMotoServer
from pydantic import SecretStr
from pyiceberg.exceptions import NoSuchTableError
from real_servers import PASSWORD, USER, Broker, OAuthServer, kafka_broker, nessie, oauth_server

from topicberg.clients.catalog import ensure_namespace
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.errors import TopicbergError
from topicberg.kafka import topics as kafka
from topicberg.kafka.fetch import fetcher
from topicberg.kafka.records import FetchError, Records
from topicberg.logins.catalog import CatalogLogin
from topicberg.logins.oauth import OAuthSettings
from topicberg.orchestration.resources import Spark
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.spark import new_session, quote
from topicberg.tableflow.decode.plan import CONSUMER
from topicberg.tableflow.service import control
from topicberg.tableflow.service.engine import Ingestor
from topicberg.testing import spark_session
from topicberg_local import stack as local_stack

pytestmark = pytest.mark.integration


REALM = {"Polaris-Realm": "topicberg"}


@dataclass
class Site:
    """A company's servers, all with logins."""

    stack: Endpoints
    oauth: OAuthServer
    broker: Broker
    catalog: Gateway
    registry: Gateway
    spark: str | None = None
    """Another Spark than the stack's."""
    s3: str | None = None
    """The same for the object store."""

    @property
    def base(self) -> dict[str, str]:
        """Settings without the login to Kafka."""
        client = {"client_id": "engine", "client_secret": "engine-client-secret"}
        client["token_uri"] = self.oauth.token_uri
        return {
            "DEPLOYMENT": "cloud",
            "TABLEFLOW": "topicberg",
            "CLUSTER_ID": "company",
            "SCHEMA_REGISTRY_URL": self.registry.url,
            **{f"SCHEMA_REGISTRY_OAUTH__{n.upper()}": value for n, value in client.items()},
            "ICEBERG_REST_URI": self.catalog.url,
            **{f"ICEBERG_REST_OAUTH__{n.upper()}": value for n, value in client.items()},
            "ICEBERG_REST_HEADERS": '{"Polaris-Realm": "topicberg"}',
            "ICEBERG_REST_DELEGATION": "vended-credentials",
            "SPARK_REMOTE": self.spark or self.stack.spark_connect,
            "S3_ENDPOINT": self.s3 or self.stack.s3 or "",
            "SNOWFLAKE_ACCOUNT": "a",
            "SNOWFLAKE_USER": "u",
            "SNOWFLAKE_PASSWORD": "p",
        }

    def kafka(self, kind: str) -> dict[str, str]:
        """Settings of one of the broker's logins."""
        signed = self.broker.certificates
        return {
            "oidc": {
                "KAFKA_BOOTSTRAP": self.broker.oidc,
                "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "KAFKA_OAUTH__CLIENT_ID": "engine",
                "KAFKA_OAUTH__CLIENT_SECRET": "engine-client-secret",
                "KAFKA_OAUTH__TOKEN_URI": self.oauth.token_uri,
                "KAFKA_OAUTH__SCOPE": "kafka",
            },
            "scram": {
                "KAFKA_BOOTSTRAP": self.broker.scram,
                "KAFKA_AUTH": "scram",
                "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "KAFKA_API_KEY": USER,
                "KAFKA_API_SECRET": PASSWORD,
            },
            "mtls": {
                "KAFKA_BOOTSTRAP": self.broker.mtls,
                "KAFKA_AUTH": "mtls",
                "KAFKA_CA_FILE": str(signed.authority),
                "KAFKA_CERTIFICATE_FILE": str(signed.client),
                "KAFKA_KEY_FILE": str(signed.client_key),
            },
        }[kind]


SECONDS = 8
"""How long tokens and keys are valid."""


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, stack: Endpoints, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Its parameter is how long tokens and keys are valid."""
    folder, seconds = tmp_path_factory.mktemp("company"), getattr(request, "param", SECONDS)
    with (
        oauth_server(folder / "oauth", seconds) as oauth,
        kafka_broker(folder / "kafka", oauth) as broker,
        catalog_gateway(stack, oauth, seconds, REALM) as catalog,
        registry_gateway(stack, oauth) as registry,
    ):
        yield Site(stack, oauth, broker, catalog, registry)


@pytest.fixture
def connect(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Endpoints]]:
    """``connect(kind, **changes)``: a deployment at the site, without a key of the object store."""
    (tmp_path / "topics").mkdir(parents=True)  # no topic but ours
    state, bucket = tmp_path / "state", settings().bucket
    stated: set[str] = set()

    def load(kind: str, **changes: str) -> Endpoints:
        given = {**site.base, **site.kafka(kind), **changes}
        given |= {"PROJECT_ROOT": str(tmp_path), "STATE_DIR": str(state), "BUCKET": bucket}
        for name in stated - given.keys():
            monkeypatch.delenv(f"TOPICBERG_{name}")
        for name, value in given.items():
            monkeypatch.setenv(f"TOPICBERG_{name}", value)
        stated.clear()
        stated.update(given)
        settings.cache_clear()
        return load_endpoints()

    yield load
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def topic(site: Site, connect: Callable[..., Endpoints]) -> Iterator[Callable[..., Topic]]:
    """``topic(kind)``: a topic of the site that its Kafka login ``kind`` reads."""
    made: list[Topic] = []

    def make(kind: str) -> Topic:
        endpoints, name = connect(kind), f"orders_{uuid.uuid4().hex[:8]}"
        admin = endpoints.kafka_admin()
        admin.create_topics([NewTopic(name, 2)])[name].result(30)
        control.enable(settings(), name, {"commit_interval_seconds": 1}, discovered=AVRO_TOPIC)
        made.append(Topic(endpoints, control.find_topic(settings(), name), settings()))
        return made[-1]

    yield make
    catalog = site.stack.catalog()
    for each in made:
        with suppress(NoSuchTableError):  # the test failed before
            catalog.purge_table(each.spec.table_identifier(each.config))


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def counts(topic: Topic) -> dict[str, int]:
    """The rows that each reader finds."""
    namespace, table = topic.spec.table_identifier(topic.config)
    with spark_session() as spark:
        by_spark = spark.table(quote("lake", namespace, table)).count()
    by_duckdb = run_query(f'SELECT count(*) FROM "{table}"').scalar()
    return {"pyiceberg": len(topic.rows("id")), "spark": by_spark, "duckdb": by_duckdb}


def send(topic: Topic, first: int) -> None:
    topic.send(ORDER, [{"id": first + n, "note": "a"} for n in range(10)])


def test_login_by_python_reads_by_compiled_code(
    site: Site, topic: Callable[..., Topic], caplog: pytest.LogCaptureFixture
) -> None:
    """The reader waits for records until its first token has expired, which the broker refuses."""
    one, given = topic("oidc"), [0.0]

    def token(_: str) -> tuple[str, float, str, dict[str, str]]:
        client = {"grant_type": "client_credentials", "client_id": "a", "client_secret": "b"}
        answer = requests.post(site.oauth.token_uri, client, timeout=60).json()
        given.append(time.time() + answer["expires_in"])
        return answer["access_token"], given[-1], "", {}

    known = one.endpoints.kafka_config()
    config = CONSUMER | {k: v for k, v in known.items() if "oauthbearer" not in k}
    config["oauth_cb"] = token
    producer, ranges = Producer(known), {0: (0, 20)}

    def produce() -> None:
        for _ in range(10):
            producer.produce(one.spec.name, b"value", partition=0)
        producer.flush(30)

    produce()
    more = Timer(SECONDS * 2, produce)
    more.start()
    with fetcher(config, one.spec.name, ranges) as reader:
        read = sum(records.count for records in reader.fill(Records(100, 10_000)))
    more.join()
    assert read == 20
    assert len(given) > 2, "it has renewed the token"
    assert "Python client" not in caplog.text

    def refused(_: str) -> tuple[str, float]:
        raise ConnectionError("the token service does not answer")

    for wrong, reason in (
        (refused, "there is no token for Kafka: the token service does not answer"),
        (lambda _: ("a", 1.0), "librdkafka does not accept the token"),
    ):
        with pytest.raises(FetchError, match=reason):
            fetcher({**config, "oauth_cb": wrong}, one.spec.name, ranges)


def test_path_through_expiring_tokens_is_complete(site: Site, topic: Callable[..., Topic]) -> None:
    """One engine with one Spark session, for three lives of a token."""
    one = topic("oidc")
    engine, began, sent = Ingestor(one.spec, one.endpoints, one.config), time.monotonic(), 0
    try:
        while sent < 3 or time.monotonic() - began < 3 * SECONDS:
            send(one, 10 * sent)
            assert engine.step().records == 10
            sent += 1
            time.sleep(max(0.0, began + sent * SECONDS * 0.75 - time.monotonic()))
        assert counts(one) == dict.fromkeys(("pyiceberg", "spark", "duckdb"), 10 * sent)
    finally:
        engine.close()
    derived = f"{one.spec.name}_derived"
    with dg.build_resources({"spark": Spark()}) as resources:
        orders = resources.spark.spark_session.table(quote("lake", "company", one.spec.name))
        orders.writeTo(quote("lake", "company", derived)).create()
    catalog = one.endpoints.catalog(one.config)
    assert catalog.load_table(("company", derived)).scan().to_arrow().num_rows == 10 * sent
    catalog.drop_table(("company", derived))
    assert len(site.catalog.tokens) > 3
    assert len(site.registry.tokens) > 1
    assert {"PyIceberg", "Apache-HttpClient"} & set(site.catalog.vended)
    assert len(site.catalog.vended) >= 3, site.catalog.vended


@pytest.mark.slow
@pytest.mark.parametrize("site", [60], indirect=True)
def test_path_with_kills_loses_and_repeats_nothing(site: Site, topic: Callable[..., Topic]) -> None:
    """Four minutes with tokens of one, while the services behind the logins are killed."""
    pids = {service.name: service.pid for service in local_stack.status(settings())}
    one = topic("oidc")
    engine = Ingestor(one.spec, one.endpoints, one.config)
    victims = ("iceberg_rest", "spark", "schema_registry", "s3")
    began, sent, killed = time.monotonic(), 0, 0
    try:
        while time.monotonic() - began < 240:
            with suppress(TopicbergError, SchemaRegistryError, HTTPError):
                send(one, 10 * sent)
                sent += 1
            if killed < len(victims) and time.monotonic() - began > 45 * (killed + 1):
                psutil.Process(pids[victims[killed]]).kill()
                killed += 1
            try:
                engine.step()
            except TopicbergError:
                engine.close()
            time.sleep(1)
        while engine.step().records:
            pass
    finally:
        engine.close()
    end = sum(kafka.end_offsets(one.endpoints, one.spec.name).values())
    assert counts(one) == dict.fromkeys(("pyiceberg", "spark", "duckdb"), end)
    assert end == 10 * sent
    assert len({row["id"] for row in one.rows("id")}) == 10 * sent
    assert len(site.catalog.tokens) >= 4


@pytest.mark.parametrize("kind", ["scram", "mtls"])
def test_engine_reads_a_broker_with_login(topic: Callable[..., Topic], kind: str) -> None:
    one = topic(kind)
    send(one, 0)
    assert one.ingest() == 10
    assert len(one.rows("id")) == 10


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"ICEBERG_REST_OAUTH__CLIENT_ID": "reader"}, "the catalog refuses to write", "_OAUTH"),
        ({"ICEBERG_REST_HEADERS": "{}"}, "unknown realm", "_HEADERS"),
        slow({"ICEBERG_REST_OAUTH__TOKEN_URI": "http://127.0.0.1:9/t"}, "not answer", "_TOKEN_URI"),
        slow({"ICEBERG_REST_AUTH": "token", "ICEBERG_REST_TOKEN": "a.b"}, "refuses", "_TOKEN"),
        slow(
            {"SCHEMA_REGISTRY_OAUTH__TOKEN_URI": "http://127.0.0.1:9/t"}, "does not", "_TOKEN_URI"
        ),
        slow({"SCHEMA_REGISTRY_AUTH": "none"}, "the schema registry refuses", "_OAUTH"),
    ],
)
def test_refusal_names_server_and_setting(
    connect: Callable[..., Endpoints],
    topic: Callable[..., Topic],
    changes: dict[str, Any],
    said: str,
    hint: str,
) -> None:
    one = topic("scram")
    send(one, 0)
    with pytest.raises(TopicbergError) as refused:
        Topic(connect("scram", **changes), one.spec, one.config).ingest()
    assert said in refused.value.message
    assert hint in str(refused.value.hint)
    assert "engine-client-secret" not in str(refused.value)
    one.endpoints = connect("scram")
    assert one.ingest() == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes", "said", "hint"),
    [
        ("scram", {"KAFKA_API_SECRET": "not-the-secret"}, "invalid credentials", "_API_SECRET"),
        (
            "oidc",
            {"KAFKA_OAUTH__TOKEN_URI": "http://127.0.0.1:9/t"},
            "127.0.0.1:9/t does not",
            "_TOKEN_URI",
        ),
    ],
)
def test_kafka_refusal_names_the_setting(
    connect: Callable[..., Endpoints],
    impatient_kafka: None,
    kind: str,
    changes: dict[str, str],
    said: str,
    hint: str,
) -> None:
    endpoints = connect(kind, **changes)
    with pytest.raises(TopicbergError) as refused:
        kafka.topic_id(endpoints, "orders")
    assert said in refused.value.message
    assert f"TOPICBERG_KAFKA{hint}" in str(refused.value.hint)
    assert "not-the-secret" not in str(refused.value)


@pytest.fixture(scope="module")
def nessie_lake(
    stack: Endpoints, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OAuthServer, str]]:
    """Nessie with OAuth, and keys of moto's STS for a bucket of moto's S3."""
    folder, bucket = tmp_path_factory.mktemp("nessie"), "lake"
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    url = f"http://127.0.0.1:{moto.get_host_and_port()[1]}"
    keys = boto3.Session("a", "b", region_name="us-east-1")
    keys.client("s3", endpoint_url=url).create_bucket(Bucket=bucket)
    try:
        with (
            oauth_server(folder / "oauth", SECONDS) as oauth,
            nessie(folder / "nessie", oauth, url, f"s3://{bucket}/") as address,
        ):
            yield oauth, address
    finally:
        moto.stop()


def nessie_login(oauth: OAuthServer, **more: Any) -> CatalogLogin:
    return CatalogLogin(
        oauth=OAuthSettings(
            client_id="engine",
            client_secret=SecretStr("engine-client-secret"),
            token_uri=oauth.token_uri,
        ),
        warehouse="warehouse",
        delegation="vended-credentials",
        **more,
    )


@pytest.mark.slow
def test_nessie_with_vended_keys_serves_each_client(
    stack: Endpoints, nessie_lake: tuple[OAuthServer, str]
) -> None:
    """Needs `org.projectnessie.nessie:nessie-quarkus` (245 MB). No client has a key of its own."""
    oauth, address = nessie_lake
    endpoints = stack.model_copy(
        update={
            "iceberg_rest": address,
            "iceberg_rest_token": None,
            "iceberg_login": nessie_login(oauth, scope="profile"),
            "s3": None,
            "s3_access_key": None,
            "s3_secret_key": None,
        }
    )
    config = settings().model_copy(update={"cluster_id": "company"})
    catalog = endpoints.catalog(config)
    ensure_namespace(catalog, "company")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    table = catalog.create_table(("company", "orders"), rows.schema)
    table.append(rows)
    session = new_session(stack.spark_connect, endpoints.spark_session(config)[0])
    try:
        for written in range(2):
            session.sql("INSERT INTO lake.company.orders VALUES (3)")
            assert session.table("lake.company.orders").count() == 3 + written
            found = run_query("SELECT count(*) FROM orders", "duckdb", endpoints, config)
            assert found.scalar() == 3 + written
            assert table.refresh().scan().to_arrow().num_rows == 3 + written
            time.sleep(SECONDS + 2)
    finally:
        session.stop()


@pytest.mark.slow
def test_nessie_is_refused_by_the_engine(
    stack: Endpoints, nessie_lake: tuple[OAuthServer, str], make_topic: Callable[..., Topic]
) -> None:
    oauth, address = nessie_lake
    topic = make_topic()
    send(topic, 0)
    login = nessie_login(oauth)
    changes = {"iceberg_rest": address, "iceberg_rest_token": None, "iceberg_login": login}
    elsewhere = stack.model_copy(update=changes)
    with pytest.raises(TopicbergError, match="the catalog is Nessie"):
        Topic(elsewhere, topic.spec, topic.config).ingest()
