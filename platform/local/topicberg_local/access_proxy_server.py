"""The process of the access proxy: it admits one user of the machine, without a login.

Kafka and the registry ask every client for a login. This process has both logins. It accepts
connections at the addresses that clients know, checks which user a connection belongs to
(:mod:`topicberg_local.peers`), and connects it. So a client of the stack's user, or of root,
needs an address only, and no other user of the machine is served.

- Kafka: the proxy logs in for the connection, then passes bytes in both directions.
- Schema registry: the proxy checks each request (:mod:`topicberg.security.guard`), so that a web
  page is not served either, and adds the token.

topicberg's own clients log in by themselves and do not use the proxy for Kafka, so it costs no
throughput. Where the operating system does not report users (macOS), every user is admitted.

Sources: Apache Kafka, protocol guide, "SASL Authentication Sequence"; RFC 4616 (PLAIN).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import closing, suppress
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from topicberg.security.guard import PROTECTION, Guard, Request
from topicberg_local import peers

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
CHUNK = 256 * 1024
"""Bytes that are passed on at once, and that are held for a slow receiver."""
LOGIN_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 30.0, 60.0, 5.0
OWNER_SECONDS = 1.0
REPORT_SECONDS = 60.0
"""The same problem is logged once in this time."""
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = (17, 1), (36, 0)
"""API keys and versions."""
_OF_CONNECTION = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "content-length", "expect", "authorization"}
)
"""Headers that are not passed on: RFC 9110, 7.6.1, and those that the proxy handles."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[socket.socket], Awaitable[object]]
LogIn = Callable[[Streams, Streams], Awaitable[bool]]


class Reports:
    """Warnings, each of them once a minute."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def warn(self, subject: str, reason: object) -> None:
        now = time.monotonic()
        if now - self._last.get(subject, -REPORT_SECONDS) >= REPORT_SECONDS:
            self._last[subject] = now
            logger.warning("%s: %s", subject, reason)


async def accept(listener: socket.socket, serve: Serve, reports: Reports) -> None:
    """Accept connections, and serve those of this user, until the task is cancelled."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as connections:
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError as error:  # the process has too many open files
                reports.warn("a connection cannot be accepted", error)
                await asyncio.sleep(0.5)
                continue
            if _is_admitted(client):
                connections.create_task(_served(client, serve))
            else:
                reports.warn("refused a process of another user", f"its port is {address[1]}")
                client.close()


def _is_admitted(client: socket.socket) -> bool:
    with suppress(OSError):  # the client has disconnected
        return not peers.is_supported() or peers.is_own_socket(client)
    return False


async def _served(client: socket.socket, serve: Serve) -> None:
    try:
        client.setblocking(False)
        await serve(client)
    except OSError as error:
        logger.debug("a connection ended: %s", error)


def kafka_proxy(port: int, user: str, password: str, reports: Reports) -> Serve:
    """Return what connects a client with a listener of the broker, and logs in (SASL PLAIN)."""

    async def log_in(_: Streams, broker: Streams) -> bool:
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                await sasl_handshake(broker, b"PLAIN")
                await sasl_authenticate(broker, f"\0{user}\0{password}".encode())
        except (OSError, EOFError, struct.error) as error:
            reports.warn("Kafka refuses the proxy", str(error) or "time-out")
            return False
        return True

    return lambda client: connect(client, port, log_in, reports)


async def connect(client: socket.socket, port: int, log_in: LogIn, reports: Reports) -> None:
    """Connect a client with the broker until one side closes, if ``log_in`` returns true."""
    reader, writer = await asyncio.open_connection(sock=client, limit=CHUNK)
    with closing(writer):
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                broker = await asyncio.open_connection(HOST, port, limit=CHUNK)
        except OSError as error:  # a timeout is an OSError, too
            reports.warn("Kafka cannot be reached", str(error) or "time-out")
            return
        with closing(broker[1]):
            if await log_in((reader, writer), broker):
                await _relay((reader, writer), broker)


async def _relay(client: Streams, broker: Streams) -> None:
    """Pass on bytes in both directions until one side closes its connection."""
    await first_of(_copy(client[0], broker[1]), _copy(broker[0], client[1]))


async def first_of(*ways: Coroutine[Any, Any, object]) -> list[Any]:
    """Run until one of these ends, and cancel the others; return the results, and exceptions."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return results


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()


async def sasl_handshake(broker: Streams, mechanism: bytes) -> None:
    """Choose a mechanism, and check that the broker is this user's; raises OSError or EOFError."""
    await _call(broker, _SASL_HANDSHAKE, struct.pack(">h", len(mechanism)) + mechanism)
    # Only now: a connection that the other side has not accepted yet belongs to no user.
    ends = (broker[1].get_extra_info(end) for end in ("peername", "sockname"))
    if peers.is_supported() and not peers.is_own(*ends):
        raise ConnectionRefusedError("another user's process has its port")


