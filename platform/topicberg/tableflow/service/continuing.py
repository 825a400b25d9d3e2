"""Let a table go on with another log: compare its end with that log, and record the decision."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import yaml
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from topicberg.endpoints import Endpoints
from topicberg.errors import SpecError, TopicbergError
from topicberg.errors.retry import retry
from topicberg.iceberg import summaries
from topicberg.iceberg.change import SnapshotChange
from topicberg.iceberg.commits import set_ref
from topicberg.iceberg.hours import SUMMARY as HOURS
from topicberg.kafka import consumer
from topicberg.kafka import topics as kafka
from topicberg.kafka.last_records import dump_last_records
from topicberg.kafka.offsets import Offsets, dump_offsets, parse_offsets
from topicberg.tableflow.changelog.fold_state import STATE, FoldState
from topicberg.tableflow.rejected.waiting import Waiting
from topicberg.tableflow.service.log_check import shown_time
from topicberg.tableflow.service.log_comparison import LogComparison, Position, table_state
from topicberg.tableflow.upsert.tombstones import CURRENT_OFFSETS, DeleteWatch
from topicberg.tableflow.values import logs, skips
from topicberg.topics import TopicSpec
from topicberg.wording import listed

COLUMNS = ("partition", "table", "log", "continues at", "lost", "repeats", "compared")
ATTEMPTS = 10


@dataclass(frozen=True)
class Comparison(LogComparison):
    """A table and the log of its topic."""

    positions: dict[int, Position]

    @property
    def missing(self) -> list[int]:
        """The partitions that the table has, and the topic has not."""
        return sorted(self.state.offsets.keys() - self.log.end.keys())

    @property
    def is_same(self) -> bool:
        """Whether the table continues by itself."""
        return not self.missing and all(found.is_same for found in self.positions.values())

    @property
    def proposed(self) -> Offsets | None:
        """Where the table continues with all that the log has, once; None: that is not proved."""
        is_proved = all(found.is_proved for found in self.positions.values())
        starts = {p: found.at for p, found in self.positions.items()}
        return starts if is_proved and not self.missing else None

    def choose(self, since: str | None) -> tuple[Offsets | None, str]:
        """Return where the table continues, and what that is; None: a user has to say it.

        :param since: ``beginning``, ``end``, a time, or a file with offsets; None: as proposed
        :raises SpecError: it is none of these, or the log has no such offset
        """
        log = self.log
        if since is None:
            return self.proposed, "after the table's last records"
        if since in ("beginning", "end"):
            return dict(getattr(log, since)), f"from the {since} of the log"
        if (path := Path(since)).is_file():
            try:
                offsets = parse_offsets(json.dumps(yaml.safe_load(path.read_text())))
            except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError):
                offsets = {}
            in_log = all(
                log.beginning[p] <= offsets.get(p, -1) <= end for p, end in log.end.items()
            )
            if in_log and offsets.keys() == log.end.keys():
                return offsets, f"from the offsets in {path.name}"
            ranges = [f"{p}: {log.beginning[p]} to {end}" for p, end in log.end.items()]
            raise SpecError(
                f"{path} does not have an offset of the log for each partition",
                hint=f"write them as YAML or JSON; the log has {listed(ranges, 5)}",
            )
        try:
            moment = datetime.fromisoformat(since)
        except ValueError:
            raise SpecError(
                f"topic {self.spec.name}: {since!r} is neither a time nor a file",
                hint="give `beginning`, `end`, a time such as 2026-01-31T12:00:05Z, or a YAML or "
                "JSON file that has the first offset of each partition",
            ) from None
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)
        time_ms = max(0, int(moment.timestamp() * 1000))
        first = kafka.offsets_at(self.endpoints, self.spec.name, time_ms)
        starts = {p: end if first.get(p, -1) < 0 else first[p] for p, end in log.end.items()}
        return starts, f"from {moment.isoformat()} on"

    def described(self, starts: Offsets) -> Iterator[tuple[str, ...]]:
        """Yield what :data:`COLUMNS` has of each partition; ``starts``: if they are chosen."""
        times = consumer.first_times(self.endpoints, self.spec.name, starts)
        for p, position in self.positions.items():
            table, counts = f"to {self.state.offsets.get(p, 0)}", ["", "", ""]
            if (record := self.state.last_records.get(p)) is not None:
                table += f", {shown_time(record.time_ms)}"
            if (start := starts.get(p)) is not None:
                counts[0] = f"{start}, {shown_time(times[p])}" if p in times else str(start)
                lost = position.deleted + max(0, start - position.at)
                prefix = "" if position.is_proved else "about "
                counts[1:] = f"{prefix}{lost:,}", f"{prefix}{max(0, position.at - start):,}"
            log = f"{self.log.beginning[p]} to {self.log.end[p]}"
            yield str(p), table, log, *counts, position.why

    def warnings(self, starts: Offsets) -> Iterator[str]:
        """Yield what the counts of :meth:`described` do not show."""
        spec, positions, missing = self.spec, self.positions, [*map(str, self.missing)]
        if missing:
            yield f"the topic lacks partitions {listed(missing, 5)}: what they had later is lost"
        if self.proposed is None:
            yield (
                "that the log continues after the table's end is not proved: records that the "
                "former log had after it may be lost, and counts are by time or offset"
            )
        if spec.write_mode == "upsert":
            yield "rows of records that the log lacks stay, until their keys have later ones"
        is_moved = bool(missing) or len(positions) > len(self.state.offsets)
        if is_moved and spec.write_mode == "upsert" and not (spec.changelog or spec.key.has_schema):
            yield (
                "a key has a row in each partition where it was: run `topicberg tableflow reread "
                f"{spec.name}` once the table has read all, to delete those that the topic lacks"
            )
        if not starts or any(
            start < positions[p].at or not positions[p].is_proved for p, start in starts.items()
        ):
            if spec.write_mode == "append":
                yield "a record that repeats is another row"
            if self.has_forgotten:
                yield "records that repeat may be of keys that were forgotten: forget these again"

    def go_on(self, starts: Offsets, decision: str) -> None:
        """Let the table go on with the log, in one commit: an empty snapshot that begins that log.

        :raises TopicbergError: the table or the log has changed since the comparison
        """
        changed = TopicbergError(
            f"topic {self.spec.name}: its table or its log has changed since they were compared",
            hint="run the command again; nothing was changed",
        )
        retry(partial(self._commit, starts, decision, changed), ATTEMPTS, exhausted=changed)

    def _commit(self, starts: Offsets, decision: str, changed: TopicbergError) -> None:
        table, before, now_ms = self.table.refresh(), self.log, int(time.time() * 1000)
        last = consumer.last_before(self.endpoints, self.spec.name, starts, before.beginning)
        log = kafka.topic_log(self.endpoints, self.spec.name)
        state, newest, is_known = table_state(self.spec, table, self.endpoints, log)
        is_there = all(log.beginning.get(p, offset + 1) <= offset for p, offset in starts.items())
        is_same_log = (log.topic_id, log.epochs) == (before.topic_id, before.epochs)
        if state != self.state or not is_there or not is_same_log:
            raise changed
        decisions = logs.decisions(table)
        number = 1 + max([state.log, *(ended.next for ended in decisions)])
        ended = logs.EndedLog(
            log=state.log,
            next=number,
            topic_id=state.topic_id,
            ends=state.offsets,
            at_ms=now_ms,
            by=skips.current_user(),
            decision=decision,
        )
        recorded = {
            key: value
            for key, value in (summaries.summary(newest) if newest else {}).items()
            if key.startswith(summaries.OWN) and key not in (HOURS, STATE)
        }
        if summaries.CURRENT_AT_MS in recorded:  # how old the table is does not depend on its log
            recorded |= DeleteWatch(lambda: None, table, state, now_ms).noted({})
        properties = {logs.LOGS: logs.dump([*decisions, ended])}
        if STATE in table.properties:
            fold = FoldState.of(table, newest)
            if not is_known:
                line = {snapshot.snapshot_id for snapshot in summaries.ancestry(table)}
                fold = FoldState.load(table.properties).rolled_back(line)
            is_proved = self.proposed == starts
            fold = fold.continued(number, state.offsets, starts, is_proved=is_proved)
            recorded |= fold.noted()
            properties[STATE] = fold.model_dump_json()
        skipped = int(table.properties.get(summaries.ROWS_SKIPPED, 0))
        waiting = Waiting.load(table) if is_known else Waiting(unrecorded=skipped)
        if waiting.start or not is_known:  # the next log has other offsets
            recorded |= waiting.write(table)
        recorded |= {
            summaries.LOG: str(number),
            summaries.TOPIC_ID: log.topic_id,
            summaries.END_OFFSETS: dump_offsets(starts),
            summaries.LAST_RECORDS: dump_last_records(last, starts),
        }
        change = SnapshotChange(table, Operation.APPEND, properties=recorded)
        change.time = self.spec.event_time
        failing = [key for key in table.properties if key.startswith(skips.FAILING)]
        dropped = [logs.OTHER_LOG, CURRENT_OFFSETS, summaries.CURRENT_AT_MS, *failing]
        tag = set_ref(summaries.CHECKPOINT_TAG, change.snapshot_id)
        change.commit(properties, dropped, [tag])


def compare(
    spec: TopicSpec, table: Table, endpoints: Endpoints, report: Callable[[int], None]
) -> Comparison:
    """Compare what a table has with the log of its topic.

    :param report: called while the log is searched, with how many offsets were searched
    :raises TopicbergError: Kafka does not answer, or the topic does not exist
    """
    log = kafka.topic_log(endpoints, spec.name)
    state, _, is_known = table_state(spec, table, endpoints, log)
    ends = LogComparison(spec, table, endpoints, state, log)
    positions = ends.find(report) if is_known else {p: ends.of_rows(p) for p in log.end}
    return Comparison(spec, table, endpoints, state, log, positions)
