"""Faults by other means than those of the other drills: of services, of topics, and of Dagster.

See :mod:`fault_site`, which drills them.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from confluent_kafka import TopicPartition
from fault_site import ENGINE, NAME, OTHER, TABLE, TOPIC, End, Fault, Site, kill, refused
from faulty_proxy import Answer
from replaced_logs import continue_table

from topicberg.alerts.dagster_processes import CODE, DAEMON, WEBSERVER
from topicberg.catalogs.snowflake.names import table_path
from topicberg.kafka import topics as kafka
from topicberg.settings import settings
from topicberg.tableflow.service import control
from topicberg.topics import load_topic
from topicberg_local import stack as local_stack
from topicberg_local.datagen import runner as datagen

BLOCKED_SECONDS = 600.0


class CrashLoop(threading.Thread):
    """A service that ends as soon as it serves."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        self._name, self.over = name, threading.Event()

    def run(self) -> None:
        while not self.over.wait(3.0):
            (service,) = (s for s in local_stack.status(settings()) if s.name == self._name)
            if service.running:
                kill(self._name)

    def end(self) -> None:
        self.over.set()
        self.join()


def s3_error(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()


def catalog_error(code: int, kind: str, message: str) -> Answer:
    body = {"error": {"code": code, "type": kind, "message": message}}
    return code, "application/json", json.dumps(body).encode()


COMMITS = r"^POST /v1/namespaces/[^/]+/tables/[^/]+$"


def black_hole(service: str) -> Callable[[Site], End]:
    """It accepts requests and never answers the engine; to others it does."""

    def begin(site: Site) -> End:
        over = threading.Event()

        def silent(_method: str, _path: str) -> None:
            over.wait(BLOCKED_SECONDS)

        proxy = site.proxies[service]
        proxy.answer = silent

        def end() -> None:
            proxy.answer = lambda *_: None
            over.set()

        return end

    return begin


def without_bucket(site: Site) -> End:
    bucket = site.bucket()
    away = bucket.with_name("moved")
    bucket.rename(away)

    def end() -> None:
        shutil.rmtree(bucket, ignore_errors=True)
        away.rename(bucket)

    return end


def without_metadata(site: Site) -> End:
    """Someone deletes the newest metadata file of one table."""
    control.disable(site.config, TOPIC)
    time.sleep(5)
    catalog = site.direct.catalog(site.config)
    table = catalog.load_table(load_topic(TOPIC).table_identifier(site.config))
    path = site.bucket() / urlsplit(table.metadata_location).path.lstrip("/")
    away = path.with_name("moved")
    path.rename(away)
    control.enable(site.config, TOPIC)
    return lambda: away.rename(path)


def crash_loop(name: str) -> Callable[[Site], End]:
    def begin(_site: Site) -> End:
        loop = CrashLoop(name)
        loop.start()
        return loop.end

    return begin


def daemon_killed(site: Site) -> End:
    site.process("dagster._daemon").kill()
    return site.start_ui


def sensor_off(name: str) -> Callable[[Site], End]:
    def begin(site: Site) -> End:
        site.turn_off(name)
        return lambda: site.turn_on(name)

    return begin


def code_broken(site: Site) -> End:
    """Someone saves half a statement, and reloads."""
    file = site.project / "definitions.py"
    text = file.read_text()
    file.write_text(f"{text}\ndefs = (\n")
    site.reload()

    def end() -> None:
        file.write_text(text)
        site.reload()

    return end


def spec_broken(site: Site) -> End:
    file = site.project / "platform/topics/airline.sunset.yaml"
    text = file.read_text()
    file.write_text(text.replace("write_mode: append", "write_mode: apend"))

    def end() -> None:
        file.write_text(text)

    return end


def storage_locked(site: Site) -> End:
    """Another program holds the locks of Dagster's databases, as a backup does."""
    paths = sorted((site.config.state_dir / "dagster").rglob("*.db"))
    connections = [
        sqlite3.connect(path, isolation_level=None, check_same_thread=False) for path in paths
    ]
    for connection in connections:
        connection.execute("PRAGMA busy_timeout=60000")
        connection.execute("BEGIN EXCLUSIVE")

    def end() -> None:
        for connection in connections:
            connection.rollback()
            connection.close()

    return end


def snowflake_table_replaced(site: Site) -> End:
    """Someone puts a view in the place of one table of Snowflake."""
    import snowflake.connector

    account = site.direct.snowflake.model_dump()
    account["password"] = site.direct.snowflake.password.get_secret_value()
    source = (site.config.cluster_id, load_topic(TOPIC).glue_name)
    path = table_path(site.config, NAME.upper(), source).sql

    def run(*statements: str) -> None:
        with snowflake.connector.connect(**account, login_timeout=10) as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    run(f"DROP TABLE {path}", f"CREATE VIEW {path} AS SELECT 1 AS one")
    return lambda: run(f"DROP VIEW {path}")


def go_on(site: Site) -> None:
    """Go on with the log that Kafka has, as the alert says."""
    spec = load_topic(TOPIC)
    kafka.await_topic(site.direct, TOPIC)
    catalog = site.direct.catalog(site.config)
    continue_table(spec, catalog.load_table(spec.table_identifier(site.config)), site.direct)
    control.resume(site.config, TOPIC)


def retention_passed(site: Site) -> End:
    """Kafka deletes records of a topic that was not ingested for a while."""
    control.disable(site.config, TOPIC)
    time.sleep(15)  # records arrive, and no batch is in progress
    admin = site.direct.kafka_admin()
    (future,) = admin.delete_records([TopicPartition(TOPIC, 0, -1)]).values()
    future.result(30)
    control.enable(site.config, TOPIC)
    return lambda: go_on(site)


def topic_deleted(site: Site) -> End:
    datagen.stop(site.config, TOPIC)
    admin = site.direct.kafka_admin()
    admin.delete_topics([TOPIC])[TOPIC].result(30)

    def end() -> None:
        datagen.start(site.config, TOPIC, rate=2)  # it creates the topic
        go_on(site)

    return end


REGISTRY_FAILS = (500, "application/json", b'{"error_code":50001,"message":"store"}')
REGISTRY_REFUSES = (401, "application/json", b'{"error_code":401,"message":"Unauthorized"}')
STORE_REFUSES = (403, "application/xml", s3_error("AccessDenied"))
BUSY = catalog_error(503, "ServiceUnavailableException", "busy")
CONFLICT = catalog_error(409, "CommitFailedException", "branch main has changed")

FAULTS = (
    Fault(
        "the object store refuses the key (403)",
        refused("s3", ".", STORE_REFUSES),
        "service s3",
        "the object store refuses the credentials",
        "access key",
        TABLE,
    ),
    Fault(
        "the registry answers 500 for one subject",
        refused("schema_registry", f"{TOPIC}-value", REGISTRY_FAILS),
        ENGINE,
        f"the schema registry fails .*{TOPIC}-value",
        "logs schema_registry",
        TABLE,
        healthy=(f"check iceberg/{OTHER}:tableflow",),
    ),
    Fault(
        "the registry refuses the login (401)",
        refused("schema_registry", ".", REGISTRY_REFUSES),
        "service schema_registry",
        "the schema registry refuses the login",
        "TOPICBERG_SCHEMA_REGISTRY_URL",
        TABLE,
    ),
    Fault(
        "the catalog answers 503 to commits, and to nothing else",
        refused("iceberg_rest", COMMITS, BUSY),
        "service iceberg_rest",
        "the catalog fails: .*busy",
        "logs iceberg_rest",
        TABLE,
    ),
    Fault(
        "the catalog answers 409 to every commit",
        refused("iceberg_rest", COMMITS, CONFLICT),
        ENGINE,
        "batches in a row met another commit",
        "second engine",
        TABLE,
    ),
    Fault(
        "the way to the catalog swallows requests",
        black_hole("iceberg_rest"),
        "service iceberg_rest",
        "Iceberg's catalog does not answer",
        "Iceberg's catalog",
        TABLE,
    ),
    Fault(
        "the way to the object store swallows requests",
        black_hole("s3"),
        "service s3",
        "the object store does not answer",
        "the object store",
        TABLE,
    ),
    Fault(
        "the way to the registry swallows requests",
        black_hole("schema_registry"),
        "service schema_registry",
        "the schema registry does not answer",
        "the schema registry",
        TABLE,
    ),
    Fault(
        "the bucket is deleted",
        without_bucket,
        ENGINE,
        "the bucket of the table does not exist",
        "restore the bucket",
        TABLE,
    ),
    Fault(
        "the metadata file of one table is deleted",
        without_metadata,
        ENGINE,
        f"table .*{TOPIC}: its metadata file is missing in the object store",
        "restore the file",
        TABLE,
        healthy=(f"check glue/{NAME}:pointer", f"check iceberg/{OTHER}:tableflow"),
    ),
    Fault(
        "the object store ends again and again",
        crash_loop("s3"),
        "service s3",
        "does not stay up: it ends again and again",
        "topicberg logs s3",
    ),
    Fault(
        "the engine ends again and again",
        crash_loop("tableflow"),
        "service tableflow",
        "was started again",
        "topicberg logs tableflow",
    ),
    Fault(
        "Dagster's daemon is killed",
        daemon_killed,
        f"service {WEBSERVER}",
        "the process of `topicberg ui` .* ended",
        "topicberg ui",
    ),
    Fault(
        "someone turns the sensor `snapshots` off",
        sensor_off("snapshots"),
        "silent snapshots",
        "the sensor snapshots was turned off",
        "turn it on",
    ),
    Fault(
        "someone turns the sensor `alerts` off",
        sensor_off("alerts"),
        f"service {CODE}",
        "the sensor alerts is off",
        "turn it on: Automation, alerts",
    ),
    Fault(
        "the code location does not load",
        code_broken,
        f"service {CODE}",
        "does not load: .*never closed",
        "correct the file",
    ),
    Fault(
        "someone saves a wrong spec",
        spec_broken,
        "specs",
        "airline.sunset.*write_mode",
        "topicberg topics validate",
    ),
    Fault(
        "Dagster's databases are locked",
        storage_locked,
        f"service {DAEMON}",
        "it cannot use its database .*: database is locked",
        "fuser",
    ),
    Fault(
        "a view is in the place of one table of Snowflake",
        snowflake_table_replaced,
        "run register_tables",
        f"Snowflake cannot create the Iceberg table .*{NAME.upper()}: another object has this name",
        "drop or rename the object",
        (),
        (f"check iceberg/{NAME}:tableflow",),
    ),
    Fault(
        "Kafka deletes records before they are ingested",
        retention_passed,
        ENGINE,
        "deleted|retention",
        ".",
        TABLE,
    ),
    Fault("the topic is deleted", topic_deleted, ENGINE, "does not exist|deleted", ".", TABLE),
)
