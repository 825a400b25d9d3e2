"""The stock trades where every login lasts a minute, while services are killed.

A company's OAuth server, its Kafka by OIDC, its registry and its Iceberg catalog by OAuth, which
gives out keys of the object store for a minute. The engine, Spark and Dagster's process have no
other key than the OAuth client's: AWS's and Snowflake's come from the role of the container.

Two minutes by default; TOPICBERG_TEST_LOGIN_MINUTES=20 for the long drill.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from company import REALM, Site
from confluent_kafka import Producer
from gateways import catalog_gateway, registry_gateway, serving, store_gateway
from project_copy import add_code
from real_servers import TOKEN_SECONDS, Java, kafka_broker, keyless_spark, oauth_server
from repository import PROJECT_ROOT
from rich.console import Console
from waiting import wait_until

from topicberg.catalogs.snowflake.names import QUERY_ROLE, SnowflakeNames
from topicberg.catalogs.snowflake.statements import bootstrap, bootstrap_linked
from topicberg.clients import rsa
from topicberg.datagen import record_generator
from topicberg.endpoints import Endpoints, load_endpoints
from topicberg.kafka import topics as kafka
from topicberg.naming import Names
from topicberg.orchestration.assets import Lake, find_derived, lake_assets, lake_checks
from topicberg.orchestration.jobs.catalogs import catalog_sensor
from topicberg.orchestration.jobs.maintenance import check_job
from topicberg.orchestration.jobs.pipelines import pipeline_jobs
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.orchestration.resources import RESOURCES, Snowflake
from topicberg.query import run_query
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.wait import wait_for
from topicberg.topics import TopicSpec, load_topic
from topicberg_local import stack as local_stack
from topicberg_local.datagen.producer import avro_encoder

MINUTES = float(os.environ.get("TOPICBERG_TEST_LOGIN_MINUTES", 2))
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(int(MINUTES * 60 + 1200)),
]

TOPIC, PREFIX = "stock_trades", "company"
DERIVED = tuple(
    table
    for table in find_derived()
    if table.name in ("stock_trades_with_totals", "stock_total_trades")
)
RATE = 100
OF_STACK = ("iceberg_rest", "s3", "schema_registry", "aws", "snowflake")
SECONDS_BETWEEN_KILLS = (15, 35)


@contextmanager
def container_role(stack: Endpoints) -> Iterator[str]:
    """Yield the address where a container finds the keys of its role, as in ECS and EKS."""
    sts = stack.boto3("sts")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            role = "arn:aws:iam::123456789012:role/company"
            found = sts.assume_role(RoleArn=role, RoleSessionName="company", DurationSeconds=900)
            keys = found["Credentials"]
            body = {
                "AccessKeyId": keys["AccessKeyId"],
                "SecretAccessKey": keys["SecretAccessKey"],
                "Token": keys["SessionToken"],
                "Expiration": keys["Expiration"].isoformat(),
            }
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with serving(Handler) as url:
        yield url


class Trades(threading.Thread):
    """Produces trades until it is stopped."""

    def __init__(self, spec: TopicSpec, endpoints: Endpoints) -> None:
        super().__init__(daemon=True)
        path = spec.schema_path("value")
        assert path is not None
        ensured = kafka.ensure_topic(spec, endpoints, settings())
        self._encode = avro_encoder(path.read_text(), ensured.value_schema_id or 0)
        self._topic, self._over = spec.name, threading.Event()
        config = {"enable.idempotence": True, "message.timeout.ms": 600_000}
        self._producer = Producer({**endpoints.kafka_config(writes=True), **config})
        self.delivered, self.failed = 0, 0

    def run(self) -> None:
        generated = record_generator("stock_trades")(random.Random(1), RATE)
        while not self._over.wait(1 / RATE):
            record = next(generated)
            key = str(record["symbol"]).encode()
            with suppress(BufferError):
                self._producer.produce(
                    self._topic, self._encode(record), key, on_delivery=self._done
                )
            self._producer.poll(0)

    def _done(self, error: Any, _: object) -> None:
        self.delivered += error is None
        self.failed += error is not None

    def close(self) -> None:
        """Returns when the broker has acknowledged everything."""
        self._over.set()
        self.join()
        assert self._producer.flush(120) == 0
        assert self.failed == 0


@dataclass
class Engine:
    """``topicberg tableflow serve``, started again when it was killed."""

    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(Path(sys.executable).with_name("topicberg")), "tableflow", "serve"]
        with (settings().state_dir / "engine.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


class Killer(threading.Thread):
    """Kills services at random, and starts those again that no supervisor does."""

    def __init__(self, own: dict[str, Java | Engine], stack_config: Settings) -> None:
        super().__init__(daemon=True)
        self._own, self._config, self._over = own, stack_config, threading.Event()
        self.killed: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        rng = random.Random(11)
        names = [*self._own, *OF_STACK]
        order: list[str] = []
        while not self._over.wait(rng.uniform(*SECONDS_BETWEEN_KILLS)):
            order = order or rng.sample(names, len(names))
            name = order.pop()
            try:
                self.kill(name)
            except BaseException as error:
                self.failure = error
                return
            self.killed[name] += 1

    def kill(self, name: str) -> None:
        if process := self._own.get(name):
            process.kill()
            time.sleep(2)
            process.start()
            return
        running = {s.name: s.pid for s in local_stack.status(self._config) if s.running}
        if pid := running.get(name):
            psutil.Process(pid).kill()

    def close(self) -> None:
        self._over.set()
        self.join()
        if self.failure:
            raise self.failure


class Daemon:
    """Dagster's sensors and launcher, in this process."""

    def __init__(self, instance: dg.DagsterInstance, lake: Lake) -> None:
        self.instance, self.cursors = instance, dict[str, str | None]()
        self.failed: list[str] = []
        self.unread: list[str] = []
        self.runs = 0
        self.defs = dg.Definitions(
            assets=list(lake_assets(lake)),
            asset_checks=list(lake_checks(lake)),
            jobs=[*pipeline_jobs(lake), check_job(lake)],
            sensors=[snapshot_sensor(lake), catalog_sensor(lake)],
            resources=RESOURCES,
            executor=dg.in_process_executor,
        )

    def tick(self) -> int:
        """The number of runs that the sensors requested; each one has ended."""
        repository, requested = self.defs.get_repository_def(), 0
        for sensor in repository.sensor_defs:
            context = dg.build_sensor_context(
                instance=self.instance,
                cursor=self.cursors.get(sensor.name),
                repository_def=repository,
                resources={"topicberg_lakehouse": RESOURCES["topicberg_lakehouse"]},
            )
            try:
                tick = sensor.evaluate_tick(context)
            except Exception as error:  # Dagster's daemon reports it, and evaluates the next tick
                self.unread.append(f"{sensor.name}: {error}")
                continue
            self.cursors[sensor.name] = tick.cursor or self.cursors.get(sensor.name)
            for event in tick.asset_events:
                self.instance.report_runless_asset_event(event)
            for wanted in tick.run_requests or ():
                requested += 1
                self.launch(wanted, str(wanted.job_name or sensor.job_name))
        return requested

    def launch(self, wanted: dg.RunRequest, job: str) -> None:
        ran = (
            self.defs.get_repository_def()
            .get_job(job)
            .execute_in_process(
                instance=self.instance,
                asset_selection=list(wanted.asset_selection or ()) or None,
                tags={**wanted.tags, "dagster/run_key": str(wanted.run_key)},
                raise_on_error=False,
            )
        )
        self.runs += 1
        if not ran.success:
            self.failed.append(ran.run_id)

    def check(self) -> dict[str, str]:
        """``asset:check`` → what it says, of those that do not pass; or that came to no verdict."""
        job = self.defs.resolve_job_def("check_tables")
        ran = job.execute_in_process(instance=self.instance, raise_on_error=False)
        found = ran.get_asset_check_evaluations()
        failing = {
            f"{one.asset_key.to_user_string()}:{one.check_name}": str(one.description)
            for one in found
            if not one.passed
        }
        if not ran.success or not found:
            failing["check_tables"] = str(
                [event.message for event in ran.all_events if event.is_failure]
            )
        return failing


