"""Dagster's private parts: used in two packages, and there as the installed Dagster has them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import dagster
import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (
    ROOT / "platform" / "topicberg" / "dagster",
    ROOT / "platform" / "local" / "topicberg_local" / "dagster",
)
SOURCES = [
    path
    for folder in ("platform", "assets", "jobs", "resources")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def is_allowed(path: Path) -> bool:
    return any(path.is_relative_to(package) for package in PACKAGES)


def private_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import of a private part of Dagster."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "dagster._" in text else ():
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dagster._"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names if one.name.startswith("dagster._"))


USES = [
    (path.name, module, name)
    for path in SOURCES
    if is_allowed(path)
    for module, name in private_imports(path)
]


@pytest.mark.parametrize(("file", "module", "name"), USES)
def test_dagster_has_the_private_part(file: str, module: str, name: str) -> None:
    try:
        found = importlib.import_module(module)
    except ImportError:
        found = None
    assert found is not None, f"dagster {dagster.__version__} has no {module}; see {file}"
    assert not name or hasattr(found, name), (
        f"dagster {dagster.__version__}: {module} has no {name}; see topicberg/dagster/{file}"
    )


def test_no_other_package_imports_dagsters_private_parts() -> None:
    assert USES
    others = {
        str(path.relative_to(ROOT)): [*private_imports(path)]
        for path in SOURCES
        if not is_allowed(path)
    }
    assert {path: found for path, found in others.items() if found} == {}
