"""The process of the access proxy: it admits one user of the machine, without a login.

Kafka and the registry ask everybody for a login. This process has both logins. It accepts
connections at the addresses that clients know, checks which user a connection belongs to
(:mod:`topicberg.security.peers`), and connects it. So a client of the stack's user, or of root,
needs an address only, and every other user of the machine gets nothing.

- Kafka: the proxy logs in for the connection, then passes bytes in both directions.
- Schema registry: the proxy checks each request (:mod:`topicberg.security.guard`), so that a web
  page gets nothing either, and adds the token.

topicberg's own clients log in by themselves and do not use the proxy for Kafka, so it costs no
throughput. Where the operating system does not report users (macOS), every user is admitted.

Sources: Apache Kafka, protocol guide, "SASL Authentication Sequence"; RFC 4616 (PLAIN).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import struct
import time
from collections.abc import Mapping
from contextlib import closing, suppress

import aiohttp
from aiohttp import web
from yarl import URL

from topicberg.security import peers
from topicberg.security.guard import PROTECTION, Guard, Request

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
CHUNK = 256 * 1024
"""Bytes that are passed on at once, and that are held for a slow receiver."""
LOGIN_SECONDS = 30.0
REPORT_SECONDS = 60.0
"""Refusals within this time are one line of the log."""
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = (17, 1), (36, 0)
"""API keys and versions."""
_OF_CONNECTION = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "content-length", "host", "authorization"}
)
"""Headers that are not passed on: RFC 9110, 7.6.1, and those that the proxy sets."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class KafkaProxy:
    """Connects clients with a listener of the broker, on which it logs in for them."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self._port, self._user, self._password = port, user, password
        self._reported = -REPORT_SECONDS

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        with closing(writer):
            address = writer.get_extra_info("peername")
            if not _is_admitted(address, writer.get_extra_info("sockname")):
                self._report(address)
                return
            try:
                async with asyncio.timeout(LOGIN_SECONDS):
                    broker = await asyncio.open_connection(HOST, self._port, limit=CHUNK)
                    await _log_in(broker, self._user, self._password)
            except (OSError, asyncio.IncompleteReadError) as error:
                logger.warning("Kafka does not accept a connection: %s", error or "time-out")
                return
            with closing(broker[1]):
                ways = [
                    asyncio.ensure_future(_copy(reader, broker[1])),
                    asyncio.ensure_future(_copy(broker[0], writer)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()

    def _report(self, address: peers.Address) -> None:
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            logger.warning("refused: %s:%d is a process of another user", *address)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()


async def _log_in(broker: Streams, user: str, password: str) -> None:
    """Log in with SASL PLAIN.

    :raises ConnectionRefusedError: Kafka refuses the login
    """
    mechanism = b"PLAIN"
    await _call(broker, _SASL_HANDSHAKE, struct.pack(">h", len(mechanism)) + mechanism)
    text = f"\0{user}\0{password}".encode()
    await _call(broker, _SASL_AUTHENTICATE, struct.pack(">i", len(text)) + text)


async def _call(broker: Streams, api: tuple[int, int], body: bytes) -> None:
    """Send a request without a client id, and check the error code of the response."""
    reader, writer = broker
    request = struct.pack(">hhih", *api, 0, -1) + body
    writer.write(struct.pack(">i", len(request)) + request)
    await writer.drain()
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    _, code = struct.unpack_from(">ih", await reader.readexactly(size))
    if code:
        raise ConnectionRefusedError(f"it refuses the proxy's login (error {code})")


class RegistryProxy:
    """Passes requests on to the registry, with a token."""

    def __init__(self, port: int, token: str, session: aiohttp.ClientSession) -> None:
        self._root, self._token, self._session = f"http://{HOST}:{port}", token, session
        self._guard = Guard(same_user=True)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request: 403 if it is refused, 502 if the registry does not answer."""
        if reason := self._guard.refusal(_checked(request)):
            return _text(403, f"refused: {reason}")
        if not request.raw_path.startswith("/"):
            return _text(400, "the target of a request must be a path")
        headers = [*_passed_on(request.headers), ("Authorization", f"Bearer {self._token}")]
        try:
            async with self._session.request(
                request.method,
                URL(self._root + request.raw_path, encoded=True),
                headers=headers,
                data=request.content if request.can_read_body else None,
                allow_redirects=False,
            ) as answer:
                found = [*_passed_on(answer.headers), *PROTECTION.items()]
                return web.Response(
                    status=answer.status, body=await answer.read(), headers=dict(found)
                )
        except aiohttp.ClientError:
            return _text(502, "the schema registry does not answer")


def _checked(request: web.BaseRequest) -> Request:
    headers: dict[str, list[str]] = {}
    for name, value in request.headers.items():
        headers.setdefault(name.lower(), []).append(value)
    transport = request.transport
    ends = [
        transport.get_extra_info(end) if transport else None for end in ("peername", "sockname")
    ]
    return Request(request.method, headers, *ends)


def _passed_on(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in _OF_CONNECTION]


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=PROTECTION)


def _is_admitted(client: peers.Address, server: peers.Address) -> bool:
    return not peers.is_supported() or peers.is_own(client, server)


async def run(kafka: tuple[int, int], registry: tuple[int, int]) -> None:
    """Serve until SIGTERM.

    :param kafka: the port of clients, and the broker's
    :param registry: the same of the registry
    :raises OSError: a port is taken
    """
    secrets = {
        name: os.environ.pop(f"TOPICBERG_PROXY_{name}")
        for name in ("KAFKA_USER", "KAFKA_PASSWORD", "REGISTRY_TOKEN")
    }
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    brokers = KafkaProxy(kafka[1], secrets["KAFKA_USER"], secrets["KAFKA_PASSWORD"])
    connections = await asyncio.start_server(brokers.serve, HOST, kafka[0], limit=CHUNK)
    async with _session() as session:
        registries = RegistryProxy(registry[1], secrets["REGISTRY_TOKEN"], session)
        runner = web.ServerRunner(web.Server(registries.serve, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, HOST, registry[0]).start()
        await stopped.wait()
        await runner.cleanup()
    connections.close()  # the end of the loop cancels those that are open


def _session() -> aiohttp.ClientSession:
    """Return a session that changes nothing in requests and responses."""
    return aiohttp.ClientSession(
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="access_proxy", description=__doc__)
    for name in ("--kafka", "--registry"):
        parser.add_argument(name, type=int, nargs=2, required=True, metavar=("PORT", "TARGET"))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(run(tuple(arguments.kafka), tuple(arguments.registry)))


if __name__ == "__main__":
    main()
