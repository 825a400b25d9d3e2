"""The Python services: the access proxy, the emulators and the Tableflow engine."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import requests
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from topicberg.alerts.settings import alert_settings
from topicberg.clients.lineage import lineage_settings
from topicberg.clients.liveness import answers_http
from topicberg.endpoints import Endpoints
from topicberg.extensions import extensions
from topicberg.settings.environment import Concern, EnvironmentSettings, as_text
from topicberg_local.answers import answers_kafka
from topicberg_local.schema_registry import API
from topicberg_local.service import KAFKA_USER, SNOWFLAKE_USER, Context, Service


def aws(context: Context) -> Service:
    """Return the emulator of Glue, IAM, Secrets Manager and the other services of AWS."""
    return Service(
        name="aws",
        command=_module(context, "topicberg_local.emulators.aws", "aws"),
        environment={**_settings(context), **context.aws_environment()},
        url=context.url("aws"),
        port=context.ports["aws"],
        start_order=10,
        healthy=lambda endpoints: endpoints.boto3("sts", context.config).get_caller_identity(),
        answers=answers_http(context.url("aws")),
    )


def snowflake(context: Context) -> Service:
    """Return the emulator of Snowflake's wire protocol; it resolves Iceberg tables through Glue."""
    password = context.credentials.snowflake_password
    return Service(
        name="snowflake",
        command=_module(context, "topicberg_local.emulators.snowflake", "snowflake"),
        environment={
            **_settings(context),
            **context.aws_environment(),
            "TOPICBERG_S3_ENDPOINT": context.url("s3"),
            "TOPICBERG_AWS_ENDPOINT": context.url("aws"),
            "TOPICBERG_SNOWFLAKE_USER": SNOWFLAKE_USER,
            "TOPICBERG_SNOWFLAKE_PASSWORD": password.get_secret_value(),
        },
        url=context.url("snowflake"),
        port=context.ports["snowflake"],
        start_order=20,
        healthy=lambda _: requests.get(context.url("snowflake"), timeout=2),
        answers=answers_http(f"{context.url('snowflake')}/health"),
    )


def confluent(context: Context) -> Service:
    """Return the emulator of Confluent Cloud: control plane, Kafka REST and the registry."""
    secrets = context.credentials
    return Service(
        name="confluent",
        command=_module(context, "topicberg_local.emulators.confluent", "confluent"),
        environment={
            **_settings(context),
            "TOPICBERG_EMULATOR_API_KEY": secrets.confluent_api_key,
            "TOPICBERG_EMULATOR_API_SECRET": secrets.confluent_api_secret.get_secret_value(),
            "TOPICBERG_EMULATOR_ADMIN_TOKEN": secrets.confluent_admin_token.get_secret_value(),
            "TOPICBERG_EMULATOR_KAFKA_PORT": str(context.ports["confluent_kafka"]),
            "TOPICBERG_EMULATOR_KAFKA_LISTENER": str(context.ports["kafka_keys"]),
        },
        url=context.url("confluent"),
        port=context.ports["confluent"],
        start_order=30,
        healthy=lambda endpoints: requests.get(
            f"{endpoints.confluent}/health", timeout=2
        ).raise_for_status(),
        answers=answers_http(f"{context.url('confluent')}/health"),
        stop_seconds=10,
    )


def tableflow(context: Context) -> Service:
    """Return the engine, which waits for the services that it needs."""
    port = context.ports["tableflow"]
    return Service(
        name="tableflow",
        command=[sys.executable, "-m", "topicberg_local.engine", "--metrics-port", str(port)],
        environment={
            **_settings(context),
            **alert_environment(),
            **as_environment(lineage_settings()),
        },
        url=f"{context.url('tableflow')}/metrics",
        port=port,
        start_order=40,
        healthy=lambda _: None,  # it waits for the other services itself
        answers=answers_http(f"{context.url('tableflow')}/health"),
        stop_seconds=10,
    )


def _settings(context: Context) -> dict[str, str]:
    """Return the settings of the process that started the stack, and nothing else."""
    values = context.config.model_dump(exclude={"ports"})
    return {
        "TOPICBERG_ENV_FILE": os.devnull,
        **{
            f"TOPICBERG_{name.upper()}": "" if value is None else as_text(value)
            for name, value in values.items()
        },
        "TOPICBERG_DEPLOYMENT": "local",
    }


def _module(context: Context, module: str, name: str) -> list[str]:
    arguments = ["--host", "127.0.0.1", "--port", str(context.ports[name])]
    return [sys.executable, "-m", module, *arguments, "--state-dir", str(context.folder(name))]


def access_proxy(context: Context) -> Service:
    """Return the process at the addresses of Kafka and the registry for the user's own clients."""
    secrets, port = context.credentials, context.ports
    token = secrets.registry_login.token
    assert token is not None  # noqa: S101  it is a bearer token
    kafka = ("--kafka", port["kafka"], port["kafka_proxied"])
    registry = ("--registry", port["schema_registry"], port["schema_registry_server"])
    arguments = map(str, (*kafka, *registry))
    of_kafka = answers_kafka("127.0.0.1", port["kafka"])
    of_registry = answers_http(f"{context.url('schema_registry')}{API}/schemas/types")
    return Service(
        name="access_proxy",
        command=[sys.executable, "-m", "topicberg_local.access_proxy_server", *arguments],
        environment={
            "TOPICBERG_PROXY_KAFKA_USER": KAFKA_USER,
            "TOPICBERG_PROXY_KAFKA_PASSWORD": secrets.kafka_password.get_secret_value(),
            "TOPICBERG_PROXY_REGISTRY_TOKEN": token.get_secret_value(),
        },
        url=f"127.0.0.1:{port['kafka']}",
        port=port["kafka"],
        start_order=20,
        healthy=_healthy,
        # The service behind a way has to answer as well.
        answers=lambda seconds: of_kafka(seconds / 2) or of_registry(seconds / 2),
        stop_seconds=10,
    )


def _healthy(endpoints: Endpoints) -> None:
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": endpoints.kafka_bootstrap, "log_level": 0})
    client.list_topics(timeout=2)
    requests.get(endpoints.schema_registry + "/subjects", timeout=2).raise_for_status()


def alert_environment() -> dict[str, str]:
    """Return every setting of alerts as variables, those of other packages' channels included."""
    variables = as_environment(alert_settings())
    list(extensions("topicberg.settings"))  # imports them
    for model in EnvironmentSettings.__subclasses__():
        if model.concern == Concern.ALERTS:
            with suppress(ValidationError):  # which the channel reports
                variables |= as_environment(model())
    return variables


def as_environment(chosen: BaseSettings) -> dict[str, str]:
    """Return the settings that are set as variables, secrets included."""
    prefix = chosen.model_config.get("env_prefix") or ""
    return {
        f"{prefix}{name.upper()}": as_text(value)
        for name in chosen.model_fields_set
        if (value := getattr(chosen, name)) is not None
    }
