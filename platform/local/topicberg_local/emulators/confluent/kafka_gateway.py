"""Kafka for clients with an API key, at the address that the cluster's document shows.

Clients log in as in Confluent Cloud, with SASL PLAIN: the user is the id of an API key of the
cluster, the password its secret. The gateway checks the key, logs in to the broker as the key's
owner, and then passes bytes in both directions. What the owner may do is decided by the broker: the
access lists of Kafka REST and the role bindings of a cluster become its access lists, and its own
authorizer (``StandardAuthorizer``) allows what they say and nothing else. One broker has all
clusters, so the name of a user there has both: ``lkc-local1.sa-abc123``.

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
import re
import secrets
import socket
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import admin as kafka

from topicberg.errors import TopicbergError
from topicberg.kafka.topics import TIMEOUT_SECONDS
from topicberg_local import access_proxy_server as proxy
from topicberg_local.emulators.confluent import broker, clusters, keys, roles
from topicberg_local.emulators.confluent.account import (
    ACL,
    BOOTSTRAP_USER,
    CLUSTER,
    ROLE_BINDING,
    Account,
)
from topicberg_local.emulators.confluent.errors import Refusal
from topicberg_local.emulators.process import Worker

Arguments = tuple[
    kafka.ResourceType,
    str,
    kafka.ResourcePatternType,
    str,
    str,
    kafka.AclOperation,
    kafka.AclPermissionType,
]
logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
_OF_CLUSTER = "kafka-cluster"
_EVERYTHING = (("TOPIC", "*"), ("GROUP", "*"), ("TRANSACTIONAL_ID", "*"), ("CLUSTER", _OF_CLUSTER))
_CRN_TYPES = {"topic": "TOPIC", "group": "GROUP", "transactional-id": "TRANSACTIONAL_ID"}
_ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "DeveloperRead": {"TOPIC": ("READ",), "GROUP": ("READ",)},
    "DeveloperWrite": {"TOPIC": ("WRITE",), "TRANSACTIONAL_ID": ("WRITE",)},
    "DeveloperManage": {
        "TOPIC": ("CREATE", "DELETE", "ALTER", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"),
        "GROUP": ("DELETE",),
    },
    "ResourceOwner": {"TOPIC": ("ALL",), "GROUP": ("ALL",), "TRANSACTIONAL_ID": ("ALL",)},
}
"""Role → type of resource → operations. Each of these implies DESCRIBE in Kafka.

https://docs.confluent.io/cloud/current/security/access-control/rbac/predefined-rbac-roles.html
"""


class Right(NamedTuple):
    """A line of the broker's access lists."""

    user: str
    resource_type: str
    resource_name: str
    pattern_type: str
    operation: str
    permission: str = "ALLOW"
    host: str = "*"


def user_of(cluster: str, principal: str) -> str:
    """Return the broker's name of a service account that has a key of the cluster."""
    return f"{cluster}.{principal}"


def rights(account: Account) -> set[Right]:
    """Return all that the access lists and the role bindings say now."""
    acls = (acl.name for acl in account.store.all(ACL))
    listed = {
        Right(user_of(of, who.removeprefix("User:")), kind, name, pattern, action, allowed, host)
        for of, kind, name, pattern, who, host, action, allowed in acls
    }
    existing = account.store.all(CLUSTER, lambda c: clusters.GONE_AFTER not in c.properties)
    of_roles = (_of_roles(account, c.name[0], c.properties["environment"]) for c in existing)
    return listed.union(*of_roles)


def _of_roles(account: Account, cluster: str, environment: str) -> Iterator[Right]:
    crn = clusters.crn(account, environment, cluster)
    admins = {BOOTSTRAP_USER}
    since = time.time() - account.delays.role_binding
    for binding in account.store.all(ROLE_BINDING, lambda entry: entry.created <= since):
        principal = binding.properties["principal"].removeprefix("User:")
        role, pattern = binding.properties["role_name"], binding.properties["crn_pattern"]
        if role in roles.ADMINS and roles.covers(pattern, crn):
            admins.add(principal)
        part = re.fullmatch(rf"{re.escape(crn)}/kafka={re.escape(cluster)}/([a-z-]+)=(.+)", pattern)
        if part and part[1] in _CRN_TYPES:
            type_, name, pattern_type = _CRN_TYPES[part[1]], part[2], "LITERAL"
            if name.endswith("*") and name != "*":
                name, pattern_type = name.removesuffix("*"), "PREFIXED"
            for operation in _ROLES.get(role, {}).get(type_, ()):
                yield Right(user_of(cluster, principal), type_, name, pattern_type, operation)
    for principal in admins:
        for type_, name in _EVERYTHING:
            yield Right(user_of(cluster, principal), type_, name, "LITERAL", "ALL")


