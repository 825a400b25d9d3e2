"""What documents tell a reader to do, done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from topicberg.settings import settings


def run_block(commands: str, cwd: Path, more: Mapping[str, str]) -> str:
    """Run a ``bash`` block against the stack of the tests, with this Python's programs.

    :param more: variables of the environment
    :returns: what it printed
    """
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOPICBERG_STATE_DIR": str(settings().state_dir),
        **more,
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    return done.stdout
