"""Schemas of other subjects that a topic's records name.

A producer may write any bytes as a schema id or a GUID, so the cache is bounded. What the registry
does not have is looked up again after :data:`MISSING_SECONDS`: it may be registered later.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from topicberg.errors import TableflowError
from topicberg.formats.framing import id_of
from topicberg.formats.subjects import DEFAULT_CONTEXT, RegisteredSchema, SchemaReader

MAX_SCHEMAS = 1_000
"""The most schemas, and the most missing ids, that are cached."""
MAX_CHARACTERS = 64 * 1024 * 1024
"""Total size of the cached schemas."""
MAX_LOOKUPS = 1_000
"""Ids that are looked up for one batch."""
MISSING_SECONDS = 20.0


class ForeignSchemas:
    """Schemas of the registry for ids that records name and their subjects do not have."""

    def __init__(
        self,
        subjects: SchemaReader,
        context: str = DEFAULT_CONTEXT,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param context: of the registry, which has ids of its own"""
        self._subjects = subjects
        self._context = context
        self._now = now
        self.schemas: OrderedDict[int, RegisteredSchema] = OrderedDict()
        """The schemas found in the registry, by id."""
        self._missing: OrderedDict[int | UUID, tuple[str, float]] = OrderedDict()
        self._lookups = 0

    @property
    def missing(self) -> Mapping[int | UUID, str]:
        """What the registry recently did not have, or had only in part, and why."""
        now = self._now()
        return {number: why for number, (why, until) in self._missing.items() if now < until}

    @property
    def guids(self) -> dict[UUID, int]:
        """The GUIDs that are known, and their ids."""
        return self._subjects.guids(self._context)

    def begin_batch(self) -> None:
        """Allow :data:`MAX_LOOKUPS` lookups again."""
        self._lookups = 0

    def look_up(self, named: Iterable[int | UUID]) -> bool:
        """Look up schemas in the registry; return whether one was found that was not known.

        :param named: ids and GUIDs
        :raises TopicbergError: the registry does not answer
        """
        missing, guids = self.missing, self.guids
        new = [
            reference
            for reference in named
            if reference not in missing and id_of(reference, guids) not in self.schemas
        ]
        new = new[: MAX_LOOKUPS - self._lookups]
        self._lookups += len(new)
        answers = [
            self._look_up_guid(reference)
            if isinstance(reference, UUID)
            else self._look_up(reference)
            for reference in new
        ]
        return any(answers)

    @property
    def _unknown(self) -> str:
        is_named = self._context.startswith(DEFAULT_CONTEXT) and self._context != DEFAULT_CONTEXT
        inside = f" in the context {self._context}" if is_named else ""
        return f"which {self._subjects.name} does not have{inside}"

    def _look_up_guid(self, guid: UUID) -> bool:
        try:
            number, why = self._subjects.id_of(guid, self._context), self._unknown
        except TableflowError as error:
            number, why = None, f"which cannot be read: {error.message}"
        if number is None:
            self._missing[guid] = why, self._now() + MISSING_SECONDS
            return False
        if number in self.schemas or self._look_up(number):
            return True
        self._missing[guid] = self._missing[number]
        return False

    def _look_up(self, number: int) -> bool:
        try:
            schema = self._subjects.by_id(number, self._context)
            why = self._unknown
        except TableflowError as error:  # due to this schema, e.g. a missing reference
            schema, why = None, f"which cannot be read: {error.message}"
        if schema is not None:
            self.schemas[number] = schema
            self._missing.pop(number, None)
        else:
            self._missing[number] = why, self._now() + MISSING_SECONDS
        for kept in (self.schemas, self._missing):
            while len(kept) > MAX_SCHEMAS:
                kept.popitem(last=False)
        while sum(stored.size for stored in self.schemas.values()) > MAX_CHARACTERS:
            self.schemas.popitem(last=False)
        return schema is not None
