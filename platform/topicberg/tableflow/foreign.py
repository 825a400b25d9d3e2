"""Schemas of other subjects that a topic's records name.

A producer may write any four bytes as a schema id, so the cache is bounded. An id that the registry
does not have is looked up again after :data:`MISSING_SECONDS`: it may be registered later.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from topicberg.errors import TableflowError
from topicberg.formats.subjects import RegisteredSchema, SubjectReader

MAX_SCHEMAS = 1_000
"""The most schemas, and the most missing ids, that are cached."""
MAX_CHARACTERS = 64 * 1024 * 1024
"""Total size of the cached schemas."""
MAX_LOOKUPS = 1_000
"""Ids that are looked up for one batch."""
MISSING_SECONDS = 20.0


class ForeignSchemas:
    """Schemas of the registry for ids that records name and their subjects do not have."""

    def __init__(self, subjects: SubjectReader, now: Callable[[], float] = time.monotonic) -> None:
        self._subjects = subjects
        self._now = now
        self.schemas: OrderedDict[int, RegisteredSchema] = OrderedDict()
        """The schemas found in the registry, by id."""
        self._missing: OrderedDict[int, tuple[str, float]] = OrderedDict()
        self._lookups = 0

    @property
    def missing(self) -> Mapping[int, str]:
        """Ids that the registry recently did not have, or had only in part, and why."""
        now = self._now()
        return {number: why for number, (why, until) in self._missing.items() if now < until}

    def begin_batch(self) -> None:
        """Allow :data:`MAX_LOOKUPS` lookups again."""
        self._lookups = 0

    def look_up(self, schema_ids: Iterable[int]) -> bool:
        """Look up schemas in the registry; return whether one was found that was not known.

        :raises TopicbergError: the registry does not answer
        """
        missing = self.missing
        new = [one for one in schema_ids if one not in self.schemas and one not in missing]
        new = new[: MAX_LOOKUPS - self._lookups]
        self._lookups += len(new)
        found = [self._look_up(number) for number in new]
        return any(found)

    def _look_up(self, number: int) -> bool:
        try:
            schema = self._subjects.by_id(number)
            why = "which the schema registry does not have"
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
        while sum(one.size for one in self.schemas.values()) > MAX_CHARACTERS:
            self.schemas.popitem(last=False)
        return schema is not None
