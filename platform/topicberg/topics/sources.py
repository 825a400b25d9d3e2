"""The files that have topic specs: those of the folder of topics, and Dagster's components."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topicberg.errors import SpecError
from topicberg.settings import Settings
from topicberg.topics.yamlfile import read_yaml

COMPONENT, COMPONENT_FILE = "topicberg.Topic", "defs.yaml"


@dataclass(frozen=True)
class Source:
    """A file, or a part of one, with the spec of a topic or with a pattern."""

    file: str
    """From the project's root."""
    name: str
    """Of the topic, as the file or the folder is named."""
    document: Any
    errors: tuple[str, ...] = ()


def sources(config: Settings) -> Iterator[Source]:
    """Yield every spec, whether it is valid or not.

    :raises SpecError: there is no folder of topics, nor one of components
    """
    folder, defs = config.topics_dir, config.project.defs
    components = config.project_root / defs if defs else None
    if not folder.is_dir() and not (components and components.is_dir()):
        raise SpecError(
            f"{folder} is not a folder", hint="create the folder, and put topic specs into it"
        )
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        file = str(path.relative_to(config.project_root))
        if path.suffix == ".yml":
            yield Source(file, path.stem, None, ("the name must end in .yaml",))
        if path.suffix == ".yaml":
            document, errors = read_yaml(path)
            yield Source(file, path.stem, document, tuple(errors))
    for path in sorted(components.rglob(COMPONENT_FILE)) if components else ():
        yield from _components(path, str(path.relative_to(config.project_root)))


def _components(path: Path, file: str) -> Iterator[Source]:
    """Yield the topics of a file of components; Dagster reports what is no YAML."""
    if COMPONENT not in path.read_text(errors="replace"):
        return
    document, errors = read_yaml(path)
    name = path.parent.name
    if document is None and errors:
        yield Source(file, name, None, tuple(errors))
    if not isinstance(document, dict) or document.get("type") != COMPONENT:
        return
    given = document.get("attributes")
    attributes = {"name": name, **given} if isinstance(given, dict) else given
    if isinstance(attributes, dict):
        name = str(attributes["name"])
    yield Source(file, name, attributes, tuple(errors))
