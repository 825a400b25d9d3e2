"""Dagster as its users run it, with web server and daemon, for one test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil

from topicberg.dagster.home import dagster_home
from topicberg.settings import Settings

ANSWER_SECONDS = "300"


@dataclass(frozen=True)
class Dagster:
    """``dagster dev`` in the project's root."""

    process: psutil.Process
    port: int

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """:raises OSError: the web server does not answer"""
        body = json.dumps({"query": query, "variables": variables}).encode()
        url = f"http://127.0.0.1:{self.port}/graphql"
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as found:
            answer: dict[str, Any] = json.load(found)
        assert "errors" not in answer, answer
        return dict(answer["data"])

    def runs(self) -> list[psutil.Process]:
        """The processes that runs are executed in."""
        found = []
        for process in self.process.children(recursive=True):
            with suppress(psutil.Error):  # it ended meanwhile
                parent = process.parent()
                if parent and "multiprocessing.forkserver" in " ".join(parent.cmdline()):
                    found.append(process)
        return found


@contextmanager
def dagster_dev(config: Settings) -> Iterator[Dagster]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    program = Path(sys.executable).with_name("dagster")
    with (config.state_dir / "dagster-dev.log").open("w") as log:
        process = subprocess.Popen(
            [str(program), "dev", "--host", "127.0.0.1", "--port", str(port)],
            cwd=config.project_root,
            env={
                **os.environ,
                "TOPICBERG_STATE_DIR": str(config.state_dir),
                "DAGSTER_HOME": str(dagster_home(config)),
                "DAGSTER_GRPC_TIMEOUT_SECONDS": ANSWER_SECONDS,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Dagster(psutil.Process(process.pid), port)
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
