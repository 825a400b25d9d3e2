"""``topicberg init``: a project of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topicberg.cli.output import echo
from topicberg.errors import TopicbergError
from topicberg.version import VERSION


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
    if name is None:
        written = existing_project(Path.cwd(), requirement)
    else:
        written = new_project(name, Path.cwd(), requirement)
    echo(f"wrote {written.root / file}" for file in written.files)
    if name is None:
        echo(f"added [tool.topicberg] to {written.root / 'pyproject.toml'}")
    kept = (f"kept {written.root / file}, which there was already" for file in written.kept)
    echo(kept, fg="yellow")
    if written.merge_into is not None:
        echo(
            f"merge the definitions of topicberg into those of {written.merge_into}: "
            "`dg.Definitions.merge(topicberg.definitions(), …)`",
            fg="yellow",
        )
    if name is None:
        echo(f"add {requirement!r} to the dependencies, then run `topicberg ui`")
    else:
        echo(f"now: cd {name}; pip install -e . pytest; topicberg ui")
    if folder := docs_folder():
        echo(f"how to go on: {folder / 'project.html'}, which `topicberg ui` also serves")
