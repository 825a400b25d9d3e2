"""What a format is: the functions of its module, and what they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyiceberg.types import NestedField

from topicberg.formats.columnar.program import ProgramCode, Slots
from topicberg.formats.subjects import RegisteredSchema

RecordDecoder = Callable[[bytes], dict[str, Any]]
"""Decodes a record without its framing to its stored values, by column; a missing column is null.

A stored value is what the column's buffer has: ``bool``; ``int`` for integers, decimals (unscaled,
in the column's scale), dates (days since 1970) and timestamps (microseconds since 1970); ``float``
(a float's rounded to 32 bits); ``str``; ``bytes``; a ``dict`` for a struct, by field; a ``list``
for a list, and for a map of pairs of key and value. It raises
:class:`~topicberg.formats.reasons.MalformedError` with the reason if the record is malformed.
"""


@dataclass(frozen=True, eq=False)
class ResolvedSchema:
    """A writer's schema, and the table that its records become rows of.

    ``latest``: the subject's newest schema, which gives renamed fields and defaults. ``fields``:
    the table's columns, also those that come from elsewhere. ``message``: Protobuf only: the
    message type; None: the file's first one.

    As a key of a cache, it is equal to another one of the same object of columns: comparing columns
    takes longer than explaining a record.
    """

    writer: RegisteredSchema
    latest: RegisteredSchema
    fields: Sequence[NestedField]
    message: str | None = None

    @property
    def _key(self) -> tuple[object, ...]:
        return self.writer, self.latest, id(self.fields), self.message

    def __hash__(self) -> int:
        # Each malformed record needs it; hashing whole schemas takes longer.
        return hash((self.writer.schema_id, self.latest.schema_id, id(self.fields), self.message))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResolvedSchema) and other._key == self._key


class Format(Protocol):
    """The functions of a format's module.

    They raise :class:`TableflowError` if a schema cannot be read, or does not fit the table.
    """

    def fields(
        self, where: str, schema: RegisteredSchema, ids: Iterator[int], message: str | None = None
    ) -> list[NestedField]:
        """Return the columns of a schema in its order, every one optional, with ids from ``ids``.

        :param where: the subject, schema or file, for errors
        :param message: Protobuf only: the message type; None: the file's first one
        :raises TableflowError: it cannot become a table (no record, recursive, a missing reference)
        """

    def identity(self, schema: RegisteredSchema, message: str | None = None) -> str | None:
        """Return the name by which two schemas are of the same type, or None if the type has none.

        Avro: the full name of the record. JSON Schema: ``title``, else ``$id``. Protobuf: the full
        name of the message. A schema of another subject is accepted only if it has the identity of
        the subject's latest schema.
        """

    def is_union(self, schema: RegisteredSchema) -> bool:
        """Return whether it is a choice of several event types, which has no single table."""

    def as_record(self, schema: RegisteredSchema, name: str) -> RegisteredSchema:
        """Return a key's schema that is not a record as a record with one field of this name.

        Only the top of the schema decides whether it is a record, as in ``{"$ref": …}``: the
        columns of tables depend on it.
        """

    def check_file(self, where: str, schema: RegisteredSchema) -> None:
        """Refuse a schema file for a reason that :meth:`fields` does not have. Libraries of
        producers may refuse what could become a table, and specs say more of files."""

    def written(
        self, writer: RegisteredSchema, latest: RegisteredSchema, message: str | None = None
    ) -> frozenset[str]:
        """Return the names of the columns that the writer's schema has a field for.

        A field that the latest schema renames (Avro: by an alias, Protobuf: by its number) counts
        under the latest name.
        """

    def filled(self, resolved_schema: ResolvedSchema) -> frozenset[str]:
        """Return the names of the table's columns into which the writer's records have values."""

    def program(self, code: ProgramCode, slots: Slots, resolved_schema: ResolvedSchema) -> None:
        """Append a program that decodes records as :meth:`record_decoder` does, in compiled code.

        It may refuse any record: the reference decoder then reads it.

        :param slots: where the values of the columns go, by name
        :raises NotCoveredError: there is none
        """

    def record_decoder(self, resolved_schema: ResolvedSchema) -> RecordDecoder:
        """Return the reference decoder: what a record of the writer is, in plain Python.

        At every depth, a field that the writer's schema lacks has the latest schema's default where
        the format gives one to readers, else null; a field that the latest schema dropped keeps its
        column and its value. A value that its column cannot hold exactly is malformed.

        The same resolved schema gets the same decoder again.
        """
