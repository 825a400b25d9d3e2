"""The version of a function: a hash of its code and of the code of the project that it uses.

What counts is what the parsed source says: the function, and everything of the project that it
names, transitively: functions, classes, constants, and the imports that they come from. What does
not count: comments, docstrings, annotations of arguments, the layout and the place of the code,
Python's version, and libraries. Values that are computed when a module is imported count by their
expression.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any

from topicberg.errors import TopicbergError
from topicberg.project_code import LIBRARIES, is_library, packages
from topicberg.settings import settings as current_settings

_DECORATORS = frozenset({"derived_table", "table_check"})
_IGNORED = frozenset({"ctx", "type_comment", "kind", "returns", "decorator_list"})
_LENGTH = 12
Name = tuple[str, str]
"""A module, and a name in it."""


def code_version(function: Callable[..., Any], settings: str, *others: type) -> str:
    """Return the version of a function.

    :param settings: further text that changes it
    :param others: classes that it uses without naming them in its body
    :raises TopicbergError: the source of the function cannot be read
    """
    while isinstance(function, partial):
        settings += repr((function.args, sorted(function.keywords.items())))
        function = function.func
    sources: dict[Name, str] = {}
    module, name = function.__module__ or "", function.__qualname__.partition(".")[0]
    package = module.partition(".")[0]
    _collect((module, name), package, sources)
    for other in others:
        _collect((other.__module__, _outer(other)), package, sources)
    if not sources.get((module, name)):
        raise TopicbergError(
            f"function {module}.{function.__qualname__}: its source cannot be read",
            hint="define the function in a file of the project",
        )
    text = "\n".join(f"{'.'.join(key)}: {sources[key]}" for key in sorted(sources))
    text += "".join(_cells(function))
    return hashlib.sha256(f"{settings}\n{text}".encode()).hexdigest()[:_LENGTH]


def _outer(kind: type) -> str:
    return kind.__qualname__.partition(".")[0]


def _cells(function: Callable[..., Any]) -> Iterator[str]:
    """Yield what a function of a function has from outside, as far as it is plain data."""
    code: CodeType | None = getattr(function, "__code__", None)
    for name, cell in zip(
        code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=False
    ):
        value = cell.cell_contents
        if isinstance(value, str | bytes | int | float | bool | tuple | list | None):
            yield f"\n{name} = {value!r}"


def _collect(name: Name, package: str, sources: dict[Name, str]) -> None:
    """Add what a name stands for, and what that uses."""
    waiting = [name]
    while waiting:
        key = waiting.pop()
        if key in sources:
            continue
        sources[key] = ""
        module, called = key
        bound = _bindings(module)
        for statement in bound.get(called, ()):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                target = _imported(statement, module).get(called)
                if isinstance(target, tuple) and _is_project(target[0], package):
                    waiting.append(target)
                sources[key] += f"import {target}"
                continue
            sources[key] += _dump(statement)
            waiting += _used(statement, module, package)
        for statement in () if called in bound else bound.get("*", ()):
            if isinstance(statement, ast.ImportFrom):
                origin = _module_of(statement, module)
                if _is_project(origin, package) and called in _bindings(origin):
                    waiting.append((origin, called))


def _used(statement: ast.AST, module: str, package: str) -> Iterator[Name]:
    """Yield the names of the project that a statement uses."""
    bound = _bindings(module)
    inner: dict[str, Name | str] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):  # within a function
            inner |= _imported(node, module)
    for node in _nodes(statement):
        parts = _dotted(node)
        if not parts:
            continue
        origin: Name | str | None = inner.get(parts[0])
        if origin is None:
            imports = [each for each in bound.get(parts[0], ()) if _is_import(each)]
            origin = _imported(imports[-1], module).get(parts[0]) if imports else None
        if origin is None:
            if parts[0] in bound or ("*" in bound and not hasattr(builtins, parts[0])):
                yield module, parts[0]
            continue
        if isinstance(origin, tuple):
            if _is_project(origin[0], package):
                yield origin
            if parts[0] not in inner:
                yield module, parts[0]
            inner_module = f"{origin[0]}.{origin[1]}"
            origin = inner_module if _tree(inner_module) else None
        rest = parts[1:]
        while origin and rest and _tree(f"{origin}.{rest[0]}"):
            origin, rest = f"{origin}.{rest[0]}", rest[1:]
        if origin and rest and _is_project(origin, package):
            yield origin, rest[0]


def _is_import(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that count, a dotted name before its parts."""
    yield node
    for field, value in _fields(node):
        children: Iterable[Any] = value if isinstance(value, list) else (value,)
        for child in children:
            if isinstance(child, ast.AST) and not (field == "annotation" and _is_argument(node)):
                yield from _nodes(child)


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """Return the parts of a name as in ``module.function``; empty: the node is not a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else ()


def _file(module: str) -> str | None:
    """Return the file of a module, which is not imported for that."""
    if loaded := sys.modules.get(module):
        return getattr(loaded, "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec else None


def _tree(module: str) -> ast.Module | None:
    """Return the parsed file of a module; None: it has none in Python."""
    file = _file(module)
    if not file or not file.endswith(".py"):
        return None
    try:
        return _parsed(file, Path(file).stat().st_mtime_ns)
    except (OSError, SyntaxError):
        return None


@cache
def _parsed(file: str, _changed_at: int) -> ast.Module:
    return ast.parse(Path(file).read_bytes())


def _bindings(module: str) -> Mapping[str, list[ast.stmt]]:
    """Return name → the statements of a module, outside of functions, that bind it."""
    tree = _tree(module)
    return _bindings_of(tree, module) if tree else {}


@cache
def _bindings_of(tree: ast.Module, module: str) -> Mapping[str, list[ast.stmt]]:
    bindings: dict[str, list[ast.stmt]] = {}

    def look(statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            names: Iterable[str] = ()
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    names = (statement.name,)
                case ast.Import() | ast.ImportFrom():
                    names = _imported(statement, module)
                case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                    for field in ("body", "orelse", "finalbody"):
                        look(getattr(statement, field, ()))
                    for handler in getattr(statement, "handlers", ()):
                        look(handler.body)
                case _:
                    names = {
                        node.id
                        for node in ast.walk(statement)
                        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                    }
            for name in names:
                bindings.setdefault(name, []).append(statement)

    look(tree.body)
    return bindings


def _imported(statement: ast.AST, module: str) -> dict[str, Name | str]:
    """Return the names that an import binds → the module, or the module and the name in it."""
    targets: dict[str, Name | str] = {}
    if isinstance(statement, ast.Import):
        for each in statement.names:
            targets[each.asname or each.name.partition(".")[0]] = (
                each.name if each.asname else each.name.partition(".")[0]
            )
    elif isinstance(statement, ast.ImportFrom):
        origin = _module_of(statement, module)
        for each in statement.names:
            targets[each.asname or each.name] = (origin, each.name)
    return targets


def _module_of(statement: ast.ImportFrom, module: str) -> str:
    """Return the module that an import names, which may be relative."""
    if not statement.level:
        return statement.module or ""
    loaded = sys.modules.get(module)
    base = getattr(loaded, "__package__", None) or module.rpartition(".")[0]
    for _ in range(statement.level - 1):
        base = base.rpartition(".")[0]
    return f"{base}.{statement.module}" if statement.module else base


def _is_project(module: str, package: str) -> bool:
    """Return whether a module is the user's.

    The answer must be the same wherever the project is installed: the image of EMR Serverless has
    Spark in another folder, and a project may be in ``site-packages``.

    :param package: the outermost package of the function: it is the user's wherever it is installed
    """
    outer = module.partition(".")[0]
    if outer == package:
        return True
    if outer in sys.stdlib_module_names or outer in LIBRARIES:
        return False
    file = _file(outer) or _file(module)
    return (file is not None and not is_library(Path(file))) or outer in _packages()


def _packages() -> frozenset[str]:
    """Return the packages of the project; none if there is no valid project."""
    try:
        return _packages_of(current_settings().project_root)
    except TopicbergError:
        return frozenset()


@cache
def _packages_of(root: Path) -> frozenset[str]:
    return frozenset(packages(root))


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a node that count."""
    for field in sorted(node._fields):
        value = getattr(node, field, None)
        if field == "decorator_list":
            value = [
                each for each in value or () if _DECORATORS.isdisjoint(_dotted_call(each)[-1:])
            ]
        elif field in _IGNORED:
            continue
        if field == "body" and isinstance(value, list) and value and _is_text(value[0]):
            value = value[1:]
        if value is None or value == []:  # Python's versions differ in what they leave out
            continue
        yield field, value


def _dotted_call(node: ast.AST) -> tuple[str, ...]:
    return _dotted(node.func if isinstance(node, ast.Call) else node)


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is only a text: a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_argument(node: ast.AST) -> bool:
    return isinstance(node, ast.arg)


def _dump(node: Any) -> str:
    """Return the same text for the same code in every version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = (
        f"{field}={_dump(value)}"
        for field, value in _fields(node)
        if not (field == "annotation" and _is_argument(node))
    )
    return f"{type(node).__name__}({','.join(parts)})"
