"""Kafka for clients with an API key, at the address that the cluster's document shows.

Clients log in as in Confluent Cloud, with SASL PLAIN: the user is the id of an API key of the
cluster, the password its secret. The gateway checks the key, logs in to the broker as the key's
owner, and then passes bytes in both directions. What the owner may do is decided by the broker, by
its access lists (:mod:`.kafka_rights`).

Unlike Confluent Cloud, it has no TLS: it listens on loopback, and serves processes of the user who
runs the stack only.

Sources: Apache Kafka, protocol guide, "SASL Authentication Sequence", ``SaslHandshake``,
``SaslAuthenticate``; RFC 4616 (PLAIN); RFC 5802 (SCRAM, for the login to the broker).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import socket
import struct
import time
from base64 import b64decode, b64encode
from typing import Any

from confluent_kafka import admin as kafka

from topicberg.errors import TopicbergError
from topicberg.kafka.topics import TIMEOUT_SECONDS
from topicberg_local.access_proxy_server import (
    LOGIN_SECONDS,
    Reports,
    Streams,
    accept,
    connect,
    first_of,
    sasl_authenticate,
    sasl_handshake,
)
from topicberg_local.emulators.confluent import broker, keys
from topicberg_local.emulators.confluent.account import Account
from topicberg_local.emulators.confluent.errors import Refusal
from topicberg_local.emulators.confluent.kafka_rights import user_of
from topicberg_local.emulators.process import Worker

logger = logging.getLogger(__name__)
_HANDSHAKE, _API_VERSIONS, _AUTHENTICATE = 17, 18, 36
_UNSUPPORTED_MECHANISM, _ILLEGAL_STATE, _FAILED = 33, 34, 58
"""Error codes of Kafka's protocol."""
_MAX_REQUEST = 64 * 1024
"""Bytes of a request before the login; the largest has two short texts."""
_ITERATIONS = range(4096, 8192)
"""Of hashing a password. Which of them it is tells whether the broker has the password that it was
given last."""


class KafkaGateway(Worker):
    """Serves clients that connect to a listener; ``port``: of the broker's listener."""

    def __init__(self, account: Account, listener: socket.socket, port: int) -> None:
        super().__init__("kafka gateway")
        self._account, self._listener, self._port = account, listener, port
        self._reports = Reports()
        self._passwords: dict[str, str] = {}
        """Of the broker's users, as this process has set them."""
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._listener.setblocking(False)
        serving = accept(self._listener, self._connection, self._reports)
        await first_of(serving, self._stopped.wait())
        self._listener.close()

    async def _connection(self, client: socket.socket) -> None:
        await connect(client, self._port, self._admit, self._reports)

    async def _admit(self, client: Streams, server: Streams) -> bool:
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                await self._log_in(client, server)
        except (OSError, EOFError, struct.error, IndexError) as error:
            logger.debug("a login to Kafka ended: %s", error)
            return False
        except (TopicbergError, Refusal) as error:
            self._reports.warn("Kafka refuses the gateway", error)
            return False
        return True

    async def _log_in(self, client: Streams, server: Streams) -> None:
        """Answer a client until it is logged in; raises OSError: it or the broker is refused."""
        chosen = False
        while True:
            request = await _read(client[0])
            api, version, correlation = struct.unpack_from(">hhi", request)
            if api == _API_VERSIONS and not chosen:
                server[1].write(struct.pack(">i", len(request)) + request)
                await server[1].drain()
                _write(client, await _read(server[0]))
            elif api == _HANDSHAKE and version == 1:
                chosen = _text(request, _after_client_id(request)) == b"PLAIN"
                code = 0 if chosen else _UNSUPPORTED_MECHANISM
                _write(client, struct.pack(">ihih", correlation, code, 1, 5) + b"PLAIN")
            elif api == _AUTHENTICATE and chosen:
                user, password = _plain(_token(request, version))
                refusal = await self._enter(user, password, server)
                _write(client, _authenticated(version, correlation, refusal))
                await client[1].drain()
                if not refusal:
                    return
                raise ConnectionError(refusal)
            else:
                _write(client, struct.pack(">ih", correlation, _ILLEGAL_STATE))
                raise ConnectionError(f"request {api} before the login")
            await client[1].drain()

    async def _enter(self, key: str, secret: str, server: Streams) -> str:
        """Log in to the broker as the owner of a key; return why the key is refused, or nothing.

        :raises OSError: the broker refuses
        """
        owner = await asyncio.to_thread(keys.of_kafka, self._account, key, secret)
        if owner is None:
            return "Authentication failed"
        user = user_of(*owner)
        password = await asyncio.to_thread(self._password, user)
        await sasl_handshake(server, b"SCRAM-SHA-256")
        await _log_in_with_scram(server, user, password)
        return ""

    def _password(self, user: str) -> str:
        """Return the password of a user of the broker, whom it may have to create."""
        if user not in self._passwords:
            password, mechanism = secrets.token_urlsafe(24), kafka.ScramMechanism.SCRAM_SHA_256
            how = kafka.ScramCredentialInfo(mechanism, secrets.choice(_ITERATIONS))
            change = kafka.UserScramCredentialUpsertion(user, how, password.encode())
            admin = self._account.kafka_admin()
            changed = admin.alter_user_scram_credentials([change], request_timeout=TIMEOUT_SECONDS)
            broker.wait(changed[user], f"user {user}")
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while self._iterations(user) != how.iterations:
                if time.monotonic() > deadline:
                    raise TopicbergError(f"Kafka did not learn the user {user}")
                time.sleep(0.02)
            self._passwords[user] = password
        return self._passwords[user]

    def _iterations(self, user: str) -> int:
        admin = self._account.kafka_admin()
        timeout = TIMEOUT_SECONDS
        described: Any = admin.describe_user_scram_credentials([user], request_timeout=timeout)
        credentials = broker.wait(described[user], f"user {user}").scram_credential_infos
        return int(credentials[0].iterations)


