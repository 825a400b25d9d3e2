"""Make ``state.tar.xz``: the state directory of a local stack, as an earlier version left it.

The code of that version makes it, with its services, its engine and its sensor::

    git worktree add --detach ../old 11d53e6 && make -C ../old install
    ../old/.venv/bin/python tests/data/upgrade/make.py

The archive has the state of Kafka, the registry, the object store, the catalogs, the engine and
Dagster, so offsets, ids of topics and of schemas, and locations are those of that version. What a
start writes again is left out: ports, secrets, logs and configuration.

Snowflake's emulator is left out as well: it has absolute paths, and tables are registered again.

Some of the last batches were killed between writing files and committing.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
NEW = HERE.parents[3]
KEPT = (
    *("kafka/data", "s3/objects", "iceberg_rest/catalog.db", "schema_registry/registry.mv.db"),
    *("aws", "confluent", "tableflow", "discovery", "dagster-of-tests"),
    "upgrade.json",
)
"""What the archive has of the state directory, beside the project."""


def _clean_environment(state: Path) -> None:
    """Leave no setting of the developer's own."""
    foreign = ("TOPICBERG_", "AWS_", "SNOWFLAKE_", "SPARK_", "DAGSTER_", "PYICEBERG_", "KAFKA_")
    for name in list(os.environ):
        if name.startswith(foreign):
            del os.environ[name]
    os.environ |= {
        "TOPICBERG_ENV_FILE": os.devnull,
        "TOPICBERG_STATE_DIR": str(state),
        "AWS_EC2_METADATA_DISABLED": "true",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
    }


def _project(state: Path) -> Path:
    """Return a project with the specs of all topics."""
    import yaml
    from upgrade_topics import CHANGES, LASTING, LONG_TIME_MS, PATTERN, TOPICS, changes_document

    import topicberg.settings

    root = state.with_name("project")
    topics, schemas = (root / "platform" / name for name in ("topics", "schemas"))
    for folder in (topics, schemas):
        folder.mkdir(parents=True)
    old = topicberg.settings.PROJECT_ROOT / "platform"  # type: ignore[attr-defined]
    for name in ("stock_trades.avsc", "error_log.avsc"):
        shutil.copy(old / "schemas" / name, schemas / name)
    documents = {one.name: {"name": one.name, **one.document} for one in TOPICS if one.has_spec}
    documents |= {name: {"name": name, **changes_document(name)} for name in CHANGES}
    trades = yaml.safe_load((old / "topics" / "stock_trades.yaml").read_text())
    trades["topic_config"] = LASTING
    trades["tableflow"] |= {"retention_ms": LONG_TIME_MS, "commit_interval_seconds": 1}
    trades["derived_partitions"]["start"] = str(trades["derived_partitions"]["start"])
    documents |= {"stock_trades": trades, "fleet": PATTERN}
    for name, document in documents.items():
        (topics / f"{name}.yaml").write_text(json.dumps(document, indent=1))
    return root


def _wait(condition: Callable[[], object], patience: float = 300) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.5)