async def sasl_authenticate(broker: Streams, token: bytes) -> bytes:
    """Send a message of the mechanism, and return the broker's; raises OSError or EOFError."""
    body = struct.pack(">i", len(token)) + token
    response = await _call(broker, _SASL_AUTHENTICATE, body)
    (size,) = struct.unpack_from(">h", response)  # of the error message: null
    rest = response[2 + max(size, 0) :]
    (size,) = struct.unpack_from(">i", rest)
    return rest[4 : 4 + size]


async def _call(broker: Streams, api: tuple[int, int], body: bytes) -> bytes:
    """Send a request without a client id; return the response after its error code, which is 0."""
    reader, writer = broker
    request = struct.pack(">hhih", *api, 0, -1) + body
    writer.write(struct.pack(">i", len(request)) + request)
    await writer.drain()
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    response = await reader.readexactly(size)
    _, code = struct.unpack_from(">ih", response)
    if code:
        raise ConnectionRefusedError(f"it refuses the login (error {code})")
    return response[6:]


class RegistryProxy:
    """Passes requests on to the registry, with a token."""

    def __init__(self, port: int, token: str, session: aiohttp.ClientSession) -> None:
        self._port, self._token, self._session = port, token, session
        self._guard, self._owned_at = Guard(), -OWNER_SECONDS
        self._server = web.Server(self.answer, access_log=None, auto_decompress=False)

    async def serve(self, client: socket.socket) -> None:
        """Begin to serve a connection."""
        await asyncio.get_running_loop().connect_accepted_socket(self._server, client)

    def _is_own(self) -> bool:
        """Return whether the registry's port is this user's, as of a second ago."""
        now = time.monotonic()
        if now - self._owned_at > OWNER_SECONDS:
            if peers.is_supported() and not peers.is_own_server(self._port):
                return False
            self._owned_at = now
        return True

    async def close(self) -> None:
        await self._server.shutdown(STOP_SECONDS)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request: 403 if it is refused, 502 if the registry does not answer."""
        given = {name.lower(): request.headers.getall(name) for name in request.headers}
        if reason := self._guard.refusal(Request(request.method, given)):
            return _text(403, f"refused: {reason}")
        if not request.raw_path.startswith("/"):
            return _text(400, "the target of a request must be a path")
        if not self._is_own():
            return _text(502, "the schema registry does not run")
        if request.headers.get("expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        headers = _passed_on(request.headers)
        headers["Authorization"] = f"Bearer {self._token}"
        try:
            async with self._session.request(
                request.method,
                URL(f"http://{HOST}:{self._port}{request.raw_path}", encoded=True),
                headers=headers,
                data=request.content if request.can_read_body else None,
                allow_redirects=False,
            ) as response:
                content, passed_on = await response.read(), _passed_on(response.headers)
                passed_on.update(PROTECTION)
                return web.Response(status=response.status, body=content, headers=passed_on)
        except (aiohttp.ClientError, TimeoutError):
            return _text(502, "the schema registry does not answer")


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict(item for item in headers.items() if item[0].lower() not in _OF_CONNECTION)


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=PROTECTION)


async def run(kafka: tuple[int, int], registry: tuple[int, int]) -> None:
    """Serve until SIGTERM.

    :param kafka: the port of clients, and the broker's
    :param registry: the same of the registry
    :raises OSError: a port is taken
    """
    user, password, token = (
        os.environ.pop(f"TOPICBERG_PROXY_{name}")
        for name in ("KAFKA_USER", "KAFKA_PASSWORD", "REGISTRY_TOKEN")
    )
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    reports = Reports()
    async with _session() as session:
        registries = RegistryProxy(registry[1], token, session)
        to_broker = kafka_proxy(kafka[1], user, password, reports)
        ways = ((listener(kafka[0]), to_broker), (listener(registry[0]), registries.serve))
        serving = (accept(listening, serve, reports) for listening, serve in ways)
        ended = await first_of(stopped.wait(), *serving)
        await registries.close()
    for problem in ended:
        if isinstance(problem, Exception):
            raise problem


def listener(port: int) -> socket.socket:
    """Return a socket that listens; raises OSError: the port is taken."""
    listening = socket.create_server((HOST, port), backlog=512)
    listening.setblocking(False)
    return listening


def _session() -> aiohttp.ClientSession:
    """Return a session that changes nothing in requests and responses."""
    return aiohttp.ClientSession(
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="access_proxy", description=__doc__)
    for name in ("--kafka", "--registry"):
        parser.add_argument(name, type=int, nargs=2, required=True, metavar=("PORT", "TARGET"))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a connection takes two of them
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    asyncio.run(run(tuple(arguments.kafka), tuple(arguments.registry)))


if __name__ == "__main__":
    main()
