"""The version of a function: a hash of its source and of what it names in the project.

What counts is what the parsed source says, which is read and not executed: the function, and the
statements of the project that define or change what it names, transitively. What does not count:
comments, docstrings, annotations of arguments, layout, the place of the code, Python's version, and
libraries. A value that is computed when a module is imported counts by its expression; what a
function has from the function that made it, by its text.

A statement that may change a value counts. ``code_version="…"`` of a table stands for all of it.
"""

from __future__ import annotations

import ast
import hashlib
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache, partial
from importlib.util import resolve_name
from itertools import compress
from pathlib import Path, PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from topicberg.errors import TopicbergError
from topicberg.shipping.project import is_project, source_file_of

Name = tuple[str, str]  # A module, and a name in it.
_EMPTY = ast.Module([], [])
_DECORATORS = frozenset({"derived_table", "table_check"})
_IGNORED = frozenset({"ctx", "type_comment", "kind"})
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITION = (*_FUNCTION, ast.ClassDef)


def code_version(function: Callable[..., Any], settings: str, *others: type) -> str:
    """Return the version of a function.

    :param settings: further text that changes it
    :param others: classes that it uses without naming them in its body
    :raises TopicbergError: the source of the function cannot be read
    """
    bound = []
    while isinstance(function, partial):
        bound.append((function.args, sorted(function.keywords.items())))
        function = function.func
    module = function.__module__ or ""
    uses = _Found({}, module.partition(".")[0])
    for definition in (function, *others):
        uses.add((definition.__module__ or "", _outer_name(definition)))
    if not uses.sources.get((module, _outer_name(function))):
        raise TopicbergError(
            f"function {module}.{function.__qualname__}: its source cannot be read",
            hint="define the function in a file of the project",
        )
    values = uses.text(bound) + "".join(uses.captured(function, ()))
    sources = (f"{'.'.join(name)}: {text}" for name, text in sorted(uses.sources.items()))
    return hashed(settings, values, *sources)


