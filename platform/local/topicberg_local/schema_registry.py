"""Apicurio Registry behind its Confluent-compatible API, with its schemas in an H2 file.

It asks for a token, which the access proxy adds.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import requests
from filelock import FileLock

from topicberg.clients.liveness import answers_http
from topicberg.endpoints import Endpoints
from topicberg_local import jars, state
from topicberg_local.service import Context, Service, check_owner, java, jvm

API = "/apis/ccompat/v7"
_RUNNER = "quarkus-run.jar"


def service(context: Context) -> Service:
    folder = context.folder("schema_registry")
    (archive,) = jars.class_path("schema_registry")
    home = jars.cache_dir() / "apicurio" / archive.name.removesuffix(".tar.gz")
    database = folder / "registry.mv.db"

    def prepare() -> None:
        if database.exists() and not _is_h2(database):
            raise state.damaged(database, "not an H2 database")
        unpack(archive, home)

    def healthy(_: Endpoints) -> None:
        check_owner("the schema registry", context.ports["schema_registry_server"])
        headers = context.credentials.registry_login.headers()
        url = f"{context.url('schema_registry_server')}{API}/subjects"
        requests.get(url, headers=headers, timeout=2).raise_for_status()

    options = [*jvm("192m"), "-XX:MaxMetaspaceSize=192m"]
    return Service(
        name="schema_registry",
        command=java(context, "schema_registry", options, ["-jar", str(home / _RUNNER)], []),
        environment={
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(context.ports["schema_registry_server"]),
            # Pages of other origins are refused; by default Apicurio allows those of port 8888.
            "QUARKUS_HTTP_CORS_ORIGINS": context.url("schema_registry"),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": str(context.ports["schema_registry_management"]),
            "QUARKUS_LOG_LEVEL": "WARN",
            "QUARKUS_HTTP_ACCESS_LOG_ENABLED": "false",
            "QUARKUS_LOG_CATEGORY__IO_APICURIO__LEVEL": "WARN",
            "QUARKUS_BANNER_ENABLED": "false",
            "APICURIO_STORAGE_KIND": "sql",
            "APICURIO_STORAGE_SQL_KIND": "h2",
            # Otherwise H2 keeps a commit in memory for half a second.
            "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{folder / 'registry'};WRITE_DELAY=0",
            # It creates its tables once, when it starts. By default it gives up after five seconds
            # without a connection, opens twenty, and then answers with errors until a restart.
            "QUARKUS_DATASOURCE_H2_JDBC_ACQUISITION_TIMEOUT": "600",
            "APICURIO_DATASOURCE_JDBC_INITIAL_SIZE": "2",
            "APICURIO_DATASOURCE_JDBC_MIN_SIZE": "2",
            # Confluent's default; Apicurio's is NONE.
            "APICURIO_RULES_GLOBAL_COMPATIBILITY": "BACKWARD",
            # Every request needs a token that is signed with the stack's key.
            "APICURIO_AUTH_ENABLED": "true",
            "QUARKUS_OIDC_TENANT_ENABLED": "true",
            "QUARKUS_OIDC_APPLICATION_TYPE": "service",
            "QUARKUS_OIDC_CLIENT_ID": "topicberg",
            "QUARKUS_OIDC_PUBLIC_KEY": context.credentials.registry_public_key,
        },
        url=context.url("schema_registry") + API,
        port=context.ports["schema_registry_server"],
        start_order=10,
        prepare=prepare,
        healthy=healthy,
        answers=answers_http(f"{context.url('schema_registry_server')}{API}/schemas/types"),
    )


def unpack(archive: Path, home: Path) -> None:
    """Unpack the registry's archive, unless it is; stacks that start at once share the folder."""
    if (home / _RUNNER).exists():
        return
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home.with_name(f".{home.name}.lock")):
        if (home / _RUNNER).exists():
            return
        temporary = home.with_name(f".{home.name}")
        for damaged in (temporary, home):
            shutil.rmtree(damaged, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(temporary, filter="data")
        (runner,) = temporary.rglob(_RUNNER)
        runner.parent.rename(home)
        shutil.rmtree(temporary, ignore_errors=True)


def _is_h2(database: Path) -> bool:
    """Check both copies of H2's header, in the first two blocks of 4 KB; one may be torn."""
    with database.open("rb") as file:
        head = file.read(8192)
    return b"H:2" in (head[:3], head[4096:4099])
