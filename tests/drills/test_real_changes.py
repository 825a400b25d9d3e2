"""A real PostgreSQL and Debezium, random changes, kills: every table equals the source's.

Some minutes by default. ``TOPICBERG_TEST_CHANGES=100000 TOPICBERG_TEST_SOURCE_TABLES=20
TOPICBERG_TEST_KILLS=10`` for the long drill; ``TOPICBERG_TEST_SEED`` for other changes.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest
from confluent_kafka.admin import NewTopic
from connect import AVRO, DEBEZIUM, Worker, avro_converter
from kafka_java import java_config
from pyiceberg.exceptions import NoSuchTableError
from random_database import SCHEMA, Table, Workload, same_rows
from real_servers import free_port
from snowflake.connector import connect
from waiting import wait_until

from topicberg.catalogs import glue
from topicberg.catalogs.snowflake.tables import sync
from topicberg.endpoints import Endpoints
from topicberg.iceberg.commits import upgrade_table
from topicberg.iceberg.files import live_files
from topicberg.iceberg.maintenance import MaintenancePolicy, maintain_table
from topicberg.iceberg.manifests import is_vector, referenced_file
from topicberg.kafka import topics as kafka
from topicberg.kafka.discovery import discover
from topicberg.query import Engine, run_query
from topicberg.settings import Settings, settings
from topicberg.tableflow.service.status import read_status
from topicberg.tableflow.service.wait import noted_offsets
from topicberg.topics import TopicSpec, check_topics, load_topics

CHANGES = int(os.environ.get("TOPICBERG_TEST_CHANGES", 4_000))
TABLES = int(os.environ.get("TOPICBERG_TEST_SOURCE_TABLES", 6))
KILLS = int(os.environ.get("TOPICBERG_TEST_KILLS", 3))
SEED = int(os.environ.get("TOPICBERG_TEST_SEED", 1))
PATIENCE_SECONDS = 900.0
SLOT = "topicberg_drill"
KINDS = ("plain", "vectors", "upgraded")
"""Tables of format version 2, of version 3, and such that become version 3 midway."""
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(7_200)]


REQUIREMENTS = Path(__file__).with_name("postgres.txt")
START_SECONDS = 60.0
_OPTIONS = {
    "wal_level": "logical",
    "fsync": "off",
    "timezone": "UTC",
    "max_wal_senders": "4",
    "max_replication_slots": "4",
    "unix_socket_directories": "",
}


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the connection string of a server; nothing of it is kept. It refuses to run as root: it
    belongs to another user then, who needs a folder outside of the tests' own."""
    with tempfile.TemporaryDirectory(prefix="topicberg-postgres-") as name:
        folder = Path(name)
        _install(folder / "wheel")
        user: dict[str, Any] = {}
        data = folder / "data"
        data.mkdir()
        if os.geteuid() == 0:
            user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            folder.chmod(0o755)
            shutil.chown(data, "nobody")
        programs = folder / "wheel" / "pgserver" / "pginstall" / "bin"
        log = (folder / "log").open("wb")
        options = ["-D", str(data), "-U", "postgres", "--auth", "trust", "--no-sync", "-E", "UTF8"]
        created = subprocess.run(
            [str(programs / "initdb"), *options],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **user,
        )
        assert created.returncode == 0, created.stderr
        port = free_port()
        given = [word for key, value in _OPTIONS.items() for word in ("-c", f"{key}={value}")]
        command = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(
            [*command, *given], cwd="/", stdout=log, stderr=subprocess.STDOUT, **user
        )
        address = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        try:
            deadline = time.monotonic() + START_SECONDS
            while True:
                try:
                    psycopg2.connect(address).close()
                    break
                except psycopg2.OperationalError:
                    ended = server.poll() is not None or time.monotonic() > deadline
                    assert not ended, (folder / "log").read_text(errors="replace")[-3000:]
                    time.sleep(0.1)
            yield address
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            log.close()


def _install(folder: Path) -> None:
    """Unpack the pinned wheel; nothing of it is imported."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable]
    options = ["--target", str(folder), "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


logger = logging.getLogger(__name__)


@pytest.fixture
def config(own_project: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A project of its own, and an engine group of its own."""
    monkeypatch.setenv("TOPICBERG_ENGINE_GROUP", f"drill-{uuid.uuid4().hex[:8]}")
    settings.cache_clear()
    return settings()


