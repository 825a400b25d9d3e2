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

from topicberg.transforms.syntax import tree

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
                for name in _changed(statement):
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


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Yield the names whose values a simple statement changes in place.

    A call whose result is not used is made for what it changes: the object of a method, or an
    argument.
    """
    targets: list[ast.expr] = []
    match statement:
        case ast.Assign(targets=assigned) | ast.Delete(targets=assigned):
            targets = [*assigned]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case ast.Expr(value=ast.Call(func=called) as call):
            if not (isinstance(called, ast.Name) and called.id == "print"):
                given = (*call.args, *(keyword.value for keyword in call.keywords))
                yield from filter(None, map(_argument, given))
            if not isinstance(called, ast.Name) and (name := _root(called)):
                yield name
    while targets:
        match changed := targets.pop():
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                targets += parts
            case ast.Attribute() | ast.Subscript():
                if name := _root(changed):
                    yield name


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
