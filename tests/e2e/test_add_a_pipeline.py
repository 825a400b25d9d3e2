"""docs/add-a-pipeline.md works as it is written: its files and its commands, in a copy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import run_block
from project_copy import copy_project
from repository import PROJECT_ROOT

from topicberg.endpoints import Endpoints
from topicberg.kafka import topics as kafka

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.slow]

DOCUMENT = PROJECT_ROOT / "docs" / "add-a-pipeline.md"
FOLDERS = re.compile(r"^(topics|schemas)/")
"""As the page says, they are elsewhere in this repository."""


def blocks() -> Iterator[tuple[str, str]]:
    """Language and text of every block."""
    yield from re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_project(tmp_path)


def test_the_document(stack: Endpoints, project: Path) -> None:
    environment, commands = {"PYTHONPATH": f"{project}:{project / 'platform'}"}, 0
    output = ""
    for language, text in blocks():
        first, _, rest = text.partition("\n")
        if language == "bash":
            output += run_block(text, project, environment)
            commands += 1
        elif first.startswith("# "):
            path = project / FOLDERS.sub(r"platform/\1/", first.removeprefix("# "))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rest)
    assert commands == 5
    (rows,) = re.findall(r"^ *(\d+) +50\.\d\d$", output, re.M)
    published = sum(kafka.end_offsets(stack, "large_orders").values())
    assert 0 < int(rows) < published  # a transaction's marker is a record for the offsets
