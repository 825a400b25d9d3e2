"""YAML that refuses duplicate keys, and that reports the place of its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """A safe loader that records every key that a mapping has twice."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []

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


def read_yaml(path: Path) -> tuple[Any, list[str]]:
    """Return the document (None if it cannot be read), and its errors as YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return None, [f"cannot be read: {error.strerror}"]
    except UnicodeDecodeError as error:
        return None, [f"is not UTF-8 text: {error.reason} at byte {error.start}"]
    try:
        loader = _Loader(text)
        document = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        return None, [f"{place}not YAML: {reason}"]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, [f"not YAML: {' '.join(str(error).split())}"]
    return document, loader.duplicates