class Maker:
    """Sends records, and waits until the engine's service has committed them."""

    def __init__(self) -> None:
        from debezium import Source

        from topicberg.settings import settings
        from topicberg_local import stack

        self.config = settings()
        self.endpoints = stack.up(self.config)
        from upgrade_topics import Sender

        kafka_config = self.endpoints.kafka_config()
        self.sender = Sender(kafka_config, self.endpoints.schema_registry_client())
        self.source = Source(random.Random(39))
        self.sent_events = 0

    def create_topics(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic
        from upgrade_topics import CHANGES, CHANGES_PARTITIONS, LASTING, PARTITIONS, TOPICS, TRADES

        from topicberg.tableflow import control

        compacted = {"cleanup.policy": "compact"}
        new = [
            NewTopic(one.name, PARTITIONS, config=compacted if one.is_upsert else LASTING)
            for one in TOPICS
        ]
        new += [NewTopic(name, CHANGES_PARTITIONS, config=LASTING) for name in CHANGES]
        new += [NewTopic(TRADES, 6, config=LASTING), NewTopic("error_log", 1, config=LASTING)]
        admin = self.endpoints.kafka_admin()
        for future in admin.create_topics(new).values():
            try:
                future.result(30)
            except KafkaException as error:  # the engine creates topics of specs
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        for one in TOPICS:
            if one.name.startswith("requested."):
                given = {"commit_interval_seconds": 1}
                control.enable(
                    self.config,
                    one.name,
                    given,
                    "upsert" if one.is_upsert else "append",
                    command=True,
                )

    def send_changes(self, number: int) -> None:
        """Change the source, and send the new records to all change logs."""
        from debezium import SourceTopic
        from kafka_topics import Topic
        from upgrade_topics import CHANGES, changes_document

        from topicberg.topics import TopicSpec

        for _ in range(number):
            self.source.change()
        events = self.source.events[self.sent_events :]
        self.sent_events += len(events)
        for name in CHANGES:
            spec = TopicSpec.model_validate({"name": name, **changes_document(name)})
            SourceTopic(Topic(self.endpoints, spec)).send(events)

    def committed(self, names: Iterable[str]) -> None:
        """Wait until the tables have all records of some topics."""
        from topicberg import kafka
        from topicberg.tableflow.status import read_status

        for name in names:
            ends = kafka.end_offsets(self.endpoints, name)

            def is_there(name: str = name, ends: dict[int, int] = ends) -> bool:
                held = read_status(self.config, name).end_offsets
                return all(held.get(p, 0) >= end for p, end in ends.items())

            _wait(is_there)
            sys.stderr.write(f"committed {name}\n")

    def stop_engine(self) -> None:
        """Kill the engine, and let the supervisor not start it again."""
        from topicberg_local import stack, state
        from topicberg_local.supervisor import Control, full_name

        context = state.load_context(self.config)
        assert context is not None
        control = Control(context)
        info = (control.processes() or {})["tableflow"]
        os.kill(info["pid"], signal.SIGKILL)
        control._api.stopProcess(full_name(info))
        assert not {s.name: s.running for s in stack.status(self.config)}["tableflow"]


def make() -> None:
    """Fill the state directory; a stack of this version runs meanwhile."""
    from upgrade_topics import CHANGES, STUCK, TOPICS, TRADES, trades

    from topicberg.tableflow import skips
    from topicberg.tableflow.control import enabled_topics
    from topicberg.tableflow.history import ingest_history
    from topicberg.tableflow.status import read_status

    maker = Maker()
    config, endpoints = maker.config, maker.endpoints
    schema = (config.schemas_dir / "stock_trades.avsc").read_text()
    schema = json.dumps(json.loads(schema))
    maker.create_topics()
    for number in range(2):
        for one in TOPICS:
            for batch in one.before[number : number + 1]:
                maker.sender.send(one, batch)
        if number:
            maker.source.change_key_schema()
        maker.send_changes(30)
        maker.sender.send_trades(schema, trades(90 * number, 90))
        maker.committed([one.name for one in TOPICS] + [*CHANGES, TRADES])
    _run("sensor")
    maker.sender.send_trades(schema, trades(180, 30))
    maker.committed([TRADES, "error_log"])
    specs = enabled_topics(config)
    for one in TOPICS:
        if one.more.get("history"):
            ingest_history(specs[one.name], endpoints, config)
    maker.sender.send(STUCK, STUCK.pending)
    _wait(lambda: read_status(config, STUCK.name).suspended)
    _run("forget")
    maker.stop_engine()
    table = endpoints.catalog(config).load_table(specs[STUCK.name].table_identifier(config))
    bad = next(n for n, each in enumerate(STUCK.pending) if isinstance(each.value, bytes))
    at = STUCK.pending[bad].partition
    offset = sum(each.partition == at for each in STUCK.sent[: len(STUCK.before[0]) + bad])
    assert skips.request(table, endpoints, STUCK.name, (at, offset), "half a record")
    for one in TOPICS:
        if one is not STUCK:
            maker.sender.send(one, one.pending)
        if one.is_killed:
            _run("kill", one.name)
    maker.send_changes(12)
    _run("kill", "changes_rows_2")
    known = {
        "rows": list(maker.source.rows.values()),
        "lsn": maker.source.lsn,
        "changes": sum(event.op is not None for event in maker.source.events),
    }
    (config.state_dir / "upgrade.json").write_text(json.dumps(known))


def _stop() -> None:
    from topicberg.settings import settings
    from topicberg_local import stack

    stack.down(settings())


def sensor() -> None:
    """Compute derived tables as the sensor requests it; keep its cursor."""
    import dagster as dg
    from snapshot_daemon import Daemon
    from upgrade_topics import DERIVED, TRADES

    from topicberg.orchestration.assets import Lake, find_derived
    from topicberg.orchestration.jobs.sensors import snapshot_sensor
    from topicberg.settings import settings
    from topicberg.topics import load_topic

    config = settings()
    derived = tuple(one for one in find_derived() if one.name in DERIVED)
    lake = Lake(config, (load_topic(TRADES),), derived)
    folder = config.state_dir / "dagster-of-tests"
    folder.mkdir()
    storage = {
        "module": "topicberg_local.dagster.storage",
        "class": "SqliteStorage",
        "config": {"base_dir": str(folder)},
    }
    with dg.instance_for_test({"storage": {"custom": storage}}) as instance:
        daemon = Daemon(instance, snapshot_sensor(lake))
        daemon.settle()
        assert daemon.runs
        assert daemon.cursor
        (folder / "cursor.json").write_text(daemon.cursor)


def forget() -> None:
    """Forget a key, and begin to forget another one."""
    from upgrade_topics import FORGETTING, FORGOTTEN

    from topicberg.endpoints import load_endpoints
    from topicberg.settings import settings
    from topicberg.tableflow.control import enabled_topics

    # As the version whose state this is has it.
    make_job: Any = import_module("topicberg.tableflow.forgetting").Forgetting
    config = settings()
    spec = enabled_topics(config)["accounts_string_3"]
    for key in (FORGOTTEN, FORGETTING):
        job = make_job(spec, f"user {key}", load_endpoints(), config, "a letter")
        assert job.drain(enabled=True) == []
        job.write_tombstones(job.records())
        if key == FORGETTING:
            os.kill(os.getpid(), signal.SIGKILL)
        assert job.drain(enabled=True) == []
        for target in job.targets:
            job.erase(target)
            job.prove(target)


def kill(name: str) -> None:
    """End an engine between writing the files of a batch and its commit."""
    from topicberg.endpoints import load_endpoints
    from topicberg.settings import settings
    from topicberg.tableflow import commit
    from topicberg.tableflow.control import enabled_topics
    from topicberg.tableflow.engine import run_once

    def die(*_given: object, **_more: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for name in ("publish", "add_files"):  # the version whose state this is has both
        setattr(commit, name, die)
    run_once(enabled_topics(settings())[name], load_endpoints(), settings())
    raise AssertionError("nothing was committed")


def _run(step: str, *arguments: str) -> None:
    """Do a step in a process of its own."""
    sys.stderr.write(f"{step} {arguments}\n")
    given = dict(os.environ)
    if step == "sensor":  # with the project of that version
        given.pop("TOPICBERG_PROJECT_ROOT")
    done = subprocess.run([sys.executable, str(HERE), step, *arguments], env=given, check=False)
    expected = 0 if step == "sensor" else -signal.SIGKILL
    assert done.returncode == expected, (step, arguments, done.returncode)


def _pack(folder: Path, target: Path) -> None:
    """Write the archive: the same bytes for the same files."""
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for name in [*(f"state/{one}" for one in KEPT), "project"]:
            place = folder / name
            for path in sorted([place, *place.rglob("*")]) if place.is_dir() else [place]:
                if path.is_file():
                    info = archive.gettarinfo(path, str(path.relative_to(folder)))
                    info.uid = info.gid = 0
                    info.uname = info.gname = ""
                    archive.addfile(info, io.BytesIO(path.read_bytes()))


def main() -> None:
    """Make the archive beside this file."""
    kept = os.environ.get("UPGRADE_STATE")
    state = Path(kept or tempfile.mkdtemp(prefix="upgrade-")) / "state"
    state.mkdir(parents=True)
    _clean_environment(state)
    os.environ["TOPICBERG_PROJECT_ROOT"] = str(_project(state))
    try:
        make()
    finally:
        _stop()
    _pack(state.parent, HERE.with_name("state.tar.xz"))
    if not kept:
        shutil.rmtree(state.parent)


def _prepare_path() -> None:
    """Find the helpers of that version's tests, and the records of this one."""
    import importlib.util

    found = importlib.util.find_spec("topicberg")
    assert found is not None
    assert found.submodule_search_locations
    old = Path(next(iter(found.submodule_search_locations))).parents[1]
    sys.path[:0] = [str(old), str(old / "tests" / "support")]
    path = NEW / "tests" / "support" / "upgrade_topics.py"
    spec = importlib.util.spec_from_file_location("upgrade_topics", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["upgrade_topics"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _prepare_path()
    if len(sys.argv) > 1:
        steps: dict[str, Callable[..., None]]
        steps = {"sensor": sensor, "forget": forget, "kill": kill}
        steps[sys.argv[1]](*sys.argv[2:])
    else:
        main()