async def _log_in_with_scram(server: Streams, user: str, password: str) -> None:
    """Log in to a broker, with which the mechanism has been chosen; raises OSError: it refuses."""
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={secrets.token_urlsafe(18)}"
    challenge = (await sasl_authenticate(server, f"n,,{first}".encode())).decode()
    values = dict(part.split("=", 1) for part in challenge.split(","))
    salt, iterations = b64decode(values["s"]), int(values["i"])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    last = f"c=biws,r={values['r']}"  # ``n,,`` in Base64: no channel binding
    signed = f"{first},{challenge},{last}".encode()
    client_key = _hmac(salted, b"Client Key")
    signature = _hmac(hashlib.sha256(client_key).digest(), signed)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = await sasl_authenticate(server, f"{last},p={b64encode(proof).decode()}".encode())
    expected = b"v=" + b64encode(_hmac(_hmac(salted, b"Server Key"), signed))
    if not hmac.compare_digest(final, expected):
        raise ConnectionRefusedError("Kafka does not know the password")


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return a request or response without its length; raises OSError or EOFError."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    if not 0 <= size <= _MAX_REQUEST:
        raise ConnectionError(f"a message of {size} bytes before the login")
    return await reader.readexactly(size)


def _write(client: Streams, response: bytes) -> None:
    client[1].write(struct.pack(">i", len(response)) + response)


def _after_client_id(request: bytes) -> int:
    """Return where the body of a request begins, or the tags before it."""
    size: int = struct.unpack_from(">h", request, 8)[0]
    return 10 + max(size, 0)


def _text(request: bytes, start: int) -> bytes:
    (size,) = struct.unpack_from(">h", request, start)
    return request[start + 2 : start + 2 + size]


def _token(request: bytes, version: int) -> bytes:
    """Return ``auth_bytes``; from version 2 on, they are compact, after an empty list of tags."""
    start = _after_client_id(request)
    if version < 2:
        (size,) = struct.unpack_from(">i", request, start)
        return request[start + 4 : start + 4 + size]
    size, shift, start = 0, 0, start + 1
    while True:
        byte, start = request[start], start + 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return request[start : start + size - 1]


def _plain(token: bytes) -> tuple[str, str]:
    """:raises OSError: it is not a message of PLAIN"""
    parts = token.split(b"\0")
    if len(parts) != 3:
        raise ConnectionError("not a message of SASL PLAIN")
    return parts[1].decode(errors="replace"), parts[2].decode(errors="replace")


def _authenticated(version: int, correlation: int, refusal: str) -> bytes:
    """Return the response to a client's login; it never has to log in again."""
    text, code = refusal.encode(), _FAILED if refusal else 0
    head = struct.pack(">i", correlation)
    if version >= 2:
        shown = bytes([len(text) + 1]) + text if refusal else b"\0"
        return head + b"\0" + struct.pack(">h", code) + shown + b"\1" + bytes(8) + b"\0"
    size = len(text) if refusal else -1
    body = struct.pack(">hh", code, size) + text + struct.pack(">i", 0)
    return head + body + (bytes(8) if version == 1 else b"")
