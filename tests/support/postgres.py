"""A PostgreSQL server of its own, from the binaries of a wheel, with logical replication."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
from real_servers import free_port

REQUIREMENTS = Path(__file__).with_name("postgres.txt")
START_SECONDS = 60.0
_OPTIONS = {
    "wal_level": "logical",
    "fsync": "off",
    "timezone": "UTC",
    "max_wal_senders": "4",
    "max_replication_slots": "4",
    "unix_socket_directories": "",
}


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the connection string of a server; nothing of it is kept.

    It refuses to run as root: it belongs to another user then, who needs a folder outside of the
    tests' own.
    """
    with tempfile.TemporaryDirectory(prefix="topicberg-postgres-") as name:
        folder = Path(name)
        _install(folder / "wheel")
        user: dict[str, Any] = {}
        data = folder / "data"
        data.mkdir()
        if os.geteuid() == 0:
            user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            folder.chmod(0o755)
            shutil.chown(data, "nobody")
        programs = folder / "wheel" / "pgserver" / "pginstall" / "bin"
        log = (folder / "log").open("wb")
        options = ["-D", str(data), "-U", "postgres", "--auth", "trust", "--no-sync", "-E", "UTF8"]
        created = subprocess.run(
            [str(programs / "initdb"), *options],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **user,
        )
        assert created.returncode == 0, created.stderr
        port = free_port()
        given = [word for key, value in _OPTIONS.items() for word in ("-c", f"{key}={value}")]
        command = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(
            [*command, *given], cwd="/", stdout=log, stderr=subprocess.STDOUT, **user
        )
        address = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        try:
            deadline = time.monotonic() + START_SECONDS
            while True:
                try:
                    psycopg2.connect(address).close()
                    break
                except psycopg2.OperationalError:
                    ended = server.poll() is not None or time.monotonic() > deadline
                    assert not ended, (folder / "log").read_text(errors="replace")[-3000:]
                    time.sleep(0.1)
            yield address
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            log.close()


def _install(folder: Path) -> None:
    """Unpack the pinned wheel; nothing of it is imported."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable]
    options = ["--target", str(folder), "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
