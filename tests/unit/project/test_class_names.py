"""One name is one class: who searches for it finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

LIBRARY = Path(__file__).parents[3] / "platform" / "topicberg"


def test_public_class_names_of_the_library_are_unique() -> None:
    found = defaultdict[str, list[str]](list)
    for path in sorted(LIBRARY.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(LIBRARY)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