class EngineProcess:
    """The engine's service as a process of the test's own."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "engine.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "topicberg.tableflow.service.service"],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        if self._process is not None:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()
            self._process.kill()
            self._process.wait()
            self._process = None


class Drill:
    """The source, its connector, the engine, and the topics between them."""

    def __init__(
        self, stack: Endpoints, config: Settings, address: str, folder: Path, names: list[str]
    ) -> None:
        self.stack, self.config, self.address = stack, config, address
        self.prefix = f"drill{uuid.uuid4().hex[:6]}"
        self.topics = [f"{self.prefix}.{SCHEMA}.{name}" for name in names]
        for kind in KINDS:
            version = "3" if kind == "vectors" else "2"
            (config.topics_dir / f"{kind}.yaml").write_text(
                f'topics: {{match: "{self.prefix}.{SCHEMA}.{kind}*", defaults: {{pipeline: drill, '
                f"table: {{format_version: {version}}}, "
                "tableflow: {commit_interval_seconds: 2}}}\n"
            )
        admin = stack.kafka_admin()
        new = [NewTopic(name, 3) for name in (*self.topics, f"{self.prefix}.{SCHEMA}.marks")]
        for future in admin.create_topics(new).values():
            future.result(30)
        self.created = [one.topic for one in new]
        plugins = {"debezium": DEBEZIUM, "avro": AVRO}
        self.worker = Worker(folder / "connect", java_config(stack), plugins)
        self.engine = EngineProcess(folder)
        self.kills: list[str] = []

    def start_connector(self) -> None:
        self.worker.start("768m")
        known = dict(pair.split("=") for pair in self.address.split())
        self.worker.create(
            "drill",
            {
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "plugin.name": "pgoutput",
                "slot.name": SLOT,
                "publication.autocreate.mode": "filtered",
                "database.hostname": known["host"],
                "database.port": known["port"],
                "database.user": known["user"],
                "database.password": "unused",
                "database.dbname": known["dbname"],
                "topic.prefix": self.prefix,
                "schema.include.list": SCHEMA,
                "skipped.operations": "none",
                "poll.interval.ms": "100",
                "retriable.restart.connector.wait.ms": "1000",
                "slot.retry.delay.ms": "1000",
                **avro_converter("key", self.stack.schema_registry),
                **avro_converter("value", self.stack.schema_registry),
                "key.converter.apicurio.registry.auto-register": "true",
                "value.converter.apicurio.registry.auto-register": "true",
                "key.converter.apicurio.registry.headers.enabled": "false",
                "value.converter.apicurio.registry.headers.enabled": "false",
            },
        )

    def are_found(self) -> bool:
        """Look for the topics; return whether all of them have a spec."""
        discover(self.stack, self.config)
        specs, problems = check_topics(self.config)
        self.worker.check("drill")
        return not problems and len(specs) == len(self.topics)

    def kill(self, what: str) -> None:
        logger.info("kill -9 of %s", what)
        self.kills.append(what)
        if what == "connect":
            self.worker.kill()
            self.start_connector()
        else:
            self.engine.kill()
            self.engine.start()

    def wait_for_connector(self) -> None:
        """Wait until all changes are in Kafka: the slot has moved beyond the last commit."""
        with psycopg2.connect(self.address) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_lsn()")
            ((last,),) = cursor.fetchall()

        def is_behind() -> bool:
            self.worker.check("drill")
            with psycopg2.connect(self.address) as connection, connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {SCHEMA}.marks DEFAULT VALUES")
                connection.commit()
                cursor.execute(
                    "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots "
                    "WHERE slot_name = %s",
                    [last, SLOT],
                )
                return cursor.fetchall() == [(True,)]

        wait_until(is_behind, PATIENCE_SECONDS, 1)

    def specs(self) -> dict[str, TopicSpec]:
        found = {spec.name: spec for spec in load_topics(self.config)}
        return {name: found[name] for name in self.topics}

    def table(self, spec: TopicSpec) -> Any:
        return self.stack.catalog(self.config).load_table(spec.table_identifier(self.config))

    def wait_for_engine(self) -> None:
        """Wait until all tables hold their topics.

        :raises AssertionError: a topic is suspended
        """
        waiting = {
            name: {p: end for p, end in kafka.end_offsets(self.stack, name).items() if end}
            for name in self.topics
        }
        specs = self.specs()

        def done() -> bool:
            for name, ends in list(waiting.items()):
                status = read_status(self.config, name)
                assert not status.suspended, f"{name}: {status.error_message}"
                try:
                    held = noted_offsets(self.table(specs[name])) if ends else {}
                except NoSuchTableError:
                    continue
                if all(held.get(p, 0) >= end for p, end in ends.items()):
                    del waiting[name]
            return not waiting

        wait_until(done, PATIENCE_SECONDS, 2)

    def differences(
        self, table: Table, expected: dict[Any, Any], engines: tuple[Engine, ...]
    ) -> list[str]:
        """Return where readers have other rows than the source."""
        spec = self.specs()[f"{self.prefix}.{SCHEMA}.{table.name}"]
        names = [*table.key, *table.columns]
        found = []
        if "snowflake" in engines:
            at = self.config.cluster_id, spec.glue_name
            glue.register(self.stack.boto3("glue"), self.table(spec), *at)
            account = self.stack.snowflake
            login = account.connector_login()
            address = {"host": account.host, "port": account.port, "protocol": account.protocol}
            with connect(
                account=account.account, user=account.user, **login, **address
            ) as connection:
                sync(connection, self.config, spec.snowflake_name, at, self.table(spec).location())
        for engine in engines:
            quote = "`" if engine == "spark" else '"'
            columns = ", ".join(f"{quote}{name}{quote}" for name in names)
            path = spec.snowflake_name if engine == "snowflake" else f"{quote}{spec.name}{quote}"
            sql = f"SELECT {columns} FROM {path}"
            read = same_rows(table, names, run_query(sql, engine, self.stack, self.config).rows)
            for key in sorted(read.keys() | expected.keys()):
                if read.get(key) != expected.get(key):
                    found.append(_difference(engine, table.name, key, read, expected))
        return found

    def close(self) -> None:
        self.engine.kill()
        self.worker.stop()
        admin = self.stack.kafka_admin()  # its futures end with it
        for future in admin.delete_topics(self.created).values():
            future.result(30)


def _difference(
    engine: str, table: str, key: Any, read: dict[Any, Any], expected: dict[Any, Any]
) -> str:
    where = f"{table} {key} in {engine}"
    if key not in read:
        return f"{where}: missing"
    if key not in expected:
        return f"{where}: not in the source"
    columns = [
        f"{name}: {str(read[key][name])[:90]!r} instead of {str(value)[:90]!r}"
        for name, value in expected[key].items()
        if read[key][name] != value
    ]
    return f"{where}: {'; '.join(columns)}"


def test_real_changes_equal_source_after_kills(
    stack: Endpoints, config: Settings, tmp_path: Path
) -> None:
    names = [f"{KINDS[number % len(KINDS)]}{number:02}" for number in range(TABLES)]
    rng = random.Random(SEED)
    with postgres() as address:
        source = Workload(address, SEED, names)
        with psycopg2.connect(address) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {SCHEMA}.marks (id serial PRIMARY KEY)")
        source.run(len(names) * 20)  # which the connector's snapshot reads
        drill = Drill(stack, config, address, tmp_path, names)
        try:
            began = time.monotonic()
            drill.start_connector()
            start, deadline = source.changes, time.monotonic() + PATIENCE_SECONDS
            while not drill.are_found():  # changes while the connector reads its snapshot
                assert time.monotonic() < deadline, "the connector writes no records"
                source.run(10)
            drill.engine.start()
            steps = sorted(rng.random() for _ in range(KILLS))
            left, is_upgraded = [CHANGES * step for step in steps], False
            while (done := source.changes - start) < CHANGES:
                source.run(min(250, CHANGES - done))
                if not is_upgraded and done > CHANGES / 2:
                    drill.wait_for_connector()
                    for name, spec in drill.specs().items():
                        if KINDS[2] in name:
                            wait_until(partial(_exists, drill, spec), PATIENCE_SECONDS, 1)
                            upgrade_table(drill.table(spec))
                    is_upgraded = True
                while left and left[0] < done:
                    left.pop(0)
                    time.sleep(rng.uniform(0, 10))
                    drill.kill(rng.choice(["connect", "engine"]))
            sent = time.monotonic() - began
            while len(drill.kills) < KILLS:
                drill.kill(rng.choice(["connect", "engine"]))
                time.sleep(rng.uniform(0, 10))
            drill.wait_for_connector()
            logged = time.monotonic() - began
            drill.wait_for_engine()
            held = time.monotonic() - began
            ends = sum(sum(kafka.end_offsets(stack, one).values()) for one in drill.topics)
            logger.info(
                "%d changes as %d records (%s); kills: %s; sent after %.0f s, in Kafka after "
                "%.0f s, in the tables after %.0f s",
                *(source.changes, ends, source.counts, drill.kills, sent, logged, held),
            )
            problems: list[str] = []
            for table in source.tables:
                expected = source.rows(table)
                assert expected.keys() == table.keys
                problems += drill.differences(table, expected, ("duckdb", "spark", "snowflake"))
            assert not problems, "\n".join([f"{len(problems)} rows differ", *problems[:40]])
            drill.engine.kill()
            for table in source.tables:
                spec = drill.specs()[f"{drill.prefix}.{SCHEMA}.{table.name}"]
                vectors = [
                    referenced_file(file)
                    for file in live_files(drill.table(spec))
                    if is_vector(file)
                ]
                assert len(vectors) == len(set(vectors)), "a data file has two deletion vectors"
                maintain_table(drill.table(spec), stack, MaintenancePolicy())
                assert not drill.differences(table, source.rows(table), ("duckdb",))
        finally:
            drill.close()
            source.close()


def _exists(drill: Drill, spec: TopicSpec) -> bool:
    return bool(drill.stack.catalog(drill.config).table_exists(spec.table_identifier(drill.config)))
