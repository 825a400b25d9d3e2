"""``topicberg init``: a project of one's own; ``topicberg constraints``: tested packages for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topicberg.cli.output import echo
from topicberg.errors import TopicbergError
from topicberg.version import VERSION

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
"""Of the library, written by `make lock`."""


def init(
    name: Annotated[str | None, typer.Argument(help="of the project, and of its folder")] = None,
    existing: Annotated[
        bool, typer.Option("--existing", help="add what the project in this folder lacks")
    ] = False,
) -> None:
    """Write a project with a topic, a pipeline and a test, to which one's own are added."""
    from topicberg.documents import docs_folder
    from topicberg.scaffolding.project import existing_project, new_project

    following = int(VERSION.partition(".")[0]) + 1
    requirement = f"topicberg[local]>={VERSION},<{following}"  # up to what may break the project
    if existing == (name is not None):
        raise TopicbergError(
            "one of NAME and --existing is needed",
            hint="run `topicberg init NAME` for a new project; `topicberg init --existing` adds "
            "what the project in this folder lacks",
        )
    here, notes = Path.cwd(), list[str]()
    next_step = f"now: cd {name}; pip install -e . pytest; topicberg ui"
    if name is None:
        written = existing_project(here, requirement)
        notes = [f"added [tool.topicberg] to {written.root / 'pyproject.toml'}"]
        next_step = f"add {requirement!r} to the dependencies, then run `topicberg ui`"
    else:
        written = new_project(name, here, requirement)
    echo((*(f"wrote {written.root / file}" for file in written.files), *notes))
    kept = [f"kept {written.root / file}, which there was already" for file in written.kept]
    if written.merge_into is not None:
        kept.append(
            f"merge the definitions of topicberg into those of {written.merge_into}: "
            "`dg.Definitions.merge(topicberg.definitions(), …)`"
        )
    echo(kept, fg="yellow")
    echo(next_step)
    if folder := docs_folder():
        echo(f"how to go on: {folder / 'project.html'}, which `topicberg ui` also serves")


def constraints() -> None:
    """Print the tested versions of all packages, as a file for `pip install --constraint`."""
    echo(CONSTRAINTS.read_text().rstrip("\n"))
