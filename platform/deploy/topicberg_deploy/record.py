"""What ``deploy create`` has created, so that ``deploy delete`` deletes nothing else.

Names do not tell: a topic, a role or a user of that name may have existed before. So each resource
is recorded before it is created, and by its id once it exists. What has no record, or the record of
another id, is never deleted; whoever lost the records names what to delete all the same.

The record is in SSM Parameter Store, beside the lease, so that every machine has it. A parameter
takes 4,096 characters, so there are several; only the holder of the lease writes them.

It also has how long vendors took until they knew everywhere what was created, for the report of
``deploy probe``, and the fingerprints of logins of clients, which vendors store and never return,
such as that of a catalog: so a plan shows a login that differs from the settings', and a client's
secret can be changed while the one before still works.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pydantic import SecretStr

from topicberg.clients.aws import every
from topicberg.errors import TopicbergError

PAGE_CHARACTERS = 3500
"""Of a parameter, before another one begins: less than AWS takes, since an entry gets its id
later."""
BEGUN = ""
"""In place of the id of what may have been created."""
CURRENT = "that of the settings"
"""State of a login that was sent; what a plan wants."""
UNKNOWN, EARLIER = "unknown", "an earlier one"
_LOGIN = "login of "
"""Begins the entry of the login that was sent for a resource."""
MEASURED = ("aws/role/snowflake", "confluent/catalog_integration")
"""Resources that settle once others know them: a role's trust, and an integration."""
_WAIT = "seconds of "
"""Begins the entry of how long `create` waited until a new resource was accepted or settled."""


@dataclass(frozen=True)
class ClientLogin:
    id: str
    secret: SecretStr

    @classmethod
    def of(cls, id: str | None, secret: SecretStr | None) -> ClientLogin:
        """The settings have been checked: the secret is missing only where it is not sent."""
        return cls(id or "", secret or SecretStr(""))

    def fields(self) -> dict[str, str]:
        """:raises TopicbergError: the secret is missing, as where only plans are made"""
        secret = self.secret.get_secret_value()
        if not secret:
            raise TopicbergError(
                f"the secret of client {self.id} is missing",
                hint="set TOPICBERG_CATALOG__CLIENT_SECRET or TOPICBERG_UNITY__CLIENT_SECRET",
            )
        return {"client_id": self.id, "client_secret": secret}

    @property
    def fingerprint(self) -> str:
        """By a slow function, so that a secret cannot be found by trying."""
        secret = self.secret.get_secret_value().encode()
        return hashlib.scrypt(secret, salt=self.id.encode(), n=2**11, r=8, p=1, dklen=12).hex()


class Pages:
    """Where the record is kept: texts by their numbers, as parameters of AWS (boto3's ``ssm``)."""

    def __init__(self, client: Any, path: str) -> None:
        self._client, self._path = client, path

    def read(self) -> dict[int, str]:
        listed = every(self._client, "get_parameters_by_path", "Parameters", Path=self._path)
        return {
            int(parameter["Name"].rpartition("/")[2]): parameter["Value"] for parameter in listed
        }

    def write(self, number: int, text: str) -> None:
        name = f"{self._path}/{number}"
        tier = "Intelligent-Tiering"  # a page with long ids may pass the 4,096 characters
        self._client.put_parameter(Name=name, Value=text, Type="String", Overwrite=True, Tier=tier)

    def delete(self, number: int) -> None:
        with suppress(self._client.exceptions.ParameterNotFound):
            self._client.delete_parameter(Name=f"{self._path}/{number}")


