"""Known secrets, which no error, status, log or alert shows.

Clients of vendors put addresses and headers into their messages, and Spark its environment. What
this process knows as a secret is replaced wherever a message is made: in every error of topicberg,
in log lines, and in alerts. Secrets are known from the environment, by the names of variables, and
from the models that hold them.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, SecretStr

REDACTED = "[redacted]"
MIN_LENGTH = 8
"""A shorter one would be found in words that are no secret."""
_NAMES = re.compile(r"SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|PRIVATE_KEY|API_KEY|CREDENTIAL")
_PLACES = re.compile(r"_(FILE|PATH|DIR|URI|URL|ENDPOINT|HOST|SOCK)$")
_KEYS = re.compile(r"secret|password|private_key|user\.info|jaas", re.IGNORECASE)
_IDENTIFIERS = frozenset(
    {"s3_access_key", "aws_access_key", "kafka_api_key", "schema_registry_api_key"}
)
"""Fields that name a key and do not hold its secret."""
_TOKEN = re.compile(r"[;&?]token=([^;&\s]+)", re.IGNORECASE)
_known: set[str] = set()
_lock = threading.Lock()


def remember(secrets: Iterable[str]) -> None:
    """Redact these from now on."""
    with _lock:
        for secret in secrets:
            _known.update(_forms(secret))


def remember_values(values: Mapping[str, object]) -> None:
    """Redact those values whose names say that they are secrets, as in a vault's entry."""
    remember(
        # Of user and password in one, the password may be quoted alone.
        part
        for name, value in values.items()
        if isinstance(value, str) and _KEYS.search(name)
        for part in (value, value.partition(":")[2])
    )


class HoldsSecrets(BaseModel):
    """A model whose secrets are redacted from every message of this process."""

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        for name, value in self:
            if isinstance(value, SecretStr) and name not in _IDENTIFIERS:
                secret = value.get_secret_value()
                remember((secret, secret.partition(":")[2] if name.endswith("user_info") else ""))


def redact(text: str) -> str:
    """Return text in which every known secret is replaced."""
    with _lock:
        known = set(_known)
    for name, value in os.environ.items():
        if _is_secret(name.upper()):
            known.update(_forms(value))
    for secret in sorted(known, key=len, reverse=True):  # one may be a part of another
        if secret in text:
            text = text.replace(secret, REDACTED)
    return _TOKEN.sub(lambda match: match[0].replace(match[1], REDACTED), text)


def _is_secret(variable: str) -> bool:
    if not _NAMES.search(variable) or _PLACES.search(variable):
        return False
    # Of a pair of key and secret, the key is a name.
    return not variable.endswith("API_KEY") or f"{variable[:-3]}SECRET" not in os.environ


def _forms(secret: str) -> Iterator[str]:
    """The secret as it may stand in a text: each line of it, also as a part of a URL."""
    for line in secret.splitlines():
        if len(line) >= MIN_LENGTH and not line.startswith("-----"):
            yield line
            yield quote(line, safe="")
