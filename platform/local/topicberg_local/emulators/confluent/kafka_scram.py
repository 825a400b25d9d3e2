"""The login to a broker with SASL SCRAM-SHA-256, over a connection that is already open.

Source: RFC 5802.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode

from topicberg_local.access_proxy_server import Streams, sasl_authenticate

MECHANISM = b"SCRAM-SHA-256"
_NO_CHANNEL_BINDING = "biws"
"""``n,,`` in Base64."""


async def log_in(server: Streams, user: str, password: str) -> None:
    """Log in; the mechanism has been chosen.

    :raises OSError: the broker refuses, or does not know the password either
    """
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={secrets.token_urlsafe(18)}"
    challenge = (await sasl_authenticate(server, f"n,,{first}".encode())).decode()
    values = dict(part.split("=", 1) for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password.encode(), b64decode(values["s"]), int(values["i"])
    )
    last = f"c={_NO_CHANNEL_BINDING},r={values['r']}"
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
