"""The access proxy between real sockets: a broker and a registry of the test stand behind it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from confluent_kafka.schema_registry.error import SchemaRegistryError

from topicberg.clients.registry import registry_errors
from topicberg.errors import UnreachableError
from topicberg_local import access_proxy_server as proxy
from topicberg_local import peers

needs_users = pytest.mark.skipif(not peers.is_supported(), reason="no owners of sockets are listed")
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Broker:
    """Answers the two requests of a login, then returns what it gets."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.requests = code, list[bytes]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(2):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                self.requests.append(await reader.readexactly(size))
                writer.write(struct.pack(">iihhi", 12, 0, self.code, -1, 0))
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()


def through_kafka(test: Callable[[int, Broker], Awaitable[None]], broker: Broker) -> None:
    async def run() -> None:
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        reports = proxy.Reports()
        kafka = proxy.kafka_proxy(server.sockets[0].getsockname()[1], "user", "secret", reports)
        listener = proxy.listener(0)
        accepting = asyncio.ensure_future(proxy.accept(listener, kafka, reports))
        try:
            await test(listener.getsockname()[1], broker)
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listener.close()
            server.close()

    asyncio.run(run())


def test_bytes_arrive_unchanged_in_both_directions() -> None:
    sent = os.urandom(3_000_000)

    async def test(address: int, broker: Broker) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", address)

        async def send() -> None:
            for begin in range(0, len(sent), 70_001):
                writer.write(sent[begin : begin + 70_001])
                await writer.drain()

        sending = asyncio.ensure_future(send())
        assert await reader.readexactly(len(sent)) == sent
        await sending
        writer.close()
        assert broker.requests[1].endswith(b"\0user\0secret")

    through_kafka(test, Broker())


def test_broker_that_refuses_the_login_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(address: int, _: Broker) -> None:
        for _attempt in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", address)
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()

    through_kafka(test, Broker(code=58))
    (line,) = [line for line in caplog.messages if "refuses" in line]
    assert "error 58" in line
    assert "secret" not in caplog.text


@needs_users
def test_broker_of_another_user_gets_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "is_own", lambda *_: False)
    monkeypatch.setattr(peers, "is_own_socket", lambda _: True)

    async def test(address: int, broker: Broker) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", address)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
        assert not any(b"secret" in request for request in broker.requests)

    through_kafka(test, Broker())


def through_registry(test: Callable[[str], Awaitable[None]], answer: Handler | None) -> None:
    """:param answer: of the registry; None: it does not run"""

    async def run() -> None:
        listener, unused = proxy.listener(0), proxy.listener(0)
        behind = unused.getsockname()[1]
        unused.close()
        backend = web.ServerRunner(web.Server(answer, auto_decompress=False)) if answer else None
        if backend is not None:
            await backend.setup()
            await web.TCPSite(backend, "127.0.0.1", 0).start()
            behind = backend.addresses[0][1]
        async with proxy._session() as session:
            registry, reports = proxy.RegistryProxy(behind, "token", session), proxy.Reports()
            accepting = asyncio.ensure_future(proxy.accept(listener, registry.serve, reports))
            try:
                await test(f"http://127.0.0.1:{listener.getsockname()[1]}")
            finally:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
                await registry.close()
                listener.close()
        if backend is not None:
            await backend.cleanup()

    asyncio.run(run())


def test_request_and_response_keep_what_is_not_of_the_connection() -> None:
    seen: dict[str, Any] = {}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        seen.update(request.headers, body=await request.read(), path=request.raw_path)
        response = web.Response(status=201, body=b"made", headers={"X-Frame-Options": "SAMEORIGIN"})
        response.headers.add("Set-Cookie", "a=1")
        response.headers.add("Set-Cookie", "b=2")
        return response

    async def test(url: str) -> None:
        async with (
            aiohttp.ClientSession() as client,
            client.post(
                f"{url}/subjects/a%2Fb/..?x=%20",
                data=b"\x1f\x8bnot gzip",
                headers={"Content-Encoding": "gzip", "Authorization": "Basic x", "X-Own": "1"},
                expect100=True,
            ) as found,
        ):
            assert found.status == 201
            assert await found.read() == b"made"
            assert found.headers.getall("Set-Cookie") == ["a=1", "b=2"]
            assert found.headers.getall("X-Frame-Options") == ["DENY"]
        assert seen["Authorization"] == "Bearer token"
        assert seen["Host"] == url.removeprefix("http://")
        assert (seen["X-Own"], seen["body"]) == ("1", b"\x1f\x8bnot gzip")
        assert "Expect" not in seen

    through_registry(test, answer)


def test_registry_that_does_not_run_is_unreachable() -> None:
    async def test(url: str) -> None:
        async with aiohttp.ClientSession() as client, client.get(url) as found:
            assert found.status == 502
        with pytest.raises(UnreachableError, match="502 from the proxy"), registry_errors("s"):
            raise SchemaRegistryError(found.status, -1, "no JSON")

    through_registry(test, None)


@needs_users
def test_port_of_a_client_that_left_is_not_taken_for_the_next_one() -> None:
    """A connection is reset with data in it; then another process has the client's port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = ("127.83.0.1", 0)  # an address where no other test's client gets the port in between
        client = socket.create_connection(server.getsockname(), source_address=own)
        accepted, address = server.accept()
        assert peers.is_own_socket(accepted)
        client.sendall(b"request")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        again = socket.socket()
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(address)
        again.connect(server.getsockname())
        with again, accepted:
            assert peers.is_own(address, server.getsockname())
            try:
                assert not peers.is_own_socket(accepted)
            except OSError:  # the kernel has forgotten the connection
                return


@needs_users
def test_owner_of_a_server_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        assert peers.is_own_server(number)
    assert not peers.is_own_server(number)
