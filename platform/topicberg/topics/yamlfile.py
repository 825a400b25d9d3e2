"""YAML that refuses duplicate keys, and that reports the place of its errors."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml


class _Duplicates(yaml.constructor.SafeConstructor):
    """Records every key that a mapping has twice."""

    duplicates: list[str]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                continue
            mark = key_node.start_mark
            if key_node.value in first:
                self.duplicates.append(
                    f"line {mark.line + 1}, column {mark.column + 1}: {key_node.value}: "
                    f"is repeated here (first: line {first[key_node.value]})"
                )
            first.setdefault(key_node.value, mark.line + 1)
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
