"""The files that have topic specs: those of the folder of topics, and Dagster's components.

Their YAML has no duplicate keys, and its errors name the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from topicberg.errors import SpecError
from topicberg.files import files_below
from topicberg.settings import Settings

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
    """Yield every spec, whether it is valid or not; raise SpecError if there is no folder of
    topics, nor one of components."""
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
    files = files_below(config.project_root / defs) if defs else ()
    return sorted(path for path in files if path.name == COMPONENT_FILE)


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
    document, errors = read_yaml(path)
    if _DOCUMENT.search(text):
        reason = f"a component of type {COMPONENT} needs a file of its own: found several documents"
        document, errors = None, [reason]
    if document is None and errors:
        yield SpecSource(file, name, None, tuple(errors))
    elif isinstance(document, dict) and document.get("type") == COMPONENT:
        attributes = document.get("attributes")
        if isinstance(attributes, dict):
            if attributes.get("name") is None:
                attributes = {**attributes, "name": name}
            name = str(attributes["name"])
        yield SpecSource(file, name, attributes, tuple(errors))


class _Duplicates(yaml.constructor.SafeConstructor):
    """Records every key that a mapping has twice."""

    duplicates: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[Any, int] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and (key := key_node.value) != "<<":
                mark = key_node.start_mark
                if key in first:
                    self.duplicates.append(
                        f"line {mark.line + 1}, column {mark.column + 1}: {key}: is repeated here "
                        f"(first: line {first[key]})"
                    )
                first.setdefault(key, mark.line + 1)
        return super().construct_mapping(node, deep)


class _Loader(_Duplicates, yaml.SafeLoader):
    """In Python: its errors are clear."""


class _FastLoader(_Duplicates, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """In C, if PyYAML was built with it: ten times as fast."""


def _load(text: str, loader_type: Any) -> tuple[Any, list[str]]:
    """:raises YAMLError: the text is not YAML"""
    loader = loader_type(text)
    loader.duplicates = []
    return loader.get_single_data(), loader.duplicates


def read_yaml(path: Path) -> tuple[Any, list[str]]:
    """Return the document (None if it cannot be read), and its errors as YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return None, [f"cannot be read: {error.strerror}"]
    except UnicodeDecodeError as error:
        return None, [f"is not UTF-8 text: {error.reason} at byte {error.start}"]
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        return _load(text, _FastLoader)
    try:
        return _load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        return None, [f"{place}not YAML: {reason}"]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, [f"not YAML: {' '.join(str(error).split())}"]
