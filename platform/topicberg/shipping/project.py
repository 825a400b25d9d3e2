"""The Python code of a project: which files it has, and how the workers of Spark get them.

The code is that of the modules which ``pipelines`` and ``generators`` of ``[tool.topicberg]`` name,
of the packages they are in, and of all that these import, unless it is installed as a library.
Tests, hidden files, keys and large files are no part of it.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from itertools import accumulate, chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from topicberg.errors import TopicbergError
from topicberg.project import FILE, project_name, read_project
from topicberg.settings import settings
from topicberg.shipping.files import below, pack, version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

LIBRARIES = frozenset({"topicberg", "topicberg_deploy", "topicberg_local", "pyspark", "py4j"})
"""Packages that are never a part of a project, wherever they are."""
LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
OF_DRIVER = frozenset({"topicberg", "dagster", "pyspark"})
"""What a module imports that is for the process of a run, not for the workers of Spark."""
MAX_FILE_BYTES = 10 * 1024**2  # Of a file beside the modules.
_TESTS = re.compile(r"tests?|conftest\.py|test_.*\.py|.*_test\.py")
_SECRETS = re.compile(r".*\.(env|pem|key|p8|p12|pfx|jks|keystore)", re.IGNORECASE)
_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def packages(root: Path) -> dict[str, Path]:
    """Return the top-level packages and modules of a project: name → folder or file.

    :raises TopicbergError: one that ``[tool.topicberg]`` names does not exist
    """
    project = read_project(root)
    places: dict[str, Path] = {}
    waiting = [name.partition(".")[0] for name in (*project.pipelines, *project.generators)]
    for name in waiting:
        if (place := _in_project(root, name) or _installed(name)) is None:
            raise TopicbergError(
                f"there is no package {name}, which [tool.topicberg] in {root / FILE} names",
                hint="correct the name, or install the package of the project",
            )
        places[name] = place
    installed = _installed_with(root)
    while waiting:
        for name in {module.partition(".")[0] for module in _imports_of(places[waiting.pop()])}:
            if name in places or name in sys.stdlib_module_names or name in LIBRARIES:
                continue
            is_test = _TESTS.fullmatch(name) or _TESTS.fullmatch(f"{name}.py")
            place = None if is_test else _in_project(root, name) or _installed(name)
            if place is not None and (name in installed or not is_library(place)):
                places[name] = place
                waiting.append(name)
    return places


def libraries(root: Path) -> set[str]:
    """Return the top-level packages that the code imports and that are no part of it."""
    own = packages(root)
    names = {one.partition(".")[0] for place in own.values() for one in _imports_of(place)}
    return names - own.keys() - set(sys.stdlib_module_names)


def files_of(place: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a package: its path in the package, and the file; of a module, itself."""
    if place.is_file():
        yield place.name, place
        return
    for name, path in below(place):
        if any(part.startswith(".") or _TESTS.fullmatch(part) for part in name.split("/")):
            continue
        if path.suffix != ".py" and path.stat().st_size > MAX_FILE_BYTES:
            _warn_of_size(path)
        elif not _SECRETS.fullmatch(path.name):
            yield name, path


@cache
def _warn_of_size(path: Path) -> None:
    logger.warning("%s has more than %d MB, so Spark does not get it", path, MAX_FILE_BYTES >> 20)


def is_library(file: Path) -> bool:
    """Return whether a file belongs to an installed library, not to a project."""
    return not LIBRARY_FOLDERS.isdisjoint(file.parts)


def send(spark: SparkSession, root: Path) -> None:
    """Let the workers of a session of Spark Connect import the code of the project.

    Each package is an archive that is unpacked where workers look for modules first, so files
    beside a module are found by ``__file__`` as well. The name of an archive has a hash of its
    content. Workers belong to one session: the next one imports changed code.

    Source: Spark's "Python Package Management", archives of Spark Connect sessions.
    """
    own = packages(root)
    if not own:
        return
    pickle_by_value(own)
    with TemporaryDirectory(prefix="topicberg-code-") as folder:
        for name, place in own.items():
            try:
                if place.is_file():
                    spark.addArtifacts(str(place), pyfile=True)
                    continue
                files = dict(files_of(place))
                path = Path(folder) / f"{name}-{version(files)}.tar.gz"
                with path.open("wb") as file:
                    pack(files, file)
                spark.addArtifacts(f"{path}#{name}", archive=True)
            except Exception as error:  # only tables with Python functions need it
                logger.warning(
                    "Spark does not accept the package %s of the project, so Python functions of "
                    "tables cannot import it there: %s",
                    name,
                    error,
                )


