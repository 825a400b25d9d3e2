"""The version of a function: a hash of its code and of the code of the project that it uses.

What counts is what the parsed source says: the function, and everything of the project that it
names, transitively: functions, classes, constants, and the imports that they come from, with the
statements that change them (:mod:`topicberg.transforms.bindings`). What does not count: comments,
docstrings, annotations of arguments, the layout and the place of the code, Python's version, and
libraries. Values that are computed when a module is imported count by their expression; those that
a function has from another function, as they are (:mod:`topicberg.transforms.values`).
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from topicberg.errors import TopicbergError
from topicberg.project_code import LIBRARIES, is_library, packages
from topicberg.settings import settings as current_settings
from topicberg.transforms.bindings import Name, bindings, imported, module_of
from topicberg.transforms.syntax import dotted, dump, free_names, nodes, source_file_of, tree
from topicberg.transforms.values import Values, outer_name

_LENGTH = 12


def code_version(function: Callable[..., Any], settings: str, *others: type) -> str:
    """Return the version of a function.

    :param settings: further text that changes it
    :param others: classes that it uses without naming them in its body
    :raises TopicbergError: the source of the function cannot be read
    """
    sources: dict[Name, str] = {}
    given = []
    while isinstance(function, partial):
        given.append((function.args, sorted(function.keywords.items())))
        function = function.func
    module, name = function.__module__ or "", function.__qualname__.partition(".")[0]
    package = module.partition(".")[0]

    def use(used: ast.AST | str, module: str) -> None:
        """Add a name of a module, or those that a part of its code uses."""
        names = [(module, used)] if isinstance(used, str) else _used(used, module, package)
        for name in names:
            _collect(name, package, sources)

    values = Values(use, lambda name: _is_project(name, package))
    settings += "".join(map(values.text, given))
    _collect((module, name), package, sources)
    for other in others:
        _collect((other.__module__, outer_name(other)), package, sources)
    if not sources.get((module, name)):
        raise TopicbergError(
            f"function {module}.{function.__qualname__}: its source cannot be read",
            hint="define the function in a file of the project",
        )
    captured = values.captured(function)
    text = "\n".join(f"{'.'.join(key)}: {sources[key]}" for key in sorted(sources))
    text += captured
    return hashlib.sha256(f"{settings}\n{text}".encode()).hexdigest()[:_LENGTH]


def _collect(name: Name, package: str, sources: dict[Name, str]) -> None:
    """Add what a name stands for, and what that uses."""
    waiting = [name]
    while waiting:
        key = waiting.pop()
        if key in sources:
            continue
        sources[key] = ""
        module, called = key
        module_bindings = bindings(module)
        for statement in module_bindings.statements.get(called, ()):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                target = imported(statement, module).get(called)
                if isinstance(target, tuple) and _is_project(target[0], package):
                    waiting.append(target)
                sources[key] += f"import {target}"
                continue
            sources[key] += dump(statement)
            waiting += _used(statement, module, package)
        for statement in module_bindings.effects.get(called, ()):
            sources[key] += dump(statement)
            waiting += _used(statement, module, package)
        waiting += ((module, setter) for setter in module_bindings.setters.get(called, ()))
        stars = (
            () if called in module_bindings.statements else module_bindings.statements.get("*", ())
        )
        for statement in stars:
            if isinstance(statement, ast.ImportFrom):
                origin = module_of(statement, module)
                if _is_project(origin, package) and _binds(origin, called):
                    waiting.append((origin, called))


def _binds(module: str, name: str) -> bool:
    module_bindings = bindings(module)
    return name in module_bindings.statements or name in module_bindings.effects


def _used(statement: ast.AST, module: str, package: str) -> Iterator[Name]:
    """Yield the names of the project that a statement uses."""
    module_bindings = bindings(module)
    bound = module_bindings.statements
    inner: dict[str, Name | str] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):  # within a function
            inner |= imported(node, module)
    affected = (
        free_names(statement) & module_bindings.effects.keys() if module_bindings.effects else set()
    )
    for node in nodes(statement):
        parts = dotted(node)
        if not parts:
            continue
        if parts[0] in affected and parts[0] not in inner:
            yield module, parts[0]
        origin: Name | str | None = inner.get(parts[0])
        if origin is None:
            imports = [each for each in bound.get(parts[0], ()) if _is_import(each)]
            origin = imported(imports[-1], module).get(parts[0]) if imports else None
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
            origin = inner_module if tree(inner_module) else None
        rest = parts[1:]
        while origin and rest and tree(f"{origin}.{rest[0]}"):
            origin, rest = f"{origin}.{rest[0]}", rest[1:]
        if origin and rest and _is_project(origin, package):
            yield origin, rest[0]


def _is_import(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


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
    file = source_file_of(outer) or source_file_of(module)
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
