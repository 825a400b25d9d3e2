"""Words of no standard meaning stay out of the library and the local stack."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

from repository import PROJECT_ROOT

IN_NAMES = {
    "anew": "again, recreate",
    "asked": "requested",
    "mend": "fix, remediation",
    "mended": "fixed, resolved",
    "mends": "fixes",
    "nobody": "say who",
    "patiently": "with retries",
    "poison": "malformed",
    "said": "say what it is: message, reason, declared",
    "somebody": "say who",
    "told": "reported",
    "touched": "affected",
    "undone": "pending, rolled back",
}
"""Parts of identifiers → what to write."""
IN_TEXTS = {
    r"anew": "again",
    r"all right again": "resolved",
    r"mend(s|ed|ing)?": "fix",
    r"nobody|somebody": "say who: the producer, another writer, the operator",
    r"once more": "again",
    r"poison record": "malformed record",
    r"stand-ins?": "emulator",
    r"told": "reported",
    r"by hand": "manually",
    r"(?<!there )is no (query|record|table|topic|folder|transform|key)": "is not a …",
    r"something else than": "unexpected …",
}
"""Patterns of messages and docstrings → what to write."""
VAGUE = {"found", "one", "it", "at", "what", "held", "about"}
"""Names that do not say what they hold: only for locals that the reader sees at a glance."""
AT_A_GLANCE = 10
"""Lines of a function."""
_TEXTS = {
    re.compile(rf"\b({pattern})\b", re.IGNORECASE): word for pattern, word in IN_TEXTS.items()
}
_SUSPECT = re.compile("|".join([*IN_NAMES, *IN_TEXTS]))
"""Finds what may be a glossary word in a file; most files have none, and are not parsed."""
_DIVIDED = re.compile(r"""["']\s*\n\s*[bfr]*["']""")
"""Between two parts of a text."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of everything that the code defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def problems(source: str) -> Iterator[str]:
    """Yield the line of each glossary word in names and texts, and what to write instead."""
    if not _SUSPECT.search(_DIVIDED.sub("", source).lower()):
        return
    tree = ast.parse(source)
    for line, name in names(tree):
        for part in re.split("_", _CAMEL.sub("_", name).lower()):
            if part in IN_NAMES:
                yield f"{line}: the name {name}: write {IN_NAMES[part]}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for pattern, word in _TEXTS.items():
                if found := pattern.search(node.value):
                    yield f"{node.lineno}: {found[0]!r}: write {word}"


def vague(source: str) -> Iterator[str]:
    """Yield the vague names in public signatures and in functions that are long."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_long = (function.end_lineno or 0) - function.lineno >= AT_A_GLANCE
        if not is_long and function.name.startswith("_"):
            continue
        for node in ast.walk(function if is_long else function.args):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in VAGUE:
                    yield f"{node.lineno}: {name} in {function.name}: write what it holds"


def found_in(folders: Sequence[str], find: Callable[[str], Iterator[str]]) -> list[str]:
    files = [file for folder in folders for file in sorted((PROJECT_ROOT / folder).rglob("*.py"))]
    assert len(files) > 500
    return [
        f"{file.relative_to(PROJECT_ROOT)}:{problem}"
        for file in files
        for problem in find(file.read_text())
    ]


def test_language_of_the_library_and_the_stack_has_no_glossary_words() -> None:
    assert found_in(["platform"], problems) == []


def test_names_say_what_they_hold() -> None:
    assert found_in(["platform", "assets", "resources", "jobs"], vague) == []
