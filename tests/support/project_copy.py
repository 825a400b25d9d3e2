"""A copy of the project, for tests that add files to it."""

from __future__ import annotations

import re
import shutil
from datetime import date
from pathlib import Path

from repository import PROJECT_ROOT

COPIED = (
    *("assets", "jobs", "resources", "platform"),
    *("definitions.py", "dagster.yaml", "workspace.yaml", "pyproject.toml"),
)


def copy_project(folder: Path) -> Path:
    """Copy what a deployment needs into a folder, and return the folder."""
    for name in COPIED:
        source = PROJECT_ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def begin_partitions(project: Path, start: date) -> None:
    """Let the partitions of the derived tables of a copy begin on another day."""
    begin = re.compile(r"^(derived_partitions: .*start: )[-\d]+", re.MULTILINE)
    for path in (project / "platform" / "topics").glob("*.yaml"):
        path.write_text(begin.sub(rf"\g<1>{start}", path.read_text()))


def add_code(folder: Path) -> None:
    """Copy the pipelines and the generators, and what says that they are there."""
    shutil.copy(PROJECT_ROOT / "pyproject.toml", folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT_ROOT / "assets", folder / "assets", ignore=ignored)
