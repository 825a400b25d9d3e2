"""Redaction of known secrets in errors, statuses, logs and alerts.

Vendors' clients put addresses and headers into their messages, and Spark its environment. The
secrets that this process knows are replaced wherever a message is created: in every error of
topicberg, in log lines (which records cannot forge either), and in alerts. Secrets are found in the
environment, by the names of variables, and in the models that hold them.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import quote

from topicberg.security.text import log

REDACTED = "[redacted]"
MIN_LENGTH = 8
"""Shorter values are not redacted: they would be found in ordinary words."""
_NAMES = re.compile(r"SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|PRIVATE_KEY|API_KEY|CREDENTIAL")
_PLACES = re.compile(r"_(FILE|PATH|DIR|URI|URL|ENDPOINT|HOST|SOCK)$")
_KEYS = re.compile(r"secret|password|private_key|user\.info|jaas", re.IGNORECASE)
_TOKEN = re.compile(r"[;&?]token=([^;&\s]+)", re.IGNORECASE)
_known: set[str] = set()
_lock = threading.Lock()


def remember(secrets: Iterable[str]) -> None:
    """Redact these from now on."""
    with _lock:
        _known.update(form for secret in secrets for form in _forms(secret))


def remember_values(values: Mapping[str, object]) -> None:
    """Redact those values whose names mark them as secrets, as in an entry of a vault."""
    remember(
        # Of a value "user:password", the password may also be quoted by itself.
        part
        for name, value in values.items()
        if isinstance(value, str) and _KEYS.search(name)
        for part in (value, value.partition(":")[2])
    )


def redact(text: str) -> str:
    """Return text in which every known secret is replaced."""
    with _lock:
        secrets = set(_known)
    named = (os.environ.get(name, "") for name in os.environ if _is_secret(name.upper()))
    secrets.update(form for secret in named for form in _forms(secret))
    for secret in sorted(secrets, key=len, reverse=True):  # one secret may be a part of another
        if secret in text:
            text = text.replace(secret, REDACTED)
    return _TOKEN.sub(lambda match: match[0].replace(match[1], REDACTED), text)


def _is_secret(variable: str) -> bool:
    # Of a pair of key and secret, the key is only a name.
    is_name = variable.endswith("API_KEY") and f"{variable[:-3]}SECRET" in os.environ
    return _is_named_as_secret(variable) and not is_name


@lru_cache(maxsize=1024)
def _is_named_as_secret(variable: str) -> bool:
    return bool(_NAMES.search(variable)) and not _PLACES.search(variable)


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms of a secret in a text: each of its lines, also as a part of a URL."""
    for line in secret.splitlines():
        if len(line) >= MIN_LENGTH and not line.startswith("-----"):
            yield line
            yield quote(line, safe="")


class SafeFormatter(logging.Formatter):
    """Redacts secrets, shows control characters, and indents the further lines of a message."""

    def format(self, record: logging.LogRecord) -> str:
        return log(redact(super().format(record)))


def log_to_stderr(
    level: int, form: str = "%(message)s", levels: Mapping[str, int] | None = None
) -> None:
    """Send the log of this process to its standard error.

    :param form: format of a line, see :class:`logging.Formatter`
    :param levels: name of a logger → its own level
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])
    for name, own in (levels or {}).items():
        logging.getLogger(name).setLevel(own)
