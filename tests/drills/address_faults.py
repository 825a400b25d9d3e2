"""Wrong addresses, certificates and logins: each alerted with the server, the cause and the fix.

They are written where the engine and Dagster read how services are reached; see :mod:`fault_site`,
which drills them.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from fault_site import TABLE, End, Fault, Site, kill
from real_servers import certificates

from topicberg.errors.connections import SERVICES

Changes = Mapping[str, Any]
"""Path of a field of the endpoints, with dots → its value."""


def wrong(changes: Callable[[Site], Changes], *, engine: bool = True) -> Callable[[Site], End]:
    """Change how services are reached, for what starts from now on.

    :param engine: let the engine start again
    """

    def begin(site: Site) -> End:
        addresses = site.addresses
        kept = addresses.text
        document = json.loads(kept)
        for name, value in changes(site).items():
            *outer, last = name.split(".")
            place = document["endpoints"]
            for part in outer:
                place = place[part]
            place[last] = value
        addresses.write(json.dumps(document))
        if engine:
            kill("tableflow")

        def end() -> None:
            addresses.write(kept)
            if engine:
                kill("tableflow")

        return end

    return begin


def fixed(**changes: Any) -> Callable[[Site], Changes]:
    return lambda _: {name.replace("__", "."): value for name, value in changes.items()}


@contextmanager
def tls_server(certificate: Path) -> Iterator[int]:
    """A server whose certificate is all that clients get of it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.settimeout(5)
                with suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def behind_tls(
    changes: Callable[[int, str], Changes], age: timedelta = timedelta()
) -> Callable[[Site], End]:
    """Let a service be at a server with a certificate of its own.

    :param changes: gets the port, and the file of the authority that signed the certificate
    :param age: the certificate is valid for a day
    """

    def begin(site: Site) -> End:
        files = certificates(site.folder / f"certificates-{age.days}", age)
        server = tls_server(files.broker)
        port = server.__enter__()
        end = wrong(lambda _: changes(port, str(files.authority)))(site)

        def end_both() -> None:
            end()
            server.__exit__(None, None, None)

        return end_both

    return begin


DAYS = timedelta(days=3)
UNRESOLVED = r"the host name {}\.invalid does not resolve"
UNTRUSTED = r"the certificate of .* is not trusted: this machine does not know who signed it"
EXPIRED = r"the certificate of 127\.0\.0\.1:\d+ has expired"


def unresolved(service: str, name: str, **changes: Any) -> Fault:
    return Fault(
        f"the host name of {service} does not resolve",
        wrong(fixed(**changes)),
        f"service {SERVICES[service].key}",
        f"{service} cannot be reached.*{UNRESOLVED.format(name)}",
        "name resolution",
        TABLE,
    )


FAULTS = (
    unresolved("the schema registry", "registry", schema_registry="http://registry.invalid:8081"),
    unresolved("Iceberg's catalog", "catalog", iceberg_rest="http://catalog.invalid:8181"),
    unresolved("the object store", "store", s3="http://store.invalid:9000"),
    unresolved("Kafka", "kafka", kafka_own__bootstrap="kafka.invalid:9092"),
    Fault(
        "the host name of Snowflake does not resolve",
        wrong(fixed(snowflake__host="snowflake.invalid"), engine=False),
        "service snowflake",
        f"Snowflake cannot be reached.*{UNRESOLVED.format('snowflake')}",
        "name resolution",
    ),
    Fault(
        "Kafka refuses the password",
        wrong(fixed(kafka_own__login__api_secret="wrong-password")),
        "service kafka",
        "the login to Kafka at .* failed.*Invalid username or password",
        "TOPICBERG_KAFKA_API_SECRET",
        TABLE,
    ),
    Fault(
        "the certificate of Kafka has expired",
        behind_tls(
            lambda port, authority: {
                "kafka_own.bootstrap": f"127.0.0.1:{port}",
                "kafka_own.login.security_protocol": "SASL_SSL",
                "kafka_own.login.ca_file": authority,
            },
            DAYS,
        ),
        "service kafka",
        f"Kafka cannot be reached.*{EXPIRED}",
        "renew the certificate",
        TABLE,
    ),
    Fault(
        "the certificate of the registry has expired",
        behind_tls(
            lambda port, authority: {
                "schema_registry": f"https://127.0.0.1:{port}",
                "registry_login.ca_file": authority,
            },
            DAYS,
        ),
        "service schema_registry",
        f"the schema registry cannot be reached.*{EXPIRED}",
        "renew the certificate",
        TABLE,
    ),
    Fault(
        "the certificate of the catalog is of an unknown authority",
        behind_tls(lambda port, _: {"iceberg_rest": f"https://127.0.0.1:{port}"}),
        "service iceberg_rest",
        f"Iceberg's catalog cannot be reached: {UNTRUSTED}",
        "REQUESTS_CA_BUNDLE",
        TABLE,
    ),
    Fault(
        "the certificate of the object store is of an unknown authority",
        behind_tls(lambda port, _: {"s3": f"https://127.0.0.1:{port}"}),
        "service s3",
        f"the object store cannot be reached: {UNTRUSTED}",
        "SSL_CERT_FILE",
        TABLE,
    ),
    Fault(
        "Snowflake refuses the password",
        wrong(fixed(snowflake__password="wrong-password"), engine=False),
        "service snowflake",
        "Snowflake refuses the login",
        "TOPICBERG_SNOWFLAKE_USER",
    ),
    Fault(
        "AWS refuses the key",
        wrong(fixed(aws_secret_key="wrong-secret"), engine=False),
        "service aws",
        "AWS refuses the login",
        "get-caller-identity",
    ),
)
