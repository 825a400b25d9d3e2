"""Let the tables of a topic read what Kafka holds now: then no later batch brings a row back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.iceberg.tables import find_table
from topicberg.kafka import topics as kafka
from topicberg.kafka.offsets import Offsets
from topicberg.settings import Settings
from topicberg.tableflow.erasure.rows import ErasureTarget
from topicberg.tableflow.erasure.steps import READERS_SECONDS
from topicberg.tableflow.service import engine, history, turns
from topicberg.tableflow.service.wait import POLL_SECONDS, noted_offsets, wait_for
from topicberg.topics import TopicSpec
from topicberg.topics.deadletters import dead_letter_spec

PATIENCE_SECONDS = 30.0  # How much longer than its commit interval the engine may be silent.


@dataclass(frozen=True)
class Uncovered:
    """Records that no table holds yet: if the key is among them, it comes back."""

    topic: str
    table: str
    first: Offsets  # By partition: the first offset that the table does not hold.
    reason: str


@dataclass(frozen=True)
class CatchUp:
    """Tables that read topics, by the running engine or by one in this process."""

    spec: TopicSpec
    targets: Sequence[ErasureTarget]
    endpoints: Endpoints
    config: Settings

    def unread(self) -> list[Uncovered]:
        """Return the records that the tables do not hold yet."""
        return [
            Uncovered(target.topic, target.name, first, "they are not read yet")
            for target in self.targets
            if target.topic is not None and (first := self._unread(target, target.topic))
        ]

    def drain(self, *, enabled: bool, patience: float | None = None) -> list[Uncovered]:
        """Let the tables read what their topics hold now; return what they cannot read.

        :param enabled: whether the engine materializes the topic
        :param patience: seconds without progress of a running engine after which this process
            reads; default: by the commit interval
        :raises TopicbergError: a batch that began earlier does not end
        """
        uncovered = []
        for target in self.targets:
            topic = target.topic
            if topic is None or not (first := self._unread(target, topic)):
                continue
            if not enabled:
                uncovered.append(Uncovered(topic, target.name, first, "Tableflow is disabled"))
                continue
            try:
                self._read(target, patience)
            except TopicbergError as error:
                if first := self._unread(target, topic):
                    uncovered.append(Uncovered(topic, target.name, first, error.message))
        # Batches with records that the tables have by now end: their files are deleted then.
        for target in self.targets:
            if target.topic is not None and not turns.wait_for_turns(
                self.config, target.name, READERS_SECONDS
            ):
                raise TopicbergError(
                    f"table {target.name}: an engine has been writing a batch for "
                    f"{READERS_SECONDS:.0f} s, and its files may hold the key",
                    hint=f"run `topicberg tableflow status {target.topic}` to see what it does, "
                    "and run the command again",
                )
        return uncovered

    @cached_property
    def _catalog(self) -> Catalog:
        return self.endpoints.catalog(self.config)

    def _table(self, target: ErasureTarget) -> Table | None:
        return find_table(self._catalog, target.identifier)

    def _unread(self, target: ErasureTarget, topic: str) -> Offsets:
        """Return partition → the first offset that the table does not hold, of those it lacks."""
        table = self._table(target)
        try:
            log = kafka.topic_log(self.endpoints, topic)
        except kafka.NoSuchTopicError:
            return {}
        noted = noted_offsets(table, log.topic_id) if table is not None else {}
        # An offset behind the end is one of another log.
        known = {p: offset for p, offset in noted.items() if offset <= log.end.get(p, 0)}
        first = {p: known.get(p, log.beginning.get(p, 0)) for p in log.end}
        return {p: offset for p, offset in first.items() if offset < log.end[p]}

    def _read(self, target: ErasureTarget, patience: float | None) -> None:
        if target.identifier == history.history_table(self.spec):
            history.ingest_history(self.spec, self.endpoints, self.config)
            return
        spec = dead_letter_spec(self.spec) if target.is_dead_letters else self.spec
        if patience is None:
            patience = spec.tableflow.commit_interval_seconds + PATIENCE_SECONDS
        log = kafka.topic_log(self.endpoints, spec.name)
        deadline = time.monotonic() + patience
        # The running engine may be about to create the table.
        while (table := self._table(target)) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        of_topic = partial(noted_offsets, topic_id=log.topic_id)
        if table is None or not wait_for(table, log.end, patience, offsets_of=of_topic):
            engine.run_once(spec, self.endpoints, self.config)
