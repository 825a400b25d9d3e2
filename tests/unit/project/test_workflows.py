"""The workflows for GitHub Actions: pinned actions, no stored keys, commands that exist.

``actionlint .github/workflows/*.yml`` checks the rest; it is not among the locked packages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from topicberg.cli import app
from topicberg.settings import PROJECT_ROOT

WORKFLOWS = sorted((PROJECT_ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_pins_actions_and_stores_no_key(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one) for one in used)
    assert "secrets." not in path.read_text()
    assert yaml.safe_load(path.read_text())["permissions"] == {
        "contents": "read",
        "id-token": "write",
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_takes_no_input_into_the_shell(path: Path) -> None:
    assert not [step for step in steps(path) if "${{" in step.get("run", "")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_runs_commands_that_exist(path: Path) -> None:
    runs = "\n".join(step.get("run", "") for step in steps(path))
    found = re.findall(r"\.venv/bin/topicberg (\w+) (\w+)((?: --[\w-]+)*)", runs)
    assert found
    groups: Any = typer.main.get_command(app)
    for group, name, options in found:
        command = groups.commands[group].commands[name]
        known = {one for parameter in command.params for one in parameter.opts}
        assert set(options.split()) <= known
