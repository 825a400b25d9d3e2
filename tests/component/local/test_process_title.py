"""No secret in the list of processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from topicberg.cli.argv import without_secrets

TOPICBERG = Path(sys.executable).parent / "topicberg"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            ["x", "--confluent-api-secret", "hush", "-v"],
            ["x", "--confluent-api-secret", "***", "-v"],
        ),
        (["x", "--confluent-api-secret=hush"], ["x", "--confluent-api-secret=***"]),
        (["x", "--day-count", "3"], ["x", "--day-count", "3"]),
        (["x", "--confluent-api-secret"], ["x", "--confluent-api-secret"]),
    ],
)
def test_values_of_secret_flags_are_taken_out(given: list[str], shown: list[str]) -> None:
    assert without_secrets(given) == shown


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_ps_does_not_show_a_secret(tmp_path: Path) -> None:
    """The command waits for an answer of an API that never comes; meanwhile it is looked at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        environment = {
            **os.environ,
            "TOPICBERG_DEPLOYMENT": "cloud",
            "TOPICBERG_STATE_DIR": str(tmp_path),
            "TOPICBERG_CONFLUENT_URL": (url := f"http://127.0.0.1:{server.getsockname()[1]}"),
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        }
        flags = ["--confluent-api-secret", "hush-hush", "--confluent-api-key", "K"]
        flags += ["--admin-user-secrets-root-path", "/admin"]
        command = [str(TOPICBERG), "deploy", "plan", *flags]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                server.accept()[0].close()
                title = Path(f"/proc/{process.pid}/cmdline").read_text()
            finally:
                process.kill()
    assert "hush-hush" not in title
    assert "deploy plan" in title
