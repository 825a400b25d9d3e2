"""Dagster's home in the state directory, shared by `topicberg ui`, `demo` and `env` and the tests.

``dagster dev`` in the project's root does not need it: it reads ``dagster.yaml`` there, which names
the same folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from topicberg.files import update_file
from topicberg.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

INSTANCE = Path(__file__).parents[1] / "scaffolding" / "templates" / "dagster.yaml.txt"
"""What a project without a section of its own gets."""
_PLACES = ("local_artifact_storage", "compute_logs")
"""Sections that name folders; without them everything is in Dagster's home."""


def dagster_home(config: Settings) -> Path:
    """Return the folder for ``DAGSTER_HOME``, configured by the project's ``dagster.yaml``."""
    home = config.state_dir / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    instance = yaml.safe_load(INSTANCE.read_text())
    with suppress(FileNotFoundError):
        instance |= yaml.safe_load((config.project_root / "dagster.yaml").read_text()) or {}
    instance = {name: section for name, section in instance.items() if name not in _PLACES}
    storage = instance["storage"].get("custom", {})
    if storage.get("class") == "SqliteStorage":
        storage["config"]["base_dir"] = str(home)
    update_file(home / "dagster.yaml", yaml.safe_dump(instance))  # starting runs read it
    return home


@contextmanager
def opened_instance(config: Settings) -> Iterator[dg.DagsterInstance]:
    """Yield the Dagster that ``DAGSTER_HOME`` names, else the deployment's own."""
    os.environ.setdefault("DAGSTER_HOME", str(dagster_home(config)))

    import dagster as dg

    with dg.DagsterInstance.get() as instance:
        yield instance
