"""Whether a service answers: one small request in its own protocol, with a deadline.

A process that is stopped (SIGSTOP), or hangs, keeps its port: the kernel accepts connections for
it. Only an answer says that it lives. The requests carry no secret: a refusal to log in is an
answer as well. They cost the service and this process about a millisecond.
"""

from __future__ import annotations

import http.client
import socket
import struct
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

SECONDS = 5.0
"""The deadline of a request."""

Check = Callable[[float], str | None]
"""Gets the deadline in seconds; returns why the service does not answer, or None."""

_API_VERSIONS = struct.pack(">hhih", 18, 0, 0, -1)
"""Kafka's ApiVersions request, version 0, without a client id: admitted before the login."""
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""RFC 9113, 3.4: what a client begins with, and an empty SETTINGS frame."""
_SETTINGS_FRAME = 4


def answers_http(url: str) -> Check:
    """Return a check of a server of HTTP: any response is an answer, except a failure (5xx)."""
    parts = urlsplit(url)
    path = parts.path or "/"

    def check(seconds: float) -> str | None:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read(1000).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return _why(error, seconds)
        finally:
            connection.close()
        if response.status >= 500:
            return f"HTTP status {response.status}: {body.strip()[:300] or response.reason}"
        return None

    return check


def answers_kafka(host: str, port: int) -> Check:
    """Return a check of a Kafka broker."""
    return _exchange(host, port, struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS, 8, None)


def answers_http2(host: str, port: int) -> Check:
    """Return a check of a server of HTTP/2, such as one of gRPC: it answers with its settings."""
    return _exchange(host, port, _HTTP2_PREFACE, 9, (3, _SETTINGS_FRAME))


def _exchange(host: str, port: int, request: bytes, size: int, at: tuple[int, int] | None) -> Check:
    """:param size: bytes of the answer that are read
    :param at: place and value of a byte of it
    """

    def check(seconds: float) -> str | None:
        deadline, answer = time.monotonic() + seconds, b""
        try:
            with socket.create_connection((host, port), timeout=seconds) as connection:
                connection.sendall(request)
                while len(answer) < size:
                    connection.settimeout(max(0.001, deadline - time.monotonic()))
                    if not (more := connection.recv(size - len(answer))):
                        return "it closed the connection"
                    answer += more
        except OSError as error:
            return _why(error, seconds)
        if at is not None and answer[at[0]] != at[1]:
            return "the answer is not of its protocol"
        return None

    return check


def _why(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:.0f} s"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens on its port"
    return str(error) or type(error).__name__


def unanswered(checks: Mapping[str, Check], seconds: float = SECONDS) -> dict[str, str]:
    """Return name → why it does not answer, of those that do not; all are asked at once."""
    if not checks:
        return {}
    with ThreadPoolExecutor(len(checks)) as pool:
        results = pool.map(lambda check: check(seconds), checks.values())
        return {name: why for name, why in zip(checks, results, strict=True) if why is not None}
