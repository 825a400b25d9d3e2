"""Whether a service answers that does not speak HTTP/1.1; see :mod:`topicberg.clients.liveness`."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from topicberg.clients.liveness import SECONDS, Check, reason

_API_VERSIONS = struct.pack(">hhih", 18, 0, 0, -1)
"""Kafka's ApiVersions request, version 0, without a client id: admitted before the login."""
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""RFC 9113, 3.4: what a client begins with, and an empty SETTINGS frame."""
_SETTINGS_FRAME = 4


def answers_kafka(host: str, port: int) -> Check:
    """Return a check of a Kafka broker."""
    return _exchange(host, port, struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS, 8, None)


def answers_http2(host: str, port: int) -> Check:
    """Return a check of a server of HTTP/2, such as one of gRPC: it answers with its settings."""
    return _exchange(host, port, _HTTP2_PREFACE, 9, (3, _SETTINGS_FRAME))


def _exchange(
    host: str, port: int, request: bytes, size: int, expected_byte: tuple[int, int] | None
) -> Check:
    """:param size: bytes of the answer that are read
    :param expected_byte: place and value of a byte of it
    """

    def check(seconds: float) -> str | None:
        deadline, response = time.monotonic() + seconds, b""
        try:
            with socket.create_connection((host, port), timeout=seconds) as connection:
                connection.sendall(request)
                while len(response) < size:
                    connection.settimeout(max(0.001, deadline - time.monotonic()))
                    if not (more := connection.recv(size - len(response))):
                        return "it closed the connection"
                    response += more
        except OSError as error:
            return reason(error, seconds)
        if expected_byte is not None and response[expected_byte[0]] != expected_byte[1]:
            return "the answer is not of its protocol"
        return None

    return check


def unanswered(checks: Mapping[str, Check], seconds: float = SECONDS) -> dict[str, str]:
    """Return name → why it does not answer, of those that do not; all are asked at once."""
    if not checks:
        return {}
    with ThreadPoolExecutor(len(checks)) as pool:
        results = pool.map(lambda check: check(seconds), checks.values())
        return {name: why for name, why in zip(checks, results, strict=True) if why is not None}