class CreationRecord:
    """Key of a resource → the identity of what was created; :data:`BEGUN`: it is being created."""

    def __init__(self, pages: Pages) -> None:
        self._kept = pages
        self._pages: dict[int, dict[str, str]] | None = None
        self._changed: set[int] = set()
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def load(self) -> dict[int, dict[str, str]]:
        """Read it again: another process may have written it since. Return its pages.

        :raises TopicbergError: another administrator changed it to what it cannot be
        """
        pages: dict[int, dict[str, str]] = {}
        for number, text in self._kept.read().items():
            page = None
            with suppress(ValueError):
                page = json.loads(text)
            if not isinstance(page, dict):
                raise TopicbergError(
                    f"page {number} of the record of what `deploy` created is not a JSON object: "
                    f"{text[:40]!r}",
                    hint="restore an earlier version of the parameter, or delete it: without it, "
                    "`deploy delete` keeps what it was about",
                )
            pages[number] = page
        with self._lock:
            self._pages = pages
        return pages

    def _loaded(self) -> dict[int, dict[str, str]]:
        return self.load() if self._pages is None else self._pages

    def _entries(self) -> dict[str, str]:
        pages = self._loaded()
        with self._lock:
            return {key: identity for page in pages.values() for key, identity in page.items()}

    def get(self, key: str) -> str | None:
        """Return the identity of what was created; None: nothing was."""
        return self._entries().get(key)

    def keys(self) -> set[str]:
        """Return the keys of all that was created."""
        return {key for key in self._entries() if not key.startswith((_LOGIN, _WAIT))}

    def waits(self) -> dict[str, int]:
        """Return key of a resource → how many seconds `create` waited for it."""
        entries = self._entries().items()
        return {key.removeprefix(_WAIT): int(s) for key, s in entries if key.startswith(_WAIT)}

    def put_wait(self, key: str, seconds: float) -> None:
        self.put(_WAIT + key, f"{seconds:.0f}")

    def login_state(self, key: str, login: ClientLogin) -> str:
        """Return which login was sent for a resource: :data:`CURRENT`, or what to show instead.
        Without its secret, as in a plan by CI, nothing differs.
        """
        sent = self.get(_LOGIN + key)
        if not login.secret.get_secret_value() or sent == login.fingerprint:
            return CURRENT
        return UNKNOWN if sent is None else EARLIER

    def put_login(self, key: str, login: ClientLogin) -> None:
        """Record that the vendor has this login; it is kept when this returns."""
        self.put(_LOGIN + key, login.fingerprint)

    def put(self, key: str, identity: str) -> None:
        """It is kept when this returns."""
        if self.get(key) == identity:
            return
        pages = self._loaded()
        with self._lock:
            number = self._number(pages, key, identity)
            pages.setdefault(number, {})[key] = identity
            self._changed.add(number)
        self._write()

    def drop(self, key: str) -> None:
        """Drop all that is recorded of a resource."""
        pages, entries = self._loaded(), {key, _LOGIN + key, _WAIT + key}
        with self._lock:
            holding = {number for number, page in pages.items() if entries & page.keys()}
            for number in holding:
                for entry in entries:
                    pages[number].pop(entry, None)
            self._changed |= holding
        if holding:
            self._write()

    @staticmethod
    def _number(pages: dict[int, dict[str, str]], key: str, identity: str) -> int:
        """Return the page that has the key, or the first one with room for it."""
        length = len(json.dumps({key: identity}))
        with_key = (number for number, page in pages.items() if key in page)
        with_room = (
            number
            for number, page in sorted(pages.items())
            if len(json.dumps(page)) + length <= PAGE_CHARACTERS
        )
        unused = (number for number in range(len(pages) + 1) if number not in pages)
        return next(chain(with_key, with_room, unused))

    def _write(self) -> None:
        """Write what changed, also what other threads changed meanwhile: one request for all."""
        with self._writing:
            pages = self._loaded()
            with self._lock:
                texts = {number: json.dumps(pages[number]) for number in self._changed}
                self._changed = set()
            try:
                for number, text in texts.items():
                    if text == "{}":
                        self._kept.delete(number)
                    else:
                        self._kept.write(number, text)
            except Exception:
                with self._lock:
                    self._changed |= texts.keys()
                raise