class KafkaRights(Worker):
    """Gives the broker the access lists, whenever they change."""

    def __init__(self, account: Account) -> None:
        super().__init__("kafka rights", LOOK_SECONDS)
        self._account = account
        self._given: set[Right] | None = None
        """What the broker has; None: not looked yet."""

    def look(self) -> None:
        wanted, given, self._given = rights(self._account), self._given, None
        try:
            if wanted != given:
                self._give(wanted, given)
        except TopicbergError as error:  # the stack is not up yet, or Kafka restarts
            logger.debug("access lists: %s", error)
        else:
            self._given = wanted

    def _give(self, wanted: set[Right], given: set[Right] | None) -> None:
        """:raises TopicbergError: Kafka does not answer"""
        client = self._account.kafka_admin()
        if given is None:
            unnamed: Any = None
            every = kafka.AclBindingFilter(
                kafka.ResourceType.ANY,
                unnamed,
                kafka.ResourcePatternType.ANY,
                unnamed,
                unnamed,
                operation=kafka.AclOperation.ANY,
                permission_type=kafka.AclPermissionType.ANY,
            )
            described = client.describe_acls(every, request_timeout=TIMEOUT_SECONDS)
            given = {_right(acl) for acl in broker.wait(described, "access lists")}
        if missing := [kafka.AclBinding(*_arguments(right)) for right in wanted - given]:
            for created in client.create_acls(missing, request_timeout=TIMEOUT_SECONDS).values():
                broker.wait(created, "access lists")
        if surplus := [kafka.AclBindingFilter(*_arguments(right)) for right in given - wanted]:
            for deleted in client.delete_acls(surplus, request_timeout=TIMEOUT_SECONDS).values():
                broker.wait(deleted, "access lists")


def _right(acl: Any) -> Right:
    return Right(
        acl.principal.removeprefix("User:"),
        "CLUSTER" if acl.restype.name == "BROKER" else acl.restype.name,
        acl.name,
        acl.resource_pattern_type.name,
        acl.operation.name,
        acl.permission_type.name,
        acl.host,
    )


def _arguments(right: Right) -> Arguments:

    type_ = "BROKER" if right.resource_type == "CLUSTER" else right.resource_type
    return (
        kafka.ResourceType[type_],
        right.resource_name,
        kafka.ResourcePatternType[right.pattern_type],
        f"User:{right.user}",
        right.host,
        kafka.AclOperation[right.operation],
        kafka.AclPermissionType[right.permission],
    )


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
        self._reports = proxy.Reports()
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
        serving = proxy.accept(self._listener, self._connection, self._reports)
        await proxy.first_of(serving, self._stopped.wait())
        self._listener.close()

    async def _connection(self, client: socket.socket) -> None:
        await proxy.connect(client, self._port, self._admit, self._reports)

    async def _admit(self, client: proxy.Streams, server: proxy.Streams) -> bool:
        try:
            async with asyncio.timeout(proxy.LOGIN_SECONDS):
                await self._log_in(client, server)
        except (OSError, EOFError, struct.error, IndexError) as error:
            logger.debug("a login to Kafka ended: %s", error)
            return False
        except (TopicbergError, Refusal) as error:
            self._reports.warn("Kafka refuses the gateway", error)
            return False
        return True

    async def _log_in(self, client: proxy.Streams, server: proxy.Streams) -> None:
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

    async def _enter(self, key: str, secret: str, server: proxy.Streams) -> str:
        """Log in to the broker as the owner of a key; return why the key is refused, or nothing.

        :raises OSError: the broker refuses
        """
        owner = await asyncio.to_thread(keys.of_kafka, self._account, key, secret)
        if owner is None:
            return "Authentication failed"
        user = user_of(*owner)
        password = await asyncio.to_thread(self._password, user)
        await proxy.sasl_handshake(server, b"SCRAM-SHA-256")
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


async def _log_in_with_scram(server: proxy.Streams, user: str, password: str) -> None:
    """Log in to a broker, with which the mechanism has been chosen; raises OSError: it refuses."""
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={secrets.token_urlsafe(18)}"
    challenge = (await proxy.sasl_authenticate(server, f"n,,{first}".encode())).decode()
    values = dict(part.split("=", 1) for part in challenge.split(","))
    salt, iterations = b64decode(values["s"]), int(values["i"])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    last = f"c=biws,r={values['r']}"  # ``n,,`` in Base64: no channel binding
    signed = f"{first},{challenge},{last}".encode()
    client_key = _hmac(salted, b"Client Key")
    signature = _hmac(hashlib.sha256(client_key).digest(), signed)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = await proxy.sasl_authenticate(server, f"{last},p={b64encode(proof).decode()}".encode())
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


def _write(client: proxy.Streams, response: bytes) -> None:
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
