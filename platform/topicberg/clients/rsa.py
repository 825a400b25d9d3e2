"""RSA key pairs of the Snowflake user: two slots, of which one is active.

The secret has both slots, as the kickstarter's has, and ``active_key_number``, which it lacked.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topicberg.clients.secrets import active_slot

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

BITS = 3072  # NIST SP 800-57 allows 2048 bits until 2030 only; Snowflake takes longer keys.


@dataclass(frozen=True)
class KeyPair:
    """
    :param private: PKCS 8, PEM
    :param public: base64 of SubjectPublicKeyInfo, as Snowflake wants it
    """

    private: bytes
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({fingerprint(self.public)})"


def generate() -> KeyPair:
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(public_exponent=65537, key_size=BITS)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(private, _encoded(key.public_key()))


def public_of(private: bytes) -> str:
    """Return the public key of a private one."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return _encoded(load_pem_private_key(private, None).public_key())


def _encoded(public: PublicKeyTypes) -> str:
    """Return a public key as Snowflake wants it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def fingerprint(public: str) -> str:
    """As ``DESC USER`` shows it."""
    digest = hashlib.sha256(base64.b64decode(public)).digest()
    return f"SHA256:{base64.b64encode(digest).decode()}"


def label(public: str) -> str:
    """A name for a key that a secret's version can carry."""
    return hashlib.sha256(base64.b64decode(public)).hexdigest()[:16]


def public_key(values: Mapping[str, str], slot: int) -> str | None:
    return values.get(f"snowflake_rsa_public_key_{slot}_pem") or None


def private_key(values: Mapping[str, str]) -> bytes:
    """Of the active pair, PEM."""
    return base64.b64decode(values[f"snowflake_rsa_private_key_{active_slot(values)}_pem"])


def with_pair(values: Mapping[str, str], slot: int, pair: KeyPair) -> dict[str, str]:
    """The secret with a new, active pair in a slot; the other slot stays."""
    body = base64.encodebytes(base64.b64decode(pair.public)).decode()
    pem = f"-----BEGIN PUBLIC KEY-----\n{body}-----END PUBLIC KEY-----\n"
    return {
        **values,
        "active_key_number": str(slot),
        f"rsa_public_key_{slot}_pem": pem,
        f"snowflake_rsa_public_key_{slot}_pem": pair.public,
        f"snowflake_rsa_private_key_{slot}_pem": base64.b64encode(pair.private).decode(),
    }
