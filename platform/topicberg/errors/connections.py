"""Servers that are not found, or whose certificate is not accepted: which one, why, and the fix.

The clients' texts leave out the host, call it a time-out or a wrong login, or hide it in a line of
internals. Neither a retry nor a restart of the server resolves such a failure.

Sources: OpenSSL, "verify" (X509_V_ERR_…); libcurl, error codes 6 and 60; Java's JSSE; librdkafka,
``_RESOLVE`` and ``_SSL``; gRPC, "Name Resolution".
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from topicberg import errors
from topicberg.errors import CertificateError, NotFoundError, TopicbergError, causes

PROBE_SECONDS = 3.0  # The deadline of a connection that asks for a server's certificate.


@dataclass(frozen=True)
class _Settings:
    """What users set to reach a service."""

    key: str
    """Its name in the local stack, and in the keys of alerts."""
    address: str
    authority: str
    """Who signed its certificate."""


_PYTHON_CA = "REQUESTS_CA_BUNDLE"
SERVICES = {
    "Kafka": _Settings("kafka", "TOPICBERG_KAFKA_BOOTSTRAP", "TOPICBERG_KAFKA_CA_FILE"),
    "the schema registry": _Settings(
        "schema_registry", "TOPICBERG_SCHEMA_REGISTRY_URL", "TOPICBERG_SCHEMA_REGISTRY_CA_FILE"
    ),
    "Iceberg's catalog": _Settings("iceberg_rest", "TOPICBERG_ICEBERG_REST_URI", _PYTHON_CA),
    "the object store": _Settings("s3", "TOPICBERG_S3_ENDPOINT", "SSL_CERT_FILE and AWS_CA_BUNDLE"),
    "AWS": _Settings("aws", "TOPICBERG_AWS_REGION", "AWS_CA_BUNDLE"),
    "Snowflake": _Settings("snowflake", "TOPICBERG_SNOWFLAKE_ACCOUNT", _PYTHON_CA),
    "Spark": _Settings("spark", "TOPICBERG_SPARK_REMOTE", "SSL_CERT_FILE"),
}  # What messages call a service → what users set.
_OTHER = _Settings("", "the address", "the certificates of this machine (SSL_CERT_FILE)")

_UNRESOLVED = re.compile(
    r"Failed to resolve '([^':]+)|Could not resolve host(?:name)?: ([\w.-]+)|"
    r"UnknownHostException: (?:unknown host )?([\w.-]+)|DNS resolution failed for ([\w.-]+)"
)  # Of urllib3 and librdkafka, curl, Java, and gRPC.
_UNRESOLVED_BY_SYSTEM = re.compile(
    r"Name or service not known|Temporary failure in name resolution|nodename nor servname|"
    r"getaddrinfo failed|No address associated with hostname|Name does not resolve"
)  # What the C library says, without the name.
_HOST = re.compile(r"host='([^']+)'(?:, port=(\d+))?")
_URL = re.compile(r"https?://(?:[^\s'\"]*@)?([^\s'\"/?#@]+)")
"""A password may contain a slash, so the last ``@`` is the end of the login."""
_OF_CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|certificate verify result|"
    r"OpenSSL verify result|SSL peer certificate|PKIX|CertificateExpired|CertificateError|"
    r"certificate subject name|hostname '[^']*' doesn't match|certificate has expired",
    re.IGNORECASE,
)
_UNTRUSTED = "the certificate of {server} is not trusted: this machine does not know who signed it"
_UNTRUSTED_HINT = (
    "set {authority} to a PEM file that has the certificate of its authority; check also that "
    "{address} is the server that you mean"
)
_CERTIFICATES = (
    (
        r"certificate has expired|certificate expired|NotAfter|CertificateExpired",
        "the certificate of {server} has expired",
        "renew the certificate of the server; if it is valid, correct the clock of this machine",
    ),
    (
        r"not yet valid|NotBefore|CertificateNotYetValid",
        "the certificate of {server} is not valid yet",
        "correct the clock of this machine, or that of who issued the certificate",
    ),
    (
        r"mismatch|doesn't match|not valid for|certificate subject name|subject alternative",
        "the certificate of {server} is of another host name",
        "use a host name of the certificate in {address}, or renew it with the name of the server",
    ),
    (
        r"self.signed certificate[\w ]*|unable to get (?:local )?issuer certificate|"
        r"signature failure|PKIX path[\w ]*|unable to verify the first certificate",
        f"{_UNTRUSTED} ({{match}})",
        _UNTRUSTED_HINT,
    ),
    ("", _UNTRUSTED, _UNTRUSTED_HINT),
)  # What the text of a certificate's error has, the reason, and the hint; the last one: of any.
_TLS = (
    (
        r"wrong.version.number|packet length too long|record layer failure|"
        r"Unsupported or unrecognized SSL message",
        "{server} does not use TLS, which its address asks for",
        "correct {address}, or the port in it",
    ),
    (
        r"(?=.*(?:SSL|TLS)).*(?:alert (?:certificate|bad certificate|unknown ca|handshake failure)|"
        r"(?:certificate|unknown_ca|unknown ca|bad_certificate)[\w ]*alert|Received fatal alert: "
        r"(?:certificate_|bad_certificate|unknown_ca|handshake_failure))",
        "{server} refuses the certificate of this client: {line}",
        "check that the client's certificate has not expired, and that the server trusts who "
        "signed it",
    ),
)  # The same of other errors of TLS.


def connection_error(
    service: str,
    error: BaseException | str,
    *,
    where: str = "",
    address: str = "",
    authority: Path | None = None,
    asks: bool = True,
) -> TopicbergError | None:
    """Return the error of a server that is not found or not trusted; None: it is another failure.

    :param service: what messages call it
    :param error: what its client raised, or its text
    :param where: for what it was asked
    :param address: of the server, where the client's error does not name it
    :param authority: certificates (PEM) of who may have signed that of the server; None: those of
        the system
    :param asks: whether the server is asked for its certificate, for seconds, if the text does not
        say what is wrong with it
    """
    chain = [*causes(error)] if isinstance(error, BaseException) else []
    if any(isinstance(each, NotFoundError | CertificateError) for each in chain):
        return None  # it says so itself
    text = "\n".join(map(str, chain)) or str(error)
    stated = SERVICES.get(service, _OTHER)
    subject = f"{service} cannot be reached{f' ({where})' if where else ''}"
    if (host := _unresolved(text, chain, address)) is not None:
        hint = (
            "run `topicberg up`, which writes the addresses of the services again; if the name is "
            "right, correct the name resolution (DNS) of this machine"
            if errors.is_local()
            else f"correct the host name in {stated.address}, or the name resolution (DNS) of this "
            "machine"
        )
        return NotFoundError(f"{subject}: the host name {host} does not resolve", hint=hint)
    server = _server(text, chain) or address or service
    rows = _CERTIFICATES if _OF_CERTIFICATE.search(text) else _TLS
    is_clear = rows is _TLS or any(re.search(row[0], text, re.IGNORECASE) for row in rows[:-1])
    if asks and not is_clear:
        text = _certificate_text(server, authority) or text
    for pattern, reason, hint in rows:
        if match := re.search(pattern, text, re.IGNORECASE):
            names = {"server": server, "address": stated.address, "authority": stated.authority}
            names |= {"match": match[0].strip(), "line": line_around(match, 40, 120)}
            return CertificateError(
                f"{subject}: {reason.format(**names)}", hint=hint.format(**names)
            )
    return None


def line_around(match: re.Match[str], before: int, most: int) -> str:
    """Return the words around a match, on its line: so many characters before it, and in all."""
    begin = match.string.rfind("\n", 0, match.start()) + 1
    line = match.string[begin:].partition("\n")[0].strip(": ")
    begin = max(0, line.find(match[0].partition("\n")[0].strip()) - before)
    return f"{'… ' if begin else ''}{line[begin : begin + most].strip()}"


def _certificate_text(server: str, authority: Path | None) -> str | None:
    """Return why the certificate of a server is not accepted, for clients that do not say so; None:
    it is, or no answer came."""
    try:
        parts = urlsplit(f"//{server}")
        host, port = str(parts.hostname), parts.port or 443
        context = ssl.create_default_context(cafile=authority)
        with (
            socket.create_connection((host, port), PROBE_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return str(error)
    except (OSError, ValueError):
        return None


def _unresolved(text: str, chain: list[BaseException], address: str) -> str | None:
    if match := _UNRESOLVED.search(text):
        return match[match.lastindex or 0]
    is_of_system = any(isinstance(each, socket.gaierror) for each in chain)
    if not is_of_system and not _UNRESOLVED_BY_SYSTEM.search(text):
        return None
    return urlsplit(f"//{_server(text, chain) or address}").hostname or "of the server"


def _server(text: str, chain: list[BaseException]) -> str | None:
    """Return host and port of the server that a client's errors name."""
    if match := next(filter(None, map(_URL.match, _urls(chain))), None):
        return match[1]
    if match := _HOST.search(text):
        return f"{match[1]}:{match[2]}" if match[2] else match[1]
    return match[1] if (match := _URL.search(text)) else None


def _urls(chain: list[BaseException]) -> Iterator[str]:
    """Yield the addresses that the errors of httpx, requests and botocore hold."""
    for each in chain:
        with suppress(RuntimeError):  # httpx's, of an error without a request
            if (url := getattr(getattr(each, "request", None), "url", None)) is not None:
                yield str(url)
        kwargs: Any = getattr(each, "kwargs", None)
        if isinstance(kwargs, dict) and kwargs.get("endpoint_url"):
            yield str(kwargs["endpoint_url"])
