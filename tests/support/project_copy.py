"""A copy of the project, for tests that add files to it."""

from __future__ import annotations

import shutil
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


def add_code(folder: Path) -> None:
    """Copy the pipelines and the generators, and what says that they are there."""
    shutil.copy(PROJECT_ROOT / "pyproject.toml", folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT_ROOT / "assets", folder / "assets", ignore=ignored)
