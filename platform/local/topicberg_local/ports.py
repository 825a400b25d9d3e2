"""Ports of the services: fixed by the settings, else those of the last start, else free ones."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from contextlib import suppress

import psutil

from topicberg.errors import StackError

NAMES = (
    "kafka",
    "kafka_own",
    "kafka_proxied",
    "kafka_keys",
    "kafka_controller",
    "schema_registry",
    "schema_registry_server",
    "schema_registry_management",
    "s3",
    "iceberg_rest",
    "spark",
    "aws",
    "snowflake",
    "confluent",
    "confluent_kafka",
    "tableflow",
    "supervisor",
)
RANGE = range(20_000, 32_000)
"""Below the ports that the kernel assigns to outgoing connections: one of those could occupy a
service's port while the service restarts."""


def choose(fixed: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return a port for every name: that of ``before`` if it is free; raises StackError."""
    if unknown := set(fixed) - set(NAMES):
        raise StackError(
            f"TOPICBERG_PORTS names {sorted(unknown)[0]!r}, which has no port",
            hint=f"use one of {', '.join(NAMES)}",
        )
    chosen: dict[str, int] = {}
    for name, port in fixed.items():
        if port in chosen.values():
            raise StackError(f"TOPICBERG_PORTS gives port {port} to {name} and to another service")
        if not is_free(port):
            raise StackError(
                f"port {port} for {name} is taken{_holder(port)}",
                hint=f"stop that process, or give {name} another port in TOPICBERG_PORTS",
            )
        chosen[name] = port
    for name in (name for name in NAMES if name not in chosen):
        old = before.get(name, 0)
        stays = old in RANGE and old not in chosen.values() and is_free(old)
        chosen[name] = old if stays else _free_port({*chosen.values(), *before.values()})
    return {name: chosen[name] for name in NAMES}


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
        return True


def listens(port: int) -> bool:
    """Return whether something accepts connections on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _free_port(taken: set[int]) -> int:
    for port in random.sample(RANGE, len(RANGE)):
        if port not in taken and is_free(port):
            return port
    raise StackError(f"no port from {RANGE.start} to {RANGE.stop - 1} is free on 127.0.0.1")


def _holder(port: int) -> str:
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            local = connection.laddr
            if local and local.port == port and connection.status == psutil.CONN_LISTEN:
                process = psutil.Process(connection.pid) if connection.pid else None
                return f" by {process.name()} (pid {process.pid})" if process else ""
    return " by another user's process"
