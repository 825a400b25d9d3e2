"""What the names of a module stand for: the statements that bind them or change their values.

Only what runs when the module is imported counts, and it is read, not executed. A name may be bound
by a statement of its own, within a condition or a loop, and changed later: ``RATES["usd"] = 2``.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from topicberg.transforms.syntax import dotted, is_function, tree

_OF_PROCESS = frozenset({"logging", "warnings", "atexit"})
"""Modules whose calls change what the process does, and no value of the user's."""
_LOGGERS = frozenset({"getLogger", "get_dagster_logger"})
"""Functions that return a logger."""
_SETTERS = frozenset({"setattr", "delattr"})

Name = tuple[str, str]
"""A module, and a name in it."""


class Bindings(NamedTuple):
    """Of a module, by name."""

    statements: dict[str, list[ast.stmt]]
    """Those that bind the name."""
    effects: dict[str, list[ast.stmt]]
    """What else its value depends on: conditions and loops around these, and later changes."""
    setters: dict[str, list[str]]
    """Functions that may set it, by ``global``."""


def bindings(module: str) -> Bindings:
    """Return the bindings of a module, outside of its functions; empty: it is not in Python."""
    parsed = tree(module)
    return _bindings_of(parsed, module) if parsed else Bindings({}, {}, {})


@cache
def _bindings_of(parsed: ast.Module, module: str) -> Bindings:
    names = Bindings(defaultdict(list), defaultdict(list), defaultdict(list))
    _add(names, module, parsed.body, ())
    return Bindings(*map(dict, names))  # type: ignore[arg-type]


def _add(
    names: Bindings, module: str, statements: Iterable[ast.stmt], around: tuple[ast.stmt, ...]
) -> None:
    """Add some statements of a module.

    :param around: the conditions and loops that they are in
    """
    for statement in statements:
        bound: Iterable[str] = ()
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound = (statement.name,)
                for node in ast.walk(statement):
                    for name in node.names if isinstance(node, ast.Global) else ():
                        names.setters[name].append(statement.name)
            case ast.Import() | ast.ImportFrom():
                bound = imported(statement, module)
            case ast.If(test=test, body=body) if ast.unparse(test) == "__name__ == '__main__'":
                _add(names._replace(effects=defaultdict(list)), module, body, around)
                _add(names, module, statement.orelse, around)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                frame = _frame(statement)
                inner = (*around, frame) if frame else around
                for name in _targets(statement):
                    _affect(names, name, inner)
                for field in ("body", "orelse", "finalbody"):
                    _add(names, module, getattr(statement, field, ()), inner)
                for handler in getattr(statement, "handlers", ()):
                    _add(names, module, handler.body, inner)
            case _:
                bound = _stored(statement)
                for name in _changed(statement, names, module):
                    _affect(names, name, (statement, *around))
        for name in bound:
            names.statements[name].append(statement)
            _affect(names, name, around)


def _affect(names: Bindings, name: str, effects: Iterable[ast.stmt]) -> None:
    for effect in effects:
        if not any(effect is each for each in names.effects[name]):
            names.effects[name].append(effect)
    if not names.effects[name]:
        del names.effects[name]


def _frame(statement: ast.stmt) -> ast.stmt | None:
    """Return the part of a compound statement on which the names in it depend.

    None: these do not change what this Python, with these libraries, makes of the module.
    """
    match statement:
        case ast.If(test=test):
            if ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
                return None
            return ast.If(test=test, body=[ast.Pass()], orelse=[])
        case ast.With(items=items):
            return ast.With(items=items, body=[ast.Pass()])
        case ast.Try(body=body):
            return None if all(map(_only_imports, body)) else statement
        case _:
            return statement  # what a loop leaves depends on all of it, such as a `continue`


