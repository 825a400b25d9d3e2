"""The parsed source of modules, and what of it counts for the version of a function."""

from __future__ import annotations

import ast
import importlib.util
import symtable
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

_DECORATORS = frozenset({"derived_table", "table_check"})
_IGNORED = frozenset({"ctx", "type_comment", "kind", "returns", "decorator_list"})


def source_file_of(module: str) -> str | None:
    """Return the file of a module, which is not imported for that."""
    if loaded := sys.modules.get(module):
        return getattr(loaded, "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec else None


def tree(module: str) -> ast.Module | None:
    """Return the parsed file of a module; None: it has none in Python."""
    file = source_file_of(module)
    if not file or not file.endswith(".py"):
        return None
    try:
        return _parsed(file, Path(file).stat().st_mtime_ns)
    except (OSError, SyntaxError):
        return None


@cache
def _parsed(file: str, _changed_at: int) -> ast.Module:
    return ast.parse(Path(file).read_bytes())


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that count, a dotted name before its parts."""
    yield node
    for _, value in _fields(node):
        children: Iterable[Any] = value if isinstance(value, list) else (value,)
        for child in children:
            if isinstance(child, ast.AST):
                yield from nodes(child)


def dotted(node: ast.AST) -> tuple[str, ...]:
    """Return the parts of a name as in ``module.function``; empty: the node is not a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else ()


def free_names(statement: ast.AST) -> set[str]:
    """Return the names of the module that a statement uses, without a function's own variables."""
    text = ast.unparse(ast.Module([statement], []))  # type: ignore[list-item]
    outer = symtable.symtable(text, "", "exec")
    names = {each.get_name() for each in outer.get_symbols() if each.is_referenced()}
    tables = outer.get_children()
    while tables:
        table = tables.pop()
        names |= {each.get_name() for each in table.get_symbols() if each.is_global()}
        tables += table.get_children()
    return names


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a node that count."""
    for field in sorted(node._fields):
        value = getattr(node, field, None)
        if field == "decorator_list":
            value = _decorators(value or ())
        elif field in _IGNORED or (field == "annotation" and isinstance(node, ast.arg)):
            continue
        if field == "body" and isinstance(value, list) and value and _is_text(value[0]):
            value = value[1:]
        if value is None or value == []:  # Python's versions differ in what they leave out
            continue
        yield field, value


def _decorators(decorators: Iterable[ast.expr]) -> list[ast.expr]:
    """Return those that count."""
    return [each for each in decorators if _DECORATORS.isdisjoint(_dotted_call(each)[-1:])]


def is_function(node: ast.AST) -> bool:
    """Return whether a statement defines a function, of which no decorator makes something else."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _decorators(
        node.decorator_list
    )


def _dotted_call(node: ast.AST) -> tuple[str, ...]:
    return dotted(node.func if isinstance(node, ast.Call) else node)


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is only a text: a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def dump(node: Any) -> str:
    """Return the same text for the same code in every version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = (f"{field}={dump(value)}" for field, value in _fields(node))
    return f"{type(node).__name__}({','.join(parts)})"
