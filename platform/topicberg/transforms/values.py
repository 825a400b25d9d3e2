"""What a function has from outside that its source does not say, as text for its version.

The function of a table may be made by another function, as for one table a currency. What it then
uses is in the cells of its closure and in its defaults. Their text is the same in every process,
with every version of Python, and wherever the code is: functions and classes of the project count
by their code, those of libraries by their names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from inspect import unwrap
from pathlib import PurePath
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from pydantic import BaseModel

from topicberg.transforms.syntax import dump, tree

_LOCAL = "<locals>"
_LAMBDA = "<lambda>"
_SCALAR = str | bytes | int | float | None


def outer_name(definition: Any) -> str:
    """Return the name in its module of what holds the definition of a function or class."""
    name: str = definition.__qualname__
    return name.partition(".")[0]


class Values(NamedTuple):
    """Writes values as text, and reports the code that they use."""

    use: Callable[[ast.AST | str, str], None]
    """Is called with a name, or the code of a lambda function, and its module."""
    is_project: Callable[[str], bool]
    """Whether a module is the user's."""

    def captured(self, function: Callable[..., Any]) -> str:
        """Return what a function has from outside, in lines of name and value."""
        return "".join(self._captured(function, ()))

    def text(self, value: Any, around: tuple[int, ...] = ()) -> str:
        """Return the text of a value.

        :param around: what it is a part of, by ``id``
        """
        if _is_plain(value, around):
            return repr(value)
        if id(value) in around:
            return "..."
        around = (*around, id(value))

        def joined(values: Iterable[Any]) -> str:
            return ", ".join(self.text(each, around) for each in values)

        kind = self._kind(type(value))
        match value:
            case type():
                return self._kind(value)
            case ModuleType():
                return value.__name__
            case Enum():
                return f"{kind}.{value.name}"
            case partial():
                return f"partial({joined((value.func, value.args, value.keywords))})"
            case FunctionType():
                return self._function(value, around)
            case MethodType():
                return f"method({joined((value.__func__, value.__self__))})"
            case Mapping():
                pairs = (f"{joined([key])}: {joined([each])}" for key, each in value.items())
                return f"{kind}{{{', '.join(pairs)}}}"
            case AbstractSet():
                return f"{kind}{{{', '.join(sorted(self.text(each, around) for each in value))}}}"
            case list() | tuple():
                return f"{kind}({joined(value)})"
            case PurePath():  # the project is in another folder elsewhere
                return f"{kind}({value.name if value.is_absolute() else value.as_posix()!r})"
            case BaseModel():
                return f"{kind}({joined([dict(value)])})"
        if is_dataclass(value):
            named = {each.name: getattr(value, each.name) for each in fields(value)}
            return f"{kind}({joined([named])})"
        return kind + self._state(value, around)

    def _captured(self, function: Any, around: tuple[int, ...]) -> Iterator[str]:
        """Yield the lines of a function, and of those that it wraps."""
        is_project = self.is_project(_module(function))
        code = getattr(function, "__code__", None)
        names = code.co_freevars if code else ()
        for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:  # it is defined later
                continue
            is_wrapped = value is getattr(function, "__wrapped__", None)
            # What the closures of libraries hold is theirs, but for plain arguments.
            if _is_plain(value) or (is_project and not is_wrapped):
                yield f"\n{name} = {self.text(value, around)}"
        if is_project and _LOCAL in getattr(function, "__qualname__", ""):
            defaults = (function.__defaults__ or (), function.__kwdefaults__ or {})
            if any(defaults) and not _shows_defaults(function):
                yield f"\ndefaults = {self.text(defaults, around)}"
        if wrapped := getattr(function, "__wrapped__", None):
            yield from self._captured(wrapped, around)

    def _function(self, function: FunctionType, around: tuple[int, ...]) -> str:
        inner: FunctionType = unwrap(function)  # a wrapper has the name of what it wraps
        module = _module(inner)
        if not self.is_project(module):
            return self._named(inner, module)
        text = f"{module}.{inner.__qualname__}"
        self.use(outer_name(inner), module)
        if inner.__name__ == _LAMBDA:
            for node in _lambdas(module, inner.__code__.co_firstlineno):
                self.use(node, module)
                text += f" {dump(node)}"
        return f"{text}{''.join(self._captured(function, around))}"

    def _kind(self, kind: type) -> str:
        """Return the name of a class."""
        if self.is_project(kind.__module__):
            self.use(outer_name(kind), kind.__module__)
            return f"{kind.__module__}.{kind.__qualname__}"
        return self._named(kind, kind.__module__)

    def _named(self, definition: Any, module: str) -> str:
        """Return the name of what a library defines, without the module, which may move."""
        return f"{module.partition('.')[0]}.{definition.__qualname__}"

    def _state(self, value: Any, around: tuple[int, ...]) -> str:
        """Return the text of an object, but for its class."""
        is_lazy = type(value).__name__ == "DataFrame"  # Spark's asks its server
        has_text: bool = type(value).__repr__ is not object.__repr__  # type: ignore[comparison-overlap]
        if has_text and not is_lazy:
            text = repr(value)
            if " at 0x" not in text:
                return f" {text}"
        if self.is_project(type(value).__module__) and hasattr(value, "__dict__"):
            return f"({self.text(vars(value), around)})"
        return ""  # a library's: its state may be of this process


def _is_plain(value: Any, around: tuple[int, ...] = ()) -> bool:
    """Return whether Python's own text of a value is the same everywhere."""
    if isinstance(value, Enum) and not isinstance(value, _SCALAR):
        return False
    if isinstance(value, _SCALAR):
        return True
    if id(value) in around:
        return False
    around = (*around, id(value))
    if isinstance(value, list | tuple):
        return all(_is_plain(each, around) for each in value)
    if type(value) is dict:
        return all(_is_plain(each, around) for pair in value.items() for each in pair)
    return False


def _module(function: Any) -> str:
    """Return the module that a function is defined in, not that of what it wraps."""
    names = getattr(function, "__globals__", None) or {}
    module: str = names.get("__name__") or getattr(function, "__module__", None) or ""
    return module


def _shows_defaults(function: Any) -> bool:
    """Return whether the source says what all defaults of a function are: constants."""
    definitions = [
        node.args
        for node in ast.walk(tree(_module(function)) or ast.Module([], []))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == function.__code__.co_name
        and function.__code__.co_firstlineno
        == min(each.lineno for each in (node, *node.decorator_list))
    ]
    if len(definitions) != 1:
        return False
    (args,) = definitions
    keywords = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    try:
        positional = tuple(map(ast.literal_eval, args.defaults))
        named = {name.arg: ast.literal_eval(value) for name, value in keywords if value}
    except ValueError:  # an expression, which may have another value in each call
        return False
    # They may have been set later.
    return bool(
        positional == (function.__defaults__ or ()) and named == (function.__kwdefaults__ or {})
    )


def _lambdas(module: str, line: int) -> Iterator[ast.Lambda]:
    """Yield the lambda functions that begin in a line, of which Python does not know the column."""
    for node in ast.walk(tree(module) or ast.Module([], [])):
        if isinstance(node, ast.Lambda) and node.lineno == line:
            yield node
