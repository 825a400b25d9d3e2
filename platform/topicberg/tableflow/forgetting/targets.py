"""The tables that may hold rows of a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topicberg.settings import Settings
from topicberg.tableflow.forgetting.key import Key
from topicberg.tableflow.history import history_table
from topicberg.topics import TopicSpec
from topicberg.topics.deadletters import dead_letter_spec


@dataclass(frozen=True)
class ErasureTarget:
    """A table that may hold rows of the key."""

    identifier: tuple[str, str]
    description: str
    time: str | None
    """The event time, by whose hours other tables are derived from this one."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Column of the key → column of this table, ``a.b`` in a struct."""
    chosen: tuple[Mapping[str, str], ...] = ()
    """The same, for other columns that the user says hold the key."""
    spec: TopicSpec | None = None
    """The topic's own table, which the engine writes."""
    is_dead_letters: bool = False
    topic: str | None = None
    """The topic that is read into it."""

    @property
    def name(self) -> str:
        return ".".join(self.identifier)


def topic_targets(
    spec: TopicSpec, config: Settings, key: Key, where: str | None = None
) -> list[ErasureTarget]:
    """Return the tables of a topic, its own first; one that does not exist may read the key later.

    :param where: the column whose value ``key`` is: dead letters do not have it
    """
    dead, own = dead_letter_spec(spec), {field.name: field.name for field in key.fields}
    targets = [
        ErasureTarget(
            spec.table_identifier(config),
            "the topic's table",
            spec.event_time,
            own,
            spec=spec,
            topic=spec.name,
        ),
        ErasureTarget(
            history_table(spec),
            "its history",
            spec.event_time,
            own,
            topic=spec.name if spec.history else None,
        ),
    ]
    if dead.name != spec.name and where is None:
        logs = dead.name if spec.tableflow.error_handling.mode == "LOG" else None
        targets.append(
            ErasureTarget(
                dead.table_identifier(config),
                "dead letters",
                dead.event_time,
                is_dead_letters=True,
                topic=logs,
            )
        )
    return targets
