"""The Python services: the emulators of AWS, Snowflake and Confluent, and the Tableflow engine."""

from __future__ import annotations

import os
import sys

import requests

from topicberg.alerts.settings import alert_environment
from topicberg.clients.lineage import lineage_settings
from topicberg.clients.liveness import answers_http
from topicberg.settings.environment import as_environment, as_text
from topicberg_local.service import SNOWFLAKE_USER, Context, Service


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
