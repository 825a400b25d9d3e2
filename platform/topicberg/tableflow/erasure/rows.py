"""The rows of a key: which tables may hold some, and how to recognize them in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, NestedField

from topicberg.endpoints import Endpoints
from topicberg.endpoints.schemas import schema_readers
from topicberg.errors import SpecError, TableflowError
from topicberg.formats import framing, metadata
from topicberg.iceberg.tables import find_table
from topicberg.settings import Settings
from topicberg.tableflow.erasure.key import Key, described
from topicberg.tableflow.erasure.locations import file_batches
from topicberg.tableflow.erasure.matching import Condition, Rows, find_column
from topicberg.tableflow.erasure.records import KafkaKey, Matching, matching_keys
from topicberg.tableflow.layout.layout import read_layout, table_schema
from topicberg.tableflow.layout.message_fields import KEY
from topicberg.tableflow.layout.upsert_key import held_key
from topicberg.tableflow.layout.waiting import changed_identity
from topicberg.tableflow.service.history import history_table
from topicberg.topics import TopicSpec
from topicberg.topics.deadletters import dead_letter_spec
from topicberg.wording import suggestion

_SOURCE = "source_record"
_DEAD_TOPIC, _DEAD_KEY = (_SOURCE, "topic"), (_SOURCE, KEY)


@dataclass(frozen=True)
class ErasureTarget:
    """A table that may hold rows of the key."""

    identifier: tuple[str, str]
    description: str
    time: str | None  # The event time, by whose hours other tables are derived from this one.
    names: Mapping[str, str] = field(default_factory=dict)
    """Column of the key → column of this table, ``a.b`` in a struct."""
    chosen: tuple[Mapping[str, str], ...] = ()  # The same, for other columns that the user names.
    spec: TopicSpec | None = None  # The topic's own table, which the engine writes.
    is_dead_letters: bool = False
    topic: str | None = None  # The topic that is read into it.

    @property
    def name(self) -> str:
        return ".".join(self.identifier)


@dataclass
class KeyRows:
    """A key of a topic, or a value of a column of its table, and how tables hold it."""

    spec: TopicSpec
    key: Key
    catalog: Catalog
    where: str | None = None  # The column of which ``key`` is a value; None: it is the topic's key.
    is_raw: bool = False  # Whether the key has no schema, so that it is the raw key.
    is_shadowed: bool = False  # Whether a field of the value has the name of the keys' column.
    matching: Matching = lambda _: set()
    """Returns which of some keys in Kafka are the key; none, for a value of a column."""
    raw_keys: set[bytes] = field(default_factory=set)
    """Raw keys that were found to be the key: in Kafka, and in dead letters."""

    @classmethod
    def parse(
        cls,
        spec: TopicSpec,
        text: str,
        endpoints: Endpoints,
        config: Settings,
        where: str | None = None,
    ) -> KeyRows:
        """Return the rows of the key that a text means.

        :param spec: with the settings of later requests, as the engine uses it
        :param text: the key, as a user writes it; or the value of ``where``
        :param where: a column of the topic's table, by whose value rows are forgotten
        :raises SpecError: the text is not a key of the topic, or no column has the keys
        """
        catalog = endpoints.catalog(config)
        layout = read_layout(spec, schema_readers(endpoints, config), config)
        if where is not None:
            table = find_table(catalog, spec.table_identifier(config))
            schema = table_schema(spec, layout) if table is None else table.schema()
            return cls(spec, _value_of(where, spec, schema, text), catalog, where)
        key = Key.parse(spec.name, layout.key.fields(), text)
        is_raw = layout.key.subject is None
        is_shadowed = is_raw and KEY in {each.name for each in layout.value.fields()}
        matching = matching_keys(spec, layout, key, endpoints)
        return cls(spec, key, catalog, is_raw=is_raw, is_shadowed=is_shadowed, matching=matching)

    def of_table(self, target: ErasureTarget) -> tuple[Table, Rows] | None:
        """Return a table and its rows of the key; None: it does not exist, or cannot hold it.

        :raises SpecError: nothing says which of its columns has the keys
        :raises TableflowError: such a column was dropped or renamed
        """
        if (table := find_table(self.catalog, target.identifier)) is None:
            return None
        schema = table.schema()
        if target.is_dead_letters:
            conditions = self._in_dead_letters(table)
        else:
            if target.spec is not None and self.where is None:
                _check_columns(table, target, self.spec.metadata_column(metadata.RAW_KEY))
            conditions = self._in_columns(target, schema)
        return (table, Rows(schema, conditions)) if conditions else None

    def condition(self, schema: Schema, names: Mapping[str, str]) -> Condition | None:
        """Return which rows of a table have the key in some columns; None: it lacks one of them.

        :param names: column of the key → column of the table
        :raises SpecError: a column is of a type that the key's value is not
        """
        columns = {name: find_column(schema, text) for name, text in names.items()}
        if not columns or None in columns.values():
            return None
        known = ((name, *column) for name, column in columns.items() if column is not None)
        return {path: (self.key.value(name, kind),) for name, path, kind in known}

    def _in_columns(self, target: ErasureTarget, schema: Schema) -> tuple[Condition, ...]:
        conditions = [self.condition(schema, names) for names in target.chosen]
        raws = self.raw_keys | ({self.key.raw()} if self.is_raw else set())
        raw_key = self.spec.metadata_column(metadata.RAW_KEY)
        if raws and raw_key in schema.column_names:
            # Keys with a schema are held whole, of others long ones as their digest.
            conditions.append({(raw_key,): sorted({*raws, *map(held_key, raws)})})
        if not self.is_shadowed:
            conditions.append(self.condition(schema, target.names))
        if not any(conditions):
            raise SpecError(
                f"table {target.name} has no column with the keys of topic {self.spec.name}: "
                f"{described(self.key.fields)}",
                hint="the value has a field of that name, so rows of a key cannot be found",
            )
        return tuple(filter(None, conditions))

    def _in_dead_letters(self, table: Table) -> tuple[Condition, ...]:
        """Return which dead letters are records of the key; nothing if there are none."""
        column = find_column(table.schema(), f"{_SOURCE}.{KEY}")
        if column is None or not isinstance(column[1], BinaryType):
            return ()  # another writer's table
        known = {
            KafkaKey(bytes(source[KEY]), framing.header_of(KEY, source["headers"] or ()))
            for _, batch in file_batches(table, [_SOURCE])
            if _SOURCE in batch.schema.names
            for source in batch.column(_SOURCE).to_pylist()
            if source and source["topic"] == self.spec.name and source[KEY] is not None
        }
        # They are kept: the proof looks for them after the erasure.
        self.raw_keys |= {key.raw for key in self.matching(known)}
        condition: Condition = {_DEAD_TOPIC: (self.spec.name,), _DEAD_KEY: sorted(self.raw_keys)}
        return (condition,) if self.raw_keys else ()


def topic_targets(
    spec: TopicSpec, config: Settings, key: Key, where: str | None = None
) -> list[ErasureTarget]:
    """Return the tables of a topic, its own first; dead letters have no column ``where``."""
    dead, own = dead_letter_spec(spec), {field.name: field.name for field in key.fields}
    table, time = spec.table_identifier(config), spec.event_time
    of_history = spec.name if spec.history else None
    targets = [
        ErasureTarget(table, "the topic's table", time, own, spec=spec, topic=spec.name),
        ErasureTarget(history_table(spec), "its history", time, own, topic=of_history),
    ]
    if dead.name != spec.name and where is None:
        topic = dead.name if spec.tableflow.error_handling.mode == "LOG" else None
        table, time = dead.table_identifier(config), dead.event_time
        letters = ErasureTarget(table, "dead letters", time, is_dead_letters=True, topic=topic)
        targets.append(letters)
    return targets


def _check_columns(table: Table, target: ErasureTarget, raw_key: str) -> None:
    """:raises TableflowError: rows of before have the keys in other columns than later ones"""
    names = [*target.names.values(), raw_key]
    for name, new_name in changed_identity(table, names):
        change = "dropped" if new_name is None else f"renamed to {new_name}"
        other = "a column that the rows of before have" if new_name is None else f"also {new_name}"
        raise TableflowError(
            f"table {target.name}: its column {name}, which identifies rows, was {change}: the "
            "rows of before would not be found by their key",
            hint=f"erase by columns with `--where COLUMN=VALUE`: {name}, and {other}",
        )


def _value_of(column: str, spec: TopicSpec, schema: Schema, text: str) -> Key:
    """Return the value of a column of the topic's table, as a key of one column."""
    if (path_and_type := find_column(schema, column)) is None:
        raise SpecError(
            f"the table of topic {spec.name} has no column {column}"
            f"{suggestion(column, schema.column_names)}",
            hint=f"write --where COLUMN=VALUE with one of {', '.join(schema.column_names)}",
        )
    field = NestedField(1, column, path_and_type[1], required=False)
    return Key.parse(spec.name, [field], text, "--where")