def in_snowflake(stack: Endpoints, config: Settings) -> None:
    """What ``topicberg deploy`` makes in Snowflake and in Secrets Manager."""
    pair, names = rsa.generate(), Names(config.prefix)
    role, called = config.snowflake_name(QUERY_ROLE), SnowflakeNames.of(config)
    with Snowflake().connection() as connection:
        for statement in (
            *bootstrap(config),
            *bootstrap_linked(config),
            f"CREATE USER COMPANY TYPE = SERVICE DEFAULT_ROLE = ACCOUNTADMIN DEFAULT_WAREHOUSE = "
            f"COMPUTE_WH RSA_PUBLIC_KEY = '{pair.public}'",
            "GRANT ROLE ACCOUNTADMIN TO USER COMPANY",
            f"CREATE ROLE {role}",
            f"GRANT ROLE {role} TO USER COMPANY",
            f"GRANT USAGE ON WAREHOUSE COMPUTE_WH TO ROLE {role}",
            f"GRANT USAGE ON DATABASE {called.database} TO ROLE {role}",
            f"GRANT USAGE ON SCHEMA {called.database}.{called.schema} TO ROLE {role}",
        ):
            connection.cursor().execute(statement)
    secret = rsa.with_pair({}, 1, pair) | {
        "snowflake_account_identifier": stack.snowflake.account,
        "snowflake_service_user": "COMPANY",
    }
    stack.boto3("secretsmanager").create_secret(
        Name=names.snowflake_secret, SecretString=json.dumps(secret)
    )


def long_lived(stack: Endpoints) -> set[str]:
    """Every key of the stack that does not expire."""
    own = stack.kafka_own
    found = (
        *(stack.s3_secret_key, stack.aws_secret_key, own and own.login.api_secret),
        *(stack.iceberg_rest_token, stack.snowflake.password),
    )
    return {each.get_secret_value() for each in found if each}


