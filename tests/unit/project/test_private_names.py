"""Names of other libraries that are not public: each is a risk at their next release."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from repository import PROJECT_ROOT

CORE = PROJECT_ROOT / "platform" / "topicberg"
USED = {
    "checks/rules.py": "pyiceberg.expressions.visitors._InclusiveMetricsEvaluator",
    "dagster/executor.py": "dagster._core.execution.plan",
    "formats/protobuf/protoc.py": "grpc_tools._protoc_compiler",
    "formats/registry.py": "_rest_client",
    "spark.py": "_cleanup_ml_cache",
}
"""At most five, each with its reason beside it. What a class inherits is not counted."""
PUBLIC = {"os._exit", "_replace", "_fields"}
_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_SCRIPT = re.compile(r"(?m)^from (\w+) import (_\w+)$")


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield what a module defines or assigns: these attributes are its own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def _foreign(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Yield the private names that a module imports from others, or reaches on an object."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                modules = module.split(".")
                if modules[0] != "__future__" and not modules[0].startswith("topicberg"):
                    if any(map(_PRIVATE.fullmatch, modules)):
                        yield module
                    yield from (
                        f"{module}.{each.name}" for each in names if _PRIVATE.fullmatch(each.name)
                    )
            case ast.Import(names=names):
                yield from (each.name for each in names if "._" in each.name)
            case ast.Attribute(value=value, attr=name) if _PRIVATE.fullmatch(name):
                inherited = ast.unparse(value) in ("self", "cls", "super()")
                constant = name.isupper()  # as confluent_kafka documents its error codes
                if not (inherited or constant or name in own or ast.unparse(node) in PUBLIC):
                    yield name
            case ast.Constant(value=str(text)):
                yield from (".".join(found) for found in _SCRIPT.findall(text))


def test_core_uses_at_most_five_private_names_of_other_libraries() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(CORE.rglob("*.py"))}
    own = {name for tree in trees.values() for name in _names(tree)} | PUBLIC
    found = {
        (path.relative_to(CORE).as_posix(), name)
        for path, tree in trees.items()
        for name in _foreign(tree, own)
    }
    assert found == {*USED.items()}
    assert len(found) <= 5


def test_public_class_names_of_the_library_are_unique() -> None:
    """Who searches for a name finds one class."""
    found = Counter(
        node.name
        for path in CORE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in found.items() if times > 1] == []
