"""What ``deploy create`` has created, so that ``deploy delete`` deletes nothing else.

Names do not tell: a topic, a role or a user of that name may have existed before. So each resource
is recorded before it is created, and by its id once it exists. What has no record, or the record of
another id, is never deleted; whoever lost the records names what to delete all the same.

The record is in SSM Parameter Store, beside the lease, so that every machine has it. A parameter
takes 4,096 characters, so there are several; only the holder of the lease writes them. It also has
the fingerprints of the logins that were sent: :mod:`topicberg_deploy.logins`.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from topicberg.clients.aws import every
from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    from topicberg_deploy.context import DeployContext
    from topicberg_deploy.resource import Live, Resource

PAGE_CHARACTERS = 3500
"""Of a parameter, before another one begins: less than AWS takes, since an entry gets its id
later."""
BEGUN = ""
"""In place of the id of what may have been created."""
_LOGIN = "login of "
"""Begins the entry of the login that was sent for a resource."""


class Pages:
    """Where the record is kept: texts by their numbers, as parameters of AWS.

    :param client: boto3's ``ssm``
    """

    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path

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
            try:
                page = json.loads(text)
            except ValueError:
                page = None
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

    def get(self, key: str) -> str | None:
        """Return the identity of what was created; None: nothing was."""
        pages = self._loaded()
        with self._lock:
            return next((page[key] for page in pages.values() if key in page), None)

    def keys(self) -> set[str]:
        """Return the keys of all that was created."""
        pages = self._loaded()
        with self._lock:
            entries = {key for page in pages.values() for key in page}
        return {key for key in entries if not key.startswith(_LOGIN)}

    def login(self, key: str) -> str | None:
        """Return the fingerprint of the login that was sent for a resource; None: unknown."""
        return self.get(_LOGIN + key)

    def put_login(self, key: str, fingerprint: str) -> None:
        """It is kept when this returns."""
        self.put(_LOGIN + key, fingerprint)

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
        """Drop what is recorded of a resource, the login that was sent for it as well."""
        entries = [recorded for recorded in (key, _LOGIN + key) if self.get(recorded) is not None]
        if not entries:
            return
        pages = self._loaded()
        with self._lock:
            for number, page in pages.items():
                for entry in entries:
                    if page.pop(entry, None) is not None:
                        self._changed.add(number)
        self._write()

    @staticmethod
    def _number(pages: dict[int, dict[str, str]], key: str, identity: str) -> int:
        """Return the page that has the key, or the first one with room for it."""
        for number, page in sorted(pages.items()):
            if key in page:
                return number
        length = len(json.dumps({key: identity}))
        for number, page in sorted(pages.items()):
            if len(json.dumps(page)) + length <= PAGE_CHARACTERS:
                return number
        return next(number for number in range(len(pages) + 1) if number not in pages)

    def _write(self) -> None:
        """Write what changed, also what other threads changed meanwhile: one request for all."""
        with self._writing:
            pages = self._loaded()
            with self._lock:
                texts = {
                    page_number: json.dumps(pages[page_number])
                    for page_number in self._changed
                    if pages[page_number]
                }
                empty = self._changed - texts.keys()
                self._changed = set()
            try:
                for number, text in texts.items():
                    self._kept.write(number, text)
                for number in empty:
                    self._kept.delete(number)
            except Exception:
                with self._lock:
                    self._changed |= {*texts, *empty}
                raise


def identity(resource: Resource, context: DeployContext, live: Live) -> str:
    """Return which one it is, as far as vendors tell: its id, and those of what it is inside."""
    around = [context.live[key].id for key in resource.parents if key in context.live]
    return " ".join([*around, resource.lasting_id(live)])


def may_own(resource: Resource, context: DeployContext) -> bool:
    """Return whether ``deploy`` may have created a resource, before it is looked at."""
    inside = not context.ours.isdisjoint(resource.parents)
    return inside or resource.key in context.claimed or context.record.get(resource.key) is not None


def owns(resource: Resource, context: DeployContext, live: Live) -> bool:
    """Return whether ``deploy`` created a resource, or what it goes with; :attr:`~.ours` of the
    context then has it.
    """
    recorded = context.record.get(resource.key)
    created = recorded is not None and recorded in (BEGUN, identity(resource, context, live))
    inside = not context.ours.isdisjoint(resource.parents)
    if created or inside or resource.key in context.claimed:
        context.ours.add(resource.key)
        return True
    context.ours.discard(resource.key)
    return False