def pickle_by_value(own: dict[str, Path]) -> None:
    """Let functions of modules that workers cannot import be sent themselves.

    A module of pipelines imports topicberg, which workers may lack, and functions for Spark that
    are made when it is imported need a session. What they use of other modules is imported there.
    """
    from pyspark import cloudpickle

    for name in sorted(_of_driver(own) & sys.modules.keys()):
        cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]


def _of_driver(own: dict[str, Path]) -> set[str]:
    """Return the modules that import what only the process of a run has, also through others."""
    imports = {name: set(_imports(path, name, at_once=True)) for name, path in _modules(own)}
    of_driver = {
        name
        for name, others in imports.items()
        if OF_DRIVER & {module.partition(".")[0] for module in others}
    }
    # An import of a.b executes a as well.
    executed = {
        name: {*chain(*(accumulate(each.split("."), "{}.{}".format) for each in (name, *others)))}
        for name, others in imports.items()
    }
    while more := {name for name, modules in executed.items() if modules & of_driver} - of_driver:
        of_driver |= more
    return of_driver


def _modules(own: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    for name, place in own.items():
        for inside, path in files_of(place):
            if path.suffix == ".py":
                parts = [name, *Path(inside).with_suffix("").parts] if place.is_dir() else [name]
                yield ".".join(parts).removesuffix(".__init__"), path


def _imports_of(place: Path) -> set[str]:
    """Return what the modules of a package import, also in functions."""
    return {one for name, path in _modules({place.stem: place}) for one in _imports(path, name)}


def _imports(path: Path, module: str, *, at_once: bool = False) -> Iterator[str]:
    """Yield the modules that a file imports, ``at_once`` or also in functions; of ``from a import
    b`` also ``a.b``."""
    waiting: list[ast.AST] = [_parsed(path, path.stat().st_mtime_ns)]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import():
                yield from (each.name for each in node.names)
            case ast.ImportFrom():
                package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                parts = package.split(".")[: package.count(".") + 2 - node.level]
                origin = ".".join(filter(None, [*(parts if node.level else ()), node.module]))
                yield origin
                yield from (f"{origin}.{each.name}" for each in node.names)
            case ast.If() if "TYPE_CHECKING" in ast.dump(node.test):
                waiting += node.orelse
            case _ if at_once and isinstance(node, _LATER):
                pass
            case _:
                waiting += ast.iter_child_nodes(node)


@cache
def _parsed(path: Path, _changed_at: int) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError:  # reported where the module is imported
        return ast.Module([], [])


def _in_project(root: Path, name: str) -> Path | None:
    """Return the folder or file of a top-level package in the folder of a project."""
    for place in (root / name, root / "src" / name):
        if place.is_dir() and any(place.glob("**/*.py")):
            return place
        if (file := place.with_name(f"{name}.py")).is_file():
            return file
    return None


def _installed(name: str) -> Path | None:
    """Return where this Python finds a top-level package or module of Python."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    for folder in (spec and spec.submodule_search_locations) or ():
        return Path(folder)
    origin = (spec and spec.origin) or ""
    return Path(origin) if origin.endswith(".py") else None


def _installed_with(root: Path) -> set[str]:
    """Return the top-level packages of the distribution of the project, if it is installed."""
    try:
        files = distribution(project_name(root) or os.devnull).files or ()
    except (PackageNotFoundError, ValueError):
        return set()
    return {file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py"}


def source_file_of(module: str) -> str:
    """Return the file of a module, which is not imported for that; empty: it has none."""
    if loaded := sys.modules.get(module):
        return getattr(loaded, "__file__", None) or ""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return ""
    return (spec.origin if spec else None) or ""


def is_project(module: str, package: str) -> bool:
    """Return whether a module is the user's: of this outermost package, or of the project."""
    outer = module.partition(".")[0]
    if outer == package or outer in sys.stdlib_module_names or outer in LIBRARIES:
        return outer == package
    file = source_file_of(outer) or source_file_of(module)
    return bool(file and not is_library(Path(file))) or outer in _own_packages()


def _own_packages() -> Collection[str]:
    """Return the packages of the project; none if there is no valid project."""
    with suppress(TopicbergError):
        return _packages_once(settings().project_root)
    return ()


_packages_once = cache(packages)
