"""What documents tell a reader to do, done."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from repository import PROJECT_ROOT

from topicberg.settings import settings

DOCUMENTS = sorted(
    path
    for folder in (PROJECT_ROOT, PROJECT_ROOT / "docs", PROJECT_ROOT / "docs" / "contributing")
    for path in folder.glob("*.md")
    if path.name != "CHANGELOG.md"
)
"""Pages that are written by hand; docs/reference.py writes the others."""
PROGRAMS = {"topicberg", "dagster", "dagster-webserver", "make"}
RUN = {"quick-start.md", "add-a-topic.md", "add-a-pipeline.md", "checks.md"}
"""Pages whose ``bash`` blocks run."""


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """Language (may be empty) and text of every fenced block."""
    text = re.sub(r"^ +(?=```)", "", path.read_text(), flags=re.MULTILINE)
    yield from re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(path: Path) -> Iterator[list[str]]:
    """Every command of the document as words: of its blocks, and in the midst of its text."""
    for language, text in blocks(path):
        yield from block_commands(language, text)
    prose = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for text in re.findall(r"`((?:topicberg|make|dagster) [^`]+)`", prose):
        yield shlex.split(" ".join(text.split()))


def block_commands(language: str, text: str) -> Iterator[list[str]]:
    """The commands of one block; none if it is of another language."""
    if language not in ("", "bash", "console", "sh"):
        return
    for line in text.replace("\\\n", " ").splitlines():
        # what follows wide space explains; brackets are around what may be left out
        shown = re.split(r"\s{3,}", line.strip())[0].replace("[-", "-").replace("]", "")
        if language in ("bash", "console") or program(shown) in PROGRAMS:
            for part in re.split(r" (?:&&|\|\|?) ", shown):
                if words := shlex.split(part, comments=True):
                    yield words


def program(line: str) -> str:
    return Path(line.split()[0]).name if line.split() else ""


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
