"""The ``bash`` blocks of docs/quick-start.md and docs/add-a-topic.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import run_block
from repository import PROJECT_ROOT

from topicberg.endpoints import Endpoints

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.slow]


@pytest.mark.parametrize(("name", "blocks"), [("quick-start.md", 4), ("add-a-topic.md", 1)])
def test_the_document(stack: Endpoints, tmp_path: Path, name: str, blocks: int) -> None:
    text = (PROJECT_ROOT / "docs" / name).read_text()
    found = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    assert len(found) == blocks
    (tmp_path / "home").mkdir()
    for commands in found:
        run_block(commands, PROJECT_ROOT, {"DAGSTER_HOME": str(tmp_path / "home")})
