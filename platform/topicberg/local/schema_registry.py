"""Apicurio Registry behind its Confluent-compatible API, with its schemas in an H2 file."""

from __future__ import annotations

import tarfile

import requests

from topicberg.endpoints import Endpoints
from topicberg.local import jars
from topicberg.local.service import Context, Service, java, jvm, shared_archive

API = "/apis/ccompat/v7"


def service(context: Context) -> Service:
    folder = context.folder("schema_registry")
    (archive,) = jars.class_path("schema_registry")
    home = jars.cache_dir() / "apicurio" / archive.name.removesuffix(".tar.gz")

    def unpack() -> None:
        if (home / "quarkus-run.jar").exists():
            return
        temporary = home.with_name(f".{home.name}.{context.ports['schema_registry']}")
        with tarfile.open(archive) as tar:
            tar.extractall(temporary, filter="data")
        (runner,) = temporary.rglob("quarkus-run.jar")
        home.parent.mkdir(parents=True, exist_ok=True)
        runner.parent.rename(home)

    options = [*jvm("192m"), *shared_archive("schema_registry"), "-XX:MaxMetaspaceSize=192m"]
    return Service(
        name="schema_registry",
        command=java(folder, options, ["-jar", str(home / "quarkus-run.jar")], []),
        environment={
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(context.ports["schema_registry"]),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": str(context.ports["schema_registry_management"]),
            "QUARKUS_LOG_LEVEL": "WARN",
            "QUARKUS_BANNER_ENABLED": "false",
            "APICURIO_STORAGE_KIND": "sql",
            "APICURIO_STORAGE_SQL_KIND": "h2",
            "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{folder / 'registry'}",
            # Confluent's default; Apicurio's own is NONE.
            "APICURIO_RULES_GLOBAL_COMPATIBILITY": "BACKWARD",
        },
        url=context.url("schema_registry") + API,
        port=context.ports["schema_registry"],
        start_order=10,
        prepare=unpack,
        healthy=_healthy,
    )


def _healthy(endpoints: Endpoints) -> None:
    requests.get(f"{endpoints.schema_registry}/subjects", timeout=2).raise_for_status()
