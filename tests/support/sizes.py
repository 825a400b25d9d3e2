"""The sizes of the packages, and their limits: the table of ARCHITECTURE.md (``make check``).

``python tests/support/sizes.py`` prints each package that the table names, and fails if one is
larger than the table allows.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from repository import PROJECT_ROOT

_ROW = re.compile(r"(?m)^\| `([\w/]+)/` \| (lines|statements) \| ([\d,]+) \|")


def limits(text: str) -> list[tuple[str, str, int]]:
    """Return folder, measure and limit of each row of the table."""
    return [
        (folder, measure, int(most.replace(",", "")))
        for folder, measure, most in _ROW.findall(text)
    ]


def size(folder: Path, measure: str) -> int:
    """Return how large the Python files of a folder are.

    :param measure: ``lines``, or ``statements`` without docstrings
    """
    texts = (path.read_text() for path in folder.rglob("*.py"))
    return sum(text.count("\n") if measure == "lines" else _statements(text) for text in texts)


def _statements(text: str) -> int:
    def is_text(node: ast.stmt) -> bool:
        value = node.value if isinstance(node, ast.Expr) else None
        return isinstance(value, ast.Constant) and isinstance(value.value, str)

    nodes = ast.walk(ast.parse(text))
    return sum(isinstance(node, ast.stmt) and not is_text(node) for node in nodes)


def main() -> int:
    """Print the sizes; 1: one is above its limit."""
    exceeded = 0
    for name, measure, most in limits((PROJECT_ROOT / "ARCHITECTURE.md").read_text()):
        actual = size(PROJECT_ROOT / name, measure)
        mark = "" if actual <= most else "  larger than ARCHITECTURE.md allows"
        print(f"{name:45} {actual:7,} of {most:7,} {measure}{mark}")  # noqa: T201
        exceeded += actual > most
    return min(exceeded, 1)


if __name__ == "__main__":
    sys.exit(main())
