"""What an earlier version left in a state directory: this version continues it, through kills.

See tests/data/upgrade/make.py for what is in it. The stack is one of its own: a state directory has
the ids of its topics and of its schemas.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from debezium import Source, SourceTopic
from kafka_topics import Topic
from project_copy import add_code
from pyiceberg.table import Table
from snapshot_daemon import Daemon, snapshot_daemon
from typer.testing import CliRunner
from upgrade_topics import (
    APPENDED,
    CHANGES,
    DERIVED,
    FORGETTING,
    STUCK,
    TOPICS,
    TRADES,
    UPSERTED,
    Record,
    Sender,
    UpgradeTopic,
    changes_document,
    later,
    trades,
)
from waiting import wait_until

from definitions import defs
from topicberg import kafka
from topicberg.checks import check
from topicberg.cli import app
from topicberg.endpoints import Endpoints
from topicberg.kafka.group import holders
from topicberg.orchestration.assets import Lake, find_derived
from topicberg.orchestration.jobs.pipelines import EVERYTHING
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.settings import settings
from topicberg.tableflow import commit
from topicberg.tableflow.control import enabled_topics
from topicberg.tableflow.erasure.catch_up import CatchUp
from topicberg.tableflow.erasure.forgetting import Forgetting
from topicberg.tableflow.erasure.records import write_tombstones
from topicberg.tableflow.erasure.rows import KeyRows, topic_targets
from topicberg.tableflow.history import ingest_history
from topicberg.tableflow.identity import engine_group
from topicberg.tableflow.status import TopicStatus, read_status
from topicberg.topics import TopicSpec, load_topic
from topicberg_local import stack as local_stack
from topicberg_local import state, supervisor

# tests/unit/local/test_earlier_state.py continues the same state without services.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800), pytest.mark.slow]

ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "upgrade" / "state.tar.xz"
EARLIER = "11d53e6"
"""The commit whose code made the archive."""
PATIENCE_SECONDS = 600
MORE_CHANGES = 20


@dataclass
class Upgraded:
    """A stack of this version, with the state of the earlier one."""

    endpoints: Endpoints
    folder: Path
    before: dict[str, TopicStatus]
    """The status of each topic, as this version reads what the earlier one wrote."""
    source: Source
    changes: int
    """The changes that the earlier version sent to each change log."""
    later: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """What was sent to each topic after the records of AFTER."""

    @property
    def sender(self) -> Sender:
        config = self.endpoints.kafka_config()
        return Sender(config, self.endpoints.schema_registry_client())

    def table(self, topic: str) -> Table:
        identifier = settings().cluster_id, topic
        return self.endpoints.catalog(settings()).load_table(identifier)

    def rows(self, topic: str, *columns: str) -> list[dict[str, Any]]:
        """Return columns of the rows; null: the table does not have the column yet."""
        found = self.table(topic).scan().to_arrow().to_pylist()
        return [{name: row.get(name) for name in columns} for row in found]

    def is_read(self, topic: str) -> bool:
        ends = kafka.end_offsets(self.endpoints, topic)
        held = commit.committed(self.table(topic)).offsets
        return all(held.get(partition, 0) >= end for partition, end in ends.items())

    def wait(self, *topics: str) -> None:
        """Wait until the tables have all that the topics have."""
        left = list(topics)

        def are_read() -> bool:
            left[:] = [name for name in left if not self.is_read(name)]
            return not left

        try:
            wait_until(are_read, PATIENCE_SECONDS)
        except AssertionError:
            raise AssertionError([(name, read_status(settings(), name)) for name in left]) from None

    def kill_engine(self) -> None:
        """Kill the engine; its supervisor starts it again."""
        services = {one.name: one for one in local_stack.status(settings())}
        if (pid := services["tableflow"].pid) is not None:
            psutil.Process(pid).kill()


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    folder = tmp_path_factory.mktemp("upgrade")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    add_code(folder / "project")
    known = json.loads((folder / "state" / "upgrade.json").read_text())
    source = Source(random.Random(40))
    source.rows = {row["id"]: row for row in known["rows"]}
    source.lsn = known["lsn"]
    source.change_key_schema()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICBERG_STATE_DIR", str(folder / "state"))
        patch.setenv("TOPICBERG_PROJECT_ROOT", str(folder / "project"))
        settings.cache_clear()
        names = [*(one.name for one in TOPICS), *CHANGES, TRADES]
        before = {name: read_status(settings(), name) for name in names}
        try:
            endpoints = local_stack.up(settings())
            yield Upgraded(endpoints, folder, before, source, known["changes"])
        finally:
            local_stack.down(settings())
    settings.cache_clear()


@pytest.fixture(scope="module")
def continued(upgraded: Upgraded) -> Upgraded:
    """After the engine was killed while it read what the earlier version left, and more records."""
    wait_until(lambda: _moved(upgraded), PATIENCE_SECONDS, 0.1)
    upgraded.kill_engine()
    sender = upgraded.sender
    for one in TOPICS:
        sender.send(one, one.after)
    schema = json.loads((settings().schemas_dir / "stock_trades.avsc").read_text())
    sender.send_trades(json.dumps(schema), trades(210, 30))
    _send_changes(upgraded)
    wait_until(lambda: upgraded.is_read(TOPICS[0].name), PATIENCE_SECONDS, 0.1)
    upgraded.kill_engine()
    upgraded.wait(*(one.name for one in TOPICS), TRADES)
    return upgraded


def _moved(upgraded: Upgraded) -> bool:
    """Return whether this version has committed a batch of any topic."""
    return any(
        commit.committed(upgraded.table(one.name)).offsets != upgraded.before[one.name].end_offsets
        for one in TOPICS
    )


def _send_changes(upgraded: Upgraded) -> None:
    """Change the source, and send the records of that to all change logs."""
    source, first = upgraded.source, len(upgraded.source.events)
    for _ in range(MORE_CHANGES):
        source.change()
    events = source.events[first:]
    upgraded.changes += sum(event.op is not None for event in events)
    for name in CHANGES:
        spec = TopicSpec.model_validate({"name": name, **changes_document(name)})
        SourceTopic(Topic(upgraded.endpoints, spec)).send(events)


def test_statuses_of_the_earlier_version_are_read(upgraded: Upgraded) -> None:
    for one in TOPICS:
        status = upgraded.before[one.name]
        sent = [record for batch in one.before for record in batch]
        assert status.snapshot_id is not None, one.name
        assert sum(status.end_offsets.values()) >= len(sent), one.name
        if one.mode != "SUSPEND":
            assert status.rows_skipped == one.malformed(sent), one.name
    assert upgraded.before[STUCK.name].shown_phase == "SUSPENDED"
    shown = CliRunner().invoke(app, ["tableflow", "status", "--json"])
    assert shown.exit_code == 0, shown.output
    assert {one.name for one in TOPICS} <= {each["topic"] for each in json.loads(shown.stdout)}


@pytest.mark.parametrize("topic", TOPICS, ids=lambda one: one.name)
def test_tables_are_continued(continued: Upgraded, topic: UpgradeTopic) -> None:
    """Every row once; a record or a tombstone replaces what the earlier version wrote."""
    _check_rows(continued, topic)
    records = [*topic.sent, *topic.after]
    version = topic.table.get("format_version", 2)
    assert continued.table(topic.name).metadata.format_version == version
    wait_until(lambda: _skipped(topic) == topic.malformed(records), 30)


def _check_rows(upgraded: Upgraded, topic: UpgradeTopic) -> None:
    expected = topic.rows([*topic.sent, *topic.after, *upgraded.later[topic.name]])
    if topic.name == "accounts_string_3":  # its key is being forgotten
        expected = [row for row in expected if row["id"] != FORGETTING]
    found = upgraded.rows(topic.name, "id", "note", "amount")
    assert sorted(found, key=lambda row: (row["id"], row["note"])) == expected, topic.name


def _skipped(topic: UpgradeTopic) -> int:
    return read_status(settings(), topic.name).rows_skipped


def test_rows_of_equal_keys_are_removed_once(continued: Upgraded) -> None:
    for one in UPSERTED:
        keys = read_status(settings(), one.name).keys
        if one.key_kind == "string":
            assert keys is None, one.name
        else:
            assert keys is not None
            assert (keys.rebuilt_at_ms is not None, keys.rows_removed) == (True, 2), one.name


def test_dead_letters_are_written_once(continued: Upgraded) -> None:
    continued.wait("error_log")
    letters = Counter(
        row["key"].decode().rsplit("-", 2)[0] for row in continued.rows("error_log", "key")
    )
    expected = {
        one.name: one.malformed([*one.sent, *one.after]) for one in APPENDED if one.mode == "LOG"
    }
    assert letters == expected


def test_requested_skip_is_done(continued: Upgraded) -> None:
    status = read_status(settings(), STUCK.name)
    assert not status.suspended
    assert [skip.reason for skip in status.skip_requests] == ["half a record"]


def test_history_is_continued(continued: Upgraded) -> None:
    """Every record of a compacted topic is in it, whichever version read it."""
    spec = enabled_topics(settings())["accounts_string_2"]
    table = ingest_history(spec, continued.endpoints, settings())
    assert table.scan().count() == sum(kafka.end_offsets(continued.endpoints, spec.name).values())


def test_erasure_that_was_killed_is_completed(continued: Upgraded) -> None:
    name, key = "accounts_string_3", f"user {FORGETTING}"
    spec, endpoints, config = enabled_topics(settings())[name], continued.endpoints, settings()
    key_rows = KeyRows.parse(spec, key, endpoints, config)
    targets = topic_targets(spec, config, key_rows.key)
    job = Forgetting(key_rows, targets, endpoints, config)
    assert CatchUp(spec, targets, endpoints, config).drain(enabled=True) == []
    assert write_tombstones(endpoints, job.records()) == 0
    erased = [job.erase(target).rows for target in targets]
    assert sum(erased) > 0
    for target in targets:
        job.prove(target)
    assert key.encode() not in {row["key"] for row in continued.rows(name, "key")}


def test_change_logs_are_continued(continued: Upgraded) -> None:
    """Values that the connector leaves out come from rows of the earlier version."""
    continued.wait(*CHANGES)
    _check_changes(continued)


def _check_changes(upgraded: Upgraded) -> None:
    current = sorted(upgraded.source.rows.values(), key=lambda row: row["id"])
    for name, (mode, _) in CHANGES.items():
        found = upgraded.rows(name, "id", "v", "big")
        if mode == "upsert":
            assert sorted(found, key=lambda row: row["id"]) == current, name
        else:
            assert len(found) == upgraded.changes


def test_sensor_continues_from_its_cursor(
    continued: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a later start of the partitions, the trades since belong to the first one, as all do.

    The run replaces the rows that the earlier version computed hour by hour.
    """
    monkeypatch.delenv("TOPICBERG_PROJECT_ROOT")
    settings.cache_clear()
    derived = tuple(one for one in find_derived() if one.name in DERIVED)
    lake = Lake(settings(), (load_topic(TRADES),), derived)
    folder = Path(os.environ["TOPICBERG_STATE_DIR"]) / "dagster-of-tests"
    with snapshot_daemon(snapshot_sensor(lake), folder) as daemon:
        daemon.cursor = (folder / "cursor.json").read_text()
        assert not daemon.cursor.startswith("{}")
        assert _behind(daemon, lake) == set(DERIVED)
        daemon.settle()
        tags = [run.dagster_run.tags for run in daemon.runs]
        starts = {each.get("dagster/asset_partition_range_start") for each in tags}
        assert starts - {None} == {"2026-11-01-00:00"}  # None: of registrations
        assert _behind(daemon, lake) == set()
    for one in derived:
        table = continued.endpoints.catalog(settings()).load_table(lake.table(one).identifier)
        columns = ("trade_timestamp", "total_price")
        found = [
            tuple(row[name] for name in columns) for row in table.scan().to_arrow().to_pylist()
        ]
        expected = [
            (datetime.fromtimestamp(at_ms / 1000, UTC), row["quantity"] * row["price"])
            for at_ms, row in trades(0, 240)
        ]
        assert sorted(found) == expected, one.name
    settings.cache_clear()


