"""What a fleet of topics costs Dagster: CPU seconds until its definitions are loaded and served.

    python tests/benchmarks/loading.py [--topics 10 200 1000 2000]

needs no stack. Half of the topics have a spec of their own, the others are discovered by one
pattern; beside them are the topics and derived tables of the project. The table shows:

- load: a process imports the definitions and builds their repository, as each run does;
- job: it builds the job ``register_tables``, as a run that registers tables does;
- code server: ``dagster api grpc`` builds every job and answers;
- code location: the code server describes it to the web server or the daemon;
- client: what these need to read the description.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "support"))

from real_servers import free_port
from repository import PROJECT_ROOT

from topicberg.settings import Settings
from topicberg.topics.discovery import (
    Discovery,
    FoundSchema,
    FoundTopic,
    schema_file,
    write_discovery,
)
from topicberg_local.ports import listens

PATIENCE_SECONDS = 600.0
PIPELINES = 20
SPEC = """\
name: {name}
pipeline: fleet_{pipeline}
description: Orders of one shop.
schema: {{format: avro, file: {name}.avsc}}
event_time: at
owners: ["team:orders"]
freshness: {{warn_minutes: 30, fail_minutes: 120}}
checks: {{max_lag_records: 100000, not_null: [id, at]}}
"""
PATTERN = """\
topics:
  match: "found.*"
  defaults: {freshness: {warn_minutes: 30, fail_minutes: 120}}
"""
FIELDS = [
    {"name": "id", "type": "string"},
    {"name": "quantity", "type": "int"},
    {"name": "price", "type": "double"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]
LOAD = """
import json, time
from definitions import defs
repository = defs.get_repository_def()
loaded = time.process_time()
repository.get_job("register_tables")
print(json.dumps([loaded, time.process_time() - loaded]))
"""


def write_project(root: Path, topics: int) -> Settings:
    """Write the specs of a fleet, and what was discovered of it."""
    config = Settings(project_root=root, state_dir=root / "state")
    for folder in (config.topics_dir, config.schemas_dir):
        shutil.copytree(PROJECT_ROOT / folder.relative_to(root), folder)
    shutil.copy(PROJECT_ROOT / "pyproject.toml", root)
    (config.state_dir / "discovery").mkdir(parents=True)
    schema = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})
    found: dict[str, FoundTopic] = {}
    for number in range(topics // 2):
        name = f"own.orders_{number}"
        text = SPEC.format(name=name, pipeline=number % PIPELINES)
        (config.topics_dir / f"{name}.yaml").write_text(text)
        (config.schemas_dir / f"{name}.avsc").write_text(schema)
    for number in range(topics - topics // 2):
        name = f"found.orders_{number}"
        value = FoundSchema(format="avro", version=1)
        found[name] = FoundTopic(partitions=3, is_compacted=False, value=value)
        schema_file(config, name, "value", "avro").write_text(schema)
    (config.topics_dir / "found.yaml").write_text(PATTERN)
    write_discovery(config, Discovery(topics=found))
    return config


def load(environment: dict[str, str]) -> list[float]:
    """Return the CPU seconds of the load and of a job."""
    command = [sys.executable, "-W", "ignore", "-c", LOAD]
    done = subprocess.run(
        command, env=environment, cwd=PROJECT_ROOT, check=True, capture_output=True, text=True
    )
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def serve(environment: dict[str, str]) -> list[float]:
    """Return the CPU seconds of the code server until it answers, to send what it has, and of who
    asks for that.
    """
    port = free_port()
    command = [sys.executable, "-m", "dagster", "api", "grpc", "-f", "definitions.py"]
    command += ["-p", str(port), "-h", "127.0.0.1", "--location-name", "fleet"]
    with subprocess.Popen(command, env=environment, cwd=PROJECT_ROOT) as server:
        try:
            process, deadline = psutil.Process(server.pid), time.monotonic() + PATIENCE_SECONDS
            while not listens(port):  # it does so when everything is loaded
                assert server.poll() is None, "the code server has ended"
                assert time.monotonic() < deadline, "the code server does not answer"
                time.sleep(0.2)
            ready, began = sum(process.cpu_times()[:2]), time.process_time()
            origin = GrpcServerCodeLocationOrigin("127.0.0.1", port, location_name="fleet")
            with dg.DagsterInstance.ephemeral() as instance, origin.create_location(instance):
                sent = sum(process.cpu_times()[:2]) - ready
                return [ready, sent, time.process_time() - began]
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 200, 1000, 2000])
    shown = Table("topics", "load", "job", "code server", "code location", "client")
    for topics in parser.parse_args().topics:
        with tempfile.TemporaryDirectory() as folder:
            config = write_project(Path(folder), topics)
            environment = {
                **os.environ,
                "TOPICBERG_PROJECT_ROOT": str(config.project_root),
                "TOPICBERG_STATE_DIR": str(config.state_dir),
                "DAGSTER_HOME": folder,
            }
            seconds = [*load(environment), *serve(environment)]
        shown.add_row(str(topics), *(f"{each:.1f} s" for each in seconds))
    Console().print(shown)


if __name__ == "__main__":
    main()
