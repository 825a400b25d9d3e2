"""RSA public keys of users: https://docs.snowflake.com/en/user-guide/key-pair-auth."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key

from topicberg_local.emulators.snowflake.errors import invalid_public_key

MIN_BITS = 2048


def load(key: str) -> RSAPublicKey:
    """A key as users set it: the body of a PEM file, without its header and footer.

    :raises ProgrammingError: it is not an RSA key, or too short
    """
    try:
        public_key = load_der_public_key(base64.b64decode("".join(key.split()), validate=True))
    except (binascii.Error, ValueError, UnsupportedAlgorithm):
        raise invalid_public_key() from None
    if not isinstance(public_key, RSAPublicKey) or public_key.key_size < MIN_BITS:
        raise invalid_public_key()
    return public_key


def fingerprint(key: str) -> str:
    """``SHA256:`` and the base64 digest of the key's DER form."""
    digest = hashlib.sha256(base64.b64decode("".join(key.split()))).digest()
    return f"SHA256:{base64.b64encode(digest).decode()}"


def verify_token(token: str, properties: dict[str, Any]) -> bool:
    """Whether a JWT is signed by one of the user's keys and names it in ``iss``."""
    import jwt

    for name in ("RSA_PUBLIC_KEY", "RSA_PUBLIC_KEY_2"):
        key = properties.get(name)
        if not key:
            continue
        try:
            claims = jwt.decode(token, load(key), algorithms=["RS256"], leeway=60)
        except jwt.InvalidTokenError:
            continue
        return str(claims.get("iss", "")).endswith(f".{fingerprint(key)}")
    return False


def token_user(token: str) -> str:
    """The user that a JWT speaks of: ``sub`` is ``ACCOUNT.USER``. Empty when it is no JWT."""
    import jwt

    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return ""
    return str(claims.get("sub", "")).partition(".")[2]