@pytest.fixture
def site(stack: Endpoints, tmp_path: Path) -> Iterator[tuple[Site, Java]]:
    with (
        oauth_server(tmp_path / "oauth", TOKEN_SECONDS) as oauth,
        kafka_broker(tmp_path / "kafka", oauth) as broker,
        store_gateway(stack) as store,
        catalog_gateway(stack, oauth, TOKEN_SECONDS, REALM, store) as catalog,
        registry_gateway(stack, oauth) as registry,
        keyless_spark(tmp_path / "spark", settings().state_dir) as (address, spark),
    ):
        yield Site(stack, oauth, broker, catalog, registry, address, store.url), spark


@pytest.fixture
def deployment(
    site: tuple[Site, Java], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[], Settings]]:
    """topicberg in the cloud deployment at the site; the fixture's value: the stack's settings."""
    own, stack, before = site[0], site[0].stack, settings()
    for folder in ("topics", "schemas"):
        (tmp_path / "platform" / folder).mkdir(parents=True)
    shutil.copy(PROJECT_ROOT / "platform/topics/stock_trades.yaml", tmp_path / "platform/topics")
    shutil.copy(PROJECT_ROOT / "platform/schemas/stock_trades.avsc", tmp_path / "platform/schemas")
    add_code(tmp_path)
    (tmp_path / "state").mkdir()
    config = before.model_copy(update={"prefix": PREFIX, "cluster_id": "company"})
    in_snowflake(stack, config.model_copy(update={"snowflake_linked_database": True}))
    snowflake_at = stack.snowflake
    with container_role(stack) as keys:
        given = {**own.base, **own.kafka("oidc")}
        for name in ("ACCOUNT", "USER", "PASSWORD"):
            del given[f"SNOWFLAKE_{name}"]
        given |= {
            "PREFIX": PREFIX,
            "PROJECT_ROOT": str(tmp_path),
            "STATE_DIR": str(tmp_path / "state"),
            "BUCKET": before.bucket,
            "DERIVED_BUCKET": before.derived_bucket,
            "SNOWFLAKE_URL": f"{snowflake_at.protocol}://{snowflake_at.host}:{snowflake_at.port}",
        }
        for name, value in given.items():
            monkeypatch.setenv(f"TOPICBERG_{name}", value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", str(stack.aws))
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", keys)
        settings.cache_clear()
        yield lambda: before
        monkeypatch.undo()
        settings.cache_clear()


def test_company_with_logins_of_a_minute(
    site: tuple[Site, Java], deployment: Callable[[], Settings]
) -> None:
    own, spark = site
    endpoints, config, spec = load_endpoints(), settings(), load_topic(TOPIC)
    lake, engine = Lake(config, (spec,), DERIVED), Engine()
    trades = Trades(spec, endpoints)
    trades.start()
    engine.start()
    services: dict[str, Java | Engine] = {"engine": engine, "spark": spark}
    services |= {"broker": own.broker.process, "oauth": own.oauth.process}  # type: ignore[dict-item]
    killer = Killer(services, deployment())
    try:
        with dg.instance_for_test() as instance:
            daemon = Daemon(instance, lake)
            wait_until(lambda: endpoints.catalog(config).table_exists(("company", TOPIC)), 120)
            keys = long_lived(own.stack)
            for pid in (engine.pid, spark.pid, os.getpid()):
                environment = psutil.Process(pid).environ() if pid != os.getpid() else os.environ
                assert not {name for name, value in environment.items() if value in keys}
                assert "AWS_SECRET_ACCESS_KEY" not in environment
            killer.start()
            until = time.monotonic() + MINUTES * 60
            while time.monotonic() < until:
                daemon.tick()
                time.sleep(2)
            killer.close()
            trades.close()
            local_stack.up(deployment())
            table = endpoints.catalog(config).load_table(("company", TOPIC))
            ends = kafka.end_offsets(endpoints, TOPIC)
            assert wait_for(table, ends, 240), killer.killed
            quiet = 0
            while quiet < 3:  # a request in progress, or a retry
                quiet = quiet + 1 if not daemon.tick() else 0
                time.sleep(2)
            failing = daemon.check()
    finally:
        killer._over.set()
        engine.stop()
    Console(width=300).print(
        f"{trades.delivered} trades, {daemon.runs} runs ({len(daemon.failed)} failed), "
        f"{len(daemon.unread)} failed ticks, "
        f"kills {dict(killer.killed)}, {len(own.catalog.tokens)} tokens of the catalog, "
        f"keys {dict(own.catalog.vended)}, refused {dict(own.catalog.refused)}"
    )
    assert failing == {}
    total = sum(ends.values())
    assert total == trades.delivered
    distinct = 'count(*), count(DISTINCT ("$$partition", "$$offset"))'
    assert run_query(f"SELECT {distinct} FROM {TOPIC}", "duckdb").rows == [(total, total)]
    for name in ("stock_trades_with_totals",):
        for reader in ("duckdb", "spark", "snowflake"):
            assert run_query(f"SELECT count(*) FROM {name}", reader).scalar() == total
    assert len(own.catalog.tokens) >= MINUTES