def _only_imports(statement: ast.stmt) -> bool:
    """Return whether it fails only if a library is missing."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Assign(value=ast.Constant()):
            return True
        case _:
            return False


def _targets(statement: ast.stmt) -> set[str]:
    """Return the names that the head of a compound statement binds."""
    heads: list[ast.AST]
    match statement:
        case ast.If(test=test) | ast.While(test=test):
            heads = [test]
        case ast.For(target=target, iter=iterated):
            heads = [target, iterated]
        case ast.With(items=items):
            heads = [*items]
        case _:
            heads = []
    return {name for head in heads for name in _stored(head)}


def _stored(node: ast.AST) -> set[str]:
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


def _changed(statement: ast.stmt, names: Bindings, module: str) -> Iterator[str]:
    """Yield the names whose values a simple statement changes in place.

    A call whose result is not used is made for what it changes: the object of a method, or an
    argument. A function as an argument is called then or later, and not changed.

    :param names: those that are bound before
    """
    targets: list[ast.expr] = []
    match statement:
        case ast.Assign(targets=assigned) | ast.Delete(targets=assigned):
            targets = [*assigned]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case ast.Expr(value=ast.Call(func=called)) if _is_of_process(called, names, module):
            pass
        case ast.Expr(value=ast.Call(func=called) as call):
            function = called.id if isinstance(called, ast.Name) else ""
            given = (*call.args, *(keyword.value for keyword in call.keywords))
            for each in given if function != "print" else ():
                is_called = isinstance(each, ast.Name) and _is_function(each.id, names, module)
                if (name := _argument(each)) and (not is_called or function in _SETTERS):
                    yield name
            if not isinstance(called, ast.Name) and (name := _root(called)):
                yield name
    while targets:
        match changed := targets.pop():
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                targets += parts
            case ast.Attribute() | ast.Subscript():
                if name := _root(changed):
                    yield name


def _is_of_process(called: ast.expr, names: Bindings, module: str) -> bool:
    """Return whether a call is one of a logger, or of a module such as ``warnings``."""
    root = _root(called) or ""
    for statement in names.statements.get(root, ()):
        match statement:
            case ast.Import() | ast.ImportFrom():
                origin = imported(statement, module).get(root, "")
                outer = origin if isinstance(origin, str) else origin[0]
                if outer.partition(".")[0] in _OF_PROCESS:
                    return True
            case ast.Assign(value=ast.Call(func=made)) | ast.AnnAssign(value=ast.Call(func=made)):
                if _LOGGERS.intersection(dotted(made)[-1:]):
                    return True
    return False


def _is_function(name: str, names: Bindings, module: str) -> bool:
    """Return whether a name is that of a function, of this module or another of its package."""
    statements = names.statements.get(name, [])
    if len(statements) == 1 and isinstance(statement := statements[0], ast.ImportFrom):
        origin, package = module_of(statement, module), module.partition(".")[0]
        parsed = tree(origin) if origin.partition(".")[0] == package else None
        named = {each.asname or each.name: each.name for each in statement.names}
        statements = [
            each
            for each in (parsed.body if parsed else ())
            if named.get(name) in (getattr(each, "name", None), *_stored(each))
        ]
    return bool(statements) and all(map(is_function, statements))


def _argument(node: ast.expr) -> str | None:
    """Return the name of an argument that a call may change; what a call returns has none."""
    return None if any(isinstance(each, ast.Call) for each in ast.walk(node)) else _root(node)


def _root(node: ast.expr) -> str | None:
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
                node = inner
            case ast.Call(func=inner):
                node = inner
            case _:
                return None
    return node.id


def imported(statement: ast.AST, module: str) -> dict[str, Name | str]:
    """Return the names that an import binds → the module, or the module and the name in it."""
    targets: dict[str, Name | str] = {}
    if isinstance(statement, ast.Import):
        for each in statement.names:
            targets[each.asname or each.name.partition(".")[0]] = (
                each.name if each.asname else each.name.partition(".")[0]
            )
    elif isinstance(statement, ast.ImportFrom):
        origin = module_of(statement, module)
        for each in statement.names:
            targets[each.asname or each.name] = (origin, each.name)
    return targets


def module_of(statement: ast.ImportFrom, module: str) -> str:
    """Return the module that an import names, which may be relative."""
    if not statement.level:
        return statement.module or ""
    loaded = sys.modules.get(module)
    base = getattr(loaded, "__package__", None) or module.rpartition(".")[0]
    for _ in range(statement.level - 1):
        base = base.rpartition(".")[0]
    return f"{base}.{statement.module}" if statement.module else base