class Later(datetime):
    """The time of the checks: what was committed a moment ago is not excused as too young."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Later:
        return cls.fromtimestamp(time.time() + 7200, tz)


def _behind(daemon: Daemon, lake: Lake) -> set[str]:
    """Return the derived tables whose check ``up_to_date`` fails."""
    keys = {
        dg.AssetCheckKey(lake.table(derived).key("iceberg"), "up_to_date")
        for derived in lake.derived
    }
    job = defs.resolve_job_def(EVERYTHING)
    selected = job.get_subset(asset_selection=set(), asset_check_selection=keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "datetime", Later)
        ran = selected.execute_in_process(instance=daemon.instance, raise_on_error=False)
    evaluations = ran.get_asset_check_evaluations()
    assert len(evaluations) == len(keys)
    return {one.asset_key.path[-1] for one in evaluations if not one.passed}


# --- beside an engine of the earlier version, and back to it ---


@pytest.fixture(scope="module")
def earlier_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the earlier version."""
    folder = tmp_path_factory.mktemp("earlier")
    git = ["git", "-C", str(Path(__file__).parents[2]), "archive", "--format=tar", EARLIER]
    done = subprocess.run(git, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the clone has no commit {EARLIER}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@contextmanager
def _earlier_engine(code: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An engine of the earlier version, with the same state directory."""
    paths = os.pathsep.join(str(path) for path in (code / "platform", code))
    command = (
        f"import topicberg.settings as s; assert str(s.PROJECT_ROOT) == {str(code)!r};"
        "from topicberg.tableflow.service import main; main(None)"
    )
    with (settings().state_dir / "earlier-engine.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONPATH": paths, "TOPICBERG_DEPLOYMENT": "local"},
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


def _stop_engine(upgraded: Upgraded) -> Callable[[], None]:
    """Stop the engine of the stack; return what starts it again."""
    context = state.load_context(settings())
    assert context is not None
    api = supervisor.Control(context)._api
    info = next(one for one in api.getAllProcessInfo() if one["name"] == "tableflow")
    api.stopProcess(supervisor.full_name(info))
    return lambda: api.startProcess(supervisor.full_name(info), False)  # without waiting


def _send_later(upgraded: Upgraded, number: int, *, other_bytes: bool = False) -> None:
    for one in TOPICS:
        records = later(one, number, other_bytes=other_bytes)
        upgraded.sender.send(one, records)
        upgraded.later[one.name] += records
    _send_changes(upgraded)


def test_engine_of_the_earlier_version_beside_and_instead(
    continued: Upgraded, earlier_code: Path
) -> None:
    """Each topic has one engine; going back works, and forward again repairs what that compared."""
    names = [*(one.name for one in TOPICS), *CHANGES]
    continued.wait(*names)
    group = engine_group(settings())
    with _earlier_engine(earlier_code):

        def engines() -> dict[str, str]:
            return holders(continued.endpoints, group, names)

        wait_until(lambda: len(set(engines().values())) == 2, PATIENCE_SECONDS)
        assert engines().keys() == set(names)
        _send_later(continued, 1)
        continued.wait(*names)
        for one in TOPICS:
            _check_rows(continued, one)
        _check_changes(continued)

        start = _stop_engine(continued)
        wait_until(lambda: len(set(engines().values())) == 1, PATIENCE_SECONDS)
        _send_later(continued, 2, other_bytes=True)
        continued.wait(*names)
        for one in TOPICS:
            if one not in UPSERTED or one.key_kind == "string":
                _check_rows(continued, one)
        _check_changes(continued)
    start()
    _send_later(continued, 3)
    continued.wait(*names)
    for one in TOPICS:
        _check_rows(continued, one)
    _check_changes(continued)
