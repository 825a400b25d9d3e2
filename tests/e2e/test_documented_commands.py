"""Every command in the documents runs, on a stack of its own; or the reason why not is here."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from documents import DOCUMENTS, RUN, block_commands, blocks, commands
from repository import PROJECT_ROOT

from topicberg.cli import app

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

TOPIC = "stock_trades"
PLACEHOLDERS = {"TOPIC": TOPIC, "[TOPIC": TOPIC, "TABLE": TOPIC, "SERVICE": "kafka"}
ELSEWHERE = {
    "topicberg deploy": "needs a cloud: tests/integration/test_deploy.py, on the emulators",
    "topicberg ui": "serves until it is ended: tests/e2e/test_demo.py runs Dagster as it does",
    "topicberg tableflow serve": "serves until it is ended: tests/integration/test_production.py",
    "topicberg up": "began this stack",
    "topicberg down": "ends this stack",
    "topicberg reset": "ends this stack",
    "dagster dev": "serves until it is ended: tests/e2e/test_demo.py",
    "dagster-webserver": "serves until it is ended: tests/integration/test_aws.py",
    "dagster instance": "a block of docs/checks.md, and tests/integration/test_production.py",
    "make": "targets: CI runs those of `make check`, and `make test`; test_demo.py the demo",
    "pytest": "is running",
    "python": "benchmarks",
    "git": "how the project came here",
    "cd": "how the project came here",
    "cp": "of an example that tests/integration/test_production.py reads",
    "chmod": "of an example that tests/integration/test_production.py reads",
    "eval": "a block of docs/checks.md",
    "docker": "tests/integration/test_production.py validates its files as far as the machine can",
    "helm": "tests/integration/test_production.py validates its values",
    "kubectl": "needs a cluster",
    "dagster-cloud": "needs Dagster+: tests/integration/test_production.py reads its file",
    "aws ecs": "needs an account: tests/integration/test_production.py checks the requests",
    "cosign": "needs a registry of images and its keys",
    "topicberg pipelines check large_orders": "tests/e2e/test_add_a_pipeline.py",
    "topicberg forget": "needs a key of a topic: tests/integration/test_forget.py",
    "topicberg tableflow continue": "needs another log: tests/integration/test_tableflow.py",
    "topicberg tableflow reread": "needs an upsert table: tests/integration/test_upsert.py",
    "topicberg tableflow skip": "needs a failed record: tests/integration/test_record_failures.py",
}
EXAMPLES = {"orders", "readings", "shop.shop.customers"}
"""Topics that the reader of a page makes, or has."""
UNFINISHED = "dagster asset materialize -f definitions.py"
"""Named in a sentence without what it is to materialize."""


def left_to_run() -> list[list[str]]:
    """Each once, but for those of the blocks that run as they stand."""
    ready = [
        words
        for path in DOCUMENTS
        if path.name in RUN
        for language, text in blocks(path)
        if language == "bash"
        for words in block_commands(language, text)
    ]
    found: dict[str, list[str]] = {}
    for words in (words for path in DOCUMENTS for words in commands(path)):
        line = shlex.join(words)
        listed = any(line == key or line.startswith(f"{key} ") for key in ELSEWHERE)
        if listed or line == UNFINISHED or "…" in words or words in ready or lacks_argument(words):
            continue
        if EXAMPLES.isdisjoint(words):
            words = [PLACEHOLDERS.get(word, word) for word in words]
            found.setdefault(shlex.join(words), words)
    return sorted(found.values(), key=_turn)


def lacks_argument(words: list[str]) -> bool:
    """Return whether a sentence names the command without a required argument."""
    if words[0] != "topicberg":
        return False
    command: Any = typer.main.get_command(app)
    context, words = command.context_class(command), words[1:]
    while hasattr(command, "get_command"):
        command, words = command.get_command(context, words[0]), words[1:]
    try:
        command.make_context(None, [*words])
    except Exception as error:  # Typer has its own copy of Click
        return type(error).__name__ == "MissingParameter"
    return False


def _turn(words: list[str]) -> tuple[bool, bool, list[str]]:
    """A generator before the platform's connector has begun one; what takes away comes last."""
    return "disable" in words, "datagen" not in words, words


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    state = tmp_path / "state"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOPICBERG_STATE_DIR": str(state),
        "TOPICBERG_ENV_FILE": os.devnull,
        "DAGSTER_HOME": str(tmp_path),
    }
    try:
        run(["topicberg", "up"], environment)
        yield environment
    finally:
        run(["topicberg", "down"], environment)
        run(["topicberg", "reset", "--yes"], environment)
    assert not state.exists()


def run(words: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        words,
        cwd=PROJECT_ROOT,
        env=environment,
        input="y\n" * 3,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_command_in_the_documents(environment: dict[str, str]) -> None:
    words = left_to_run()
    assert len(words) > 10
    run(f"topicberg datagen start {TOPIC} --rate 0 --count 500 --foreground".split(), environment)
    run(f"topicberg tableflow enable {TOPIC} --error-handling LOG".split(), environment)
    run(f"topicberg tableflow run {TOPIC} --once".split(), environment)
    for each in words:
        run(each, environment)
        if each[1:3] == ["datagen", "start"]:
            run(["topicberg", "datagen", "stop", TOPIC], environment)