def hashed(*texts: str) -> str:
    """Return a version of texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


class _Found(NamedTuple):
    """Collects what a function uses."""

    sources: dict[Name, str]  # The text of what each name stands for.
    package: str  # The outermost package of the function: the user's wherever it is installed.

    def add(self, *names: Name) -> None:
        """Add what names stand for, and what that uses, as far as it is the project's."""
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in self.sources or not is_project(name[0], self.package):
                continue
            module, called = name
            source = _module(module)
            statements = source.statements.get(called, ())
            self.sources[name] = "".join(map(dump, statements))
            for statement in statements:
                waiting += _used(statement, module)
            if origin := source.imports.get(called):
                self.sources[name] += f"import {origin}"
                waiting.append(origin)
            elif not statements:
                waiting += ((star, called) for star in source.stars)

    def text(self, value: Any, around: tuple[int, ...] = ()) -> str:
        """Return the text of a value: the same in every process, with every version of Python.

        :param around: what it is a part of, by ``id``
        """
        if id(value) in around:
            return "..."
        around = (*around, id(value))
        kind = value if isinstance(value, type) else type(value)
        named = self._definition(kind)
        match value:
            case type():
                return named
            case Enum():
                return f"{named}.{value.name}"
            case None | str() | bytes() | int() | float():
                return repr(value)
            case ModuleType():
                return value.__name__
            case partial():
                return self.text((value.func, value.args, value.keywords), around)
            case MethodType():
                return self.text((value.__func__, value.__self__), around)
            case FunctionType():
                return self._function(value, around)
            case Mapping():
                return self.text([*value.items()], around)
            case AbstractSet():
                return named + ",".join(sorted(self.text(item, around) for item in value))
            case list() | tuple():
                return f"{named}({','.join(self.text(each, around) for each in value)})"
            case PurePath():  # the project is in another folder elsewhere
                return value.name if value.is_absolute() else value.as_posix()
        if hasattr(value, "__dict__") and is_project(kind.__module__, self.package):
            return named + self.text(vars(value), around)
        is_lazy = kind.__name__ == "DataFrame"  # Spark's asks its server
        plain: Any = object.__repr__
        shown = "" if is_lazy or kind.__repr__ is plain else repr(value)
        return named + ("" if " at 0x" in shown else shown)

    def captured(self, function: Any, around: tuple[int, ...]) -> Iterator[str]:
        """Yield the lines of name and value that a function has from the one that made it."""
        is_own = is_project(function.__module__ or "", self.package)
        code, wrapped = getattr(function, "__code__", None), getattr(function, "__wrapped__", None)
        cells = getattr(function, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
            try:
                value = cell.cell_contents
            except ValueError:  # it is defined later
                continue
            # What the closures of libraries hold is theirs, but for plain arguments.
            if value is not wrapped and (is_own or isinstance(value, str | int | float)):
                yield f"\n{name} = {self.text(value, around)}"
        if is_own and "<locals>" in getattr(function, "__qualname__", ""):
            yield self.text((function.__defaults__, function.__kwdefaults__), around)
        yield from self.captured(wrapped, around) if wrapped else ()

    def _function(self, function: FunctionType, around: tuple[int, ...]) -> str:
        text = self._definition(function)
        if function.__name__ == "<lambda>":  # of several in a line, Python does not know which
            module, line = function.__module__, function.__code__.co_firstlineno
            for node in ast.walk(_tree(module) or _EMPTY):
                if isinstance(node, ast.Lambda) and node.lineno == line:
                    self.add(*_used(node, module))
                    text += dump(node)
        return text + "".join(self.captured(function, around))

    def _definition(self, definition: Any) -> str:
        """Return the name of a function or class, and add it if it is the project's."""
        module = definition.__module__ or ""
        if not is_project(module, self.package):
            return f"{module.partition('.')[0]}.{definition.__qualname__}"  # its module may move
        self.add((module, _outer_name(definition)))
        return f"{module}.{definition.__qualname__}"


class _Module(NamedTuple):
    """What the names of a module stand for, outside of its functions."""

    statements: dict[str, list[ast.stmt]]  # Those that define a name, or may change its value.
    imports: dict[str, Name]  # Import → module and name in it; ``""``: the module itself.
    stars: list[str]  # The modules all names of which are imported.


def _module(name: str) -> _Module:
    return _module_of(_tree(name) or _EMPTY, name)


@cache
def _module_of(parsed: ast.Module, name: str) -> _Module:
    names = _Module({}, _imports(parsed, name), [])
    functions: set[str] = set()
    for each in _outside(parsed):
        match each:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                names.stars.append(_origin(each, name))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                functions.add(each.name)
                for inner in ast.walk(each):
                    for changed in inner.names if isinstance(inner, ast.Global) else ():
                        names.statements.setdefault(changed, []).append(each)
    for statement in parsed.body:
        for named in _defined(statement, functions):
            names.statements.setdefault(named, []).append(statement)
    return names


def _defined(statement: ast.stmt, functions: AbstractSet[str]) -> set[str]:
    """Return the names that a statement defines, or whose values it may change."""
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        return set()  # it does not run when the module is imported
    stored = set[str]()
    for each in _outside(statement):
        match each:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                stored.add(each.name)
            case ast.Name(ctx=ast.Store()):
                stored.add(each.id)
            case ast.Attribute() | ast.Subscript() if not isinstance(each.ctx, ast.Load):
                stored |= _root(each)
            case ast.Expr(value=ast.Call(func=called, args=given, keywords=named)):
                changed = set().union(*map(_root, (*given, *(keyword.value for keyword in named))))
                changed |= set() if isinstance(called, ast.Name) else _root(called)
                is_set = dotted(called)[-1:] in (("setattr",), ("delattr",))
                # A function is called, then or later, and not changed.
                stored |= changed if is_set else changed - functions
    return stored


def _root(node: ast.AST) -> set[str]:
    """Return the name of which an expression is a part; none: it is what a call returns."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _root(node.func)  # of what a method returns, its object may be a part
    return {node.id} if isinstance(node, ast.Name) else set()


def _imports(node: ast.AST, module: str) -> dict[str, Name]:
    """Return what the imports of a part of a module bind, without those of its functions."""
    bound: dict[str, Name] = {}
    for each in _outside(node) if isinstance(node, ast.Module) else ast.walk(node):
        match each:
            case ast.Import(names=names):
                for alias in names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    bound[alias.asname or name] = (name, "")
            case ast.ImportFrom(names=names):
                origin = _origin(each, module)
                bound |= {alias.asname or alias.name: (origin, alias.name) for alias in names}
    bound.pop("*", None)
    return bound


def _origin(statement: ast.ImportFrom, module: str) -> str:
    """Return the module that an import names, which may be relative."""
    package = getattr(sys.modules.get(module), "__package__", None) or module.rpartition(".")[0]
    return resolve_name("." * statement.level + (statement.module or ""), package)


def _used(statement: ast.AST, module: str) -> Iterator[Name]:
    """Yield the names of modules that a part of one uses, also as ``module.name``."""
    source, free = _module(module), _free_names(statement)
    imports = source.imports | _imports(statement, module)
    for node in ast.walk(statement):
        first, *rest = dotted(node) or ("",)
        if first not in free and first not in imports:
            continue
        if first not in imports or first in source.imports:
            yield module, first
        origin, name = imports.get(first, ("", ""))
        inner = f"{origin}.{name}".rstrip(".")
        while origin and rest and _tree(f"{inner}.{rest[0]}"):
            inner, rest = f"{inner}.{rest[0]}", rest[1:]
        if origin and name and inner == f"{origin}.{name}":
            yield origin, name
        if origin and rest and _tree(inner):
            yield inner, rest[0]


def _free_names(statement: ast.AST) -> set[str]:
    """Return the names of the module that a statement uses, without a function's own variables."""
    text = ast.unparse(ast.Module([statement], []))  # type: ignore[list-item]
    outer = symtable.symtable(text, "", "exec")
    names, tables = {symbol.get_name() for symbol in outer.get_symbols()}, outer.get_children()
    while tables:
        table = tables.pop()
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        tables += table.get_children()
    return names


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, but for the bodies of functions and classes."""
    yield node
    if not isinstance(node, (*_DEFINITION, ast.Lambda)):
        for each in ast.iter_child_nodes(node):
            yield from _outside(each)


def dotted(node: ast.AST) -> tuple[str, ...]:
    """Return the parts of a name as in ``module.function``; empty: the node is not a name."""
    if isinstance(node, ast.Attribute):
        return (*parts, node.attr) if (parts := dotted(node.value)) else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


def dump(node: Any) -> str:
    """Return the same text for the same code in every version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = (
        f"{name}={dump(value)}"
        for name, value in ((name, getattr(node, name, None)) for name in sorted(node._fields))
        if name not in _IGNORED and value is not None and value != []  # left out by some versions
    )
    return f"{type(node).__name__}({','.join(parts)})"


@cache
def _parsed(file: str, _changed_at: int) -> ast.Module:
    """Return a file without docstrings, annotations of functions, and topicberg's decorators."""
    parsed = ast.parse(Path(file).read_bytes())
    for node in ast.walk(parsed):
        if isinstance(node, (*_DEFINITION, ast.Module)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, _DEFINITION):
            called = [
                dotted(getattr(decorator, "func", decorator)) for decorator in node.decorator_list
            ]
            counts = [_DECORATORS.isdisjoint(name[-1:]) for name in called]
            node.decorator_list = [*compress(node.decorator_list, counts)]
        if isinstance(node, _FUNCTION):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return parsed


def _tree(module: str) -> ast.Module | None:
    """Return the parsed file of a module, which is not imported for that; None: it has none."""
    file = source_file_of(module)
    try:
        return _parsed(file, Path(file).stat().st_mtime_ns) if file.endswith(".py") else None
    except (OSError, SyntaxError):
        return None


def _outer_name(definition: Any) -> str:
    """Return the name in its module of what holds the definition of a function or class."""
    return str(definition.__qualname__).partition(".")[0]
