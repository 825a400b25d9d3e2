"""The ``bash`` blocks of docs/quick-start.md and docs/add-a-topic.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from topicberg.endpoints import Endpoints
from topicberg.settings import PROJECT_ROOT, settings

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("name", "blocks"), [("quick-start.md", 4), ("add-a-topic.md", 2)])
def test_the_document(stack: Endpoints, tmp_path: Path, name: str, blocks: int) -> None:
    text = (PROJECT_ROOT / "docs" / name).read_text()
    found = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    assert len(found) == blocks
    (tmp_path / "home").mkdir()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOPICBERG_STATE_DIR": str(settings().state_dir),
        "DAGSTER_HOME": str(tmp_path / "home"),
    }
    for commands in found:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=PROJECT_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
