"""The files that have topic specs: those of the folder of topics, and Dagster's components."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topicberg.errors import SpecError
from topicberg.settings import Settings
from topicberg.topics.yamlfile import read_yaml

COMPONENT, COMPONENT_FILE = "topicberg.Topic", "defs.yaml"
_TYPE = re.compile(rf"""^type:\s*["']?{re.escape(COMPONENT)}["']?\s*(#.*)?$""", re.MULTILINE)
_DOCUMENT = re.compile(r"\S.*?^---\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class SpecSource:
    """A file, or a part of one, with the spec of a topic or with a pattern."""

    file: str
    """From the project's root."""
    name: str
    """Of the topic, as the file or the folder is named."""
    document: Any
    errors: tuple[str, ...] = ()


def sources(config: Settings) -> Iterator[SpecSource]:
    """Yield every spec, whether it is valid or not.

    :raises SpecError: there is no folder of topics, nor one of components
    """
    folder, components = config.topics_dir, component_files(config)
    if not folder.is_dir() and not components:
        raise SpecError(
            f"{folder} is not a folder", hint="create the folder, and put topic specs into it"
        )
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        file = str(path.relative_to(config.project_root))
        if path.suffix == ".yml":
            yield SpecSource(file, path.stem, None, ("the name must end in .yaml",))
        if path.suffix == ".yaml":
            document, errors = read_yaml(path)
            yield SpecSource(file, path.stem, document, tuple(errors))
    for path in components:
        yield from _component(path, str(path.relative_to(config.project_root)))


def component_files(config: Settings) -> list[Path]:
    """Return the files of Dagster's components, whatever these are."""
    defs = config.project.defs
    return sorted((config.project_root / defs).rglob(COMPONENT_FILE)) if defs else []


def _component(path: Path, file: str) -> Iterator[SpecSource]:
    """Yield the topic of a file of components; Dagster reports what is not YAML."""
    name = path.parent.name
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        yield SpecSource(file, name, None, (f"cannot be read: {error.strerror}",))
        return
    if not _TYPE.search(text):
        return
    if _DOCUMENT.search(text):
        reason = f"a component of type {COMPONENT} needs a file of its own: found several documents"
        yield SpecSource(file, name, None, (reason,))
        return
    document, errors = read_yaml(path)
    if document is None and errors:
        yield SpecSource(file, name, None, tuple(errors))
    if not isinstance(document, dict) or document.get("type") != COMPONENT:
        return
    attributes = document.get("attributes")
    if isinstance(attributes, dict):
        if attributes.get("name") is None:
            attributes = {**attributes, "name": name}
        name = str(attributes["name"])
    yield SpecSource(file, name, attributes, tuple(errors))
