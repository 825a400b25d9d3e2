"""The project that topicberg works for: where its topics, schemas, pipelines and generators are.

A project is a folder with a ``pyproject.toml`` that has a table ``[tool.topicberg]``::

    [tool.topicberg]
    topics = "topics"                      # folder of the specs
    schemas = "schemas"                    # folder of the schema files
    defs = "src/shop/defs"                 # folder of Dagster's components, if they have topics
    pipelines = ["shop.defs.pipelines"]    # modules, or packages of modules, of derived tables
    generators = ["shop.generators"]       # the same of generators of records

The project is the folder that ``TOPICBERG_PROJECT_ROOT`` names, else the nearest one from the
working directory upwards.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import tomllib
import traceback
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from topicberg.errors import SpecError, TopicbergError

T = TypeVar("T")
FILE, TABLE = "pyproject.toml", "topicberg"
VARIABLE = "TOPICBERG_PROJECT_ROOT"
ENV_FILE_VARIABLE = "TOPICBERG_ENV_FILE"

_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")
"""PySpark's errors of what needs a session."""


class Project(BaseModel):
    """What ``[tool.topicberg]`` says; paths are relative to the project's root."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: str = "platform/topics"
    schemas: str = "platform/schemas"
    defs: str | None = None
    """Folder of Dagster's components, which may have topics, see :mod:`topicberg.components`."""
    pipelines: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()

    @field_validator("topics", "schemas", "defs")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        path = Path(value or "")
        if path.is_absolute() or ".." in path.parts:
            raise ValueError("should be a folder of the project, relative to its root")
        return value


def project_root() -> Path:
    """Return the root of the project.

    :raises TopicbergError: there is none
    """
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if _has_table(folder / FILE):
            return folder
    raise TopicbergError(
        f"{here} is not in a project of topicberg: no {FILE} from here upwards has a table "
        f"[tool.{TABLE}]",
        hint="run `topicberg init NAME` to make one, or `topicberg init --existing` in the folder "
        f"of your {FILE}; or set {VARIABLE}",
    )


def env_file() -> Path | None:
    """Return the file of settings: ``TOPICBERG_ENV_FILE``, else ``.env`` of the project."""
    if (given := os.environ.get(ENV_FILE_VARIABLE)) is not None:
        return Path(given)
    try:
        return project_root() / ".env"
    except TopicbergError:
        return None


def read_project(root: Path) -> Project:
    """Return what the project says of itself; without a file, what is usual.

    :raises TopicbergError: the file is invalid; names the key
    """
    path = root / FILE
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return Project()
    return _read(path, changed)


@lru_cache(maxsize=8)
def _read(path: Path, _changed: int) -> Project:
    table = _table(path)
    try:
        return Project.model_validate(table or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise TopicbergError(
            f"{path}: [tool.{TABLE}] {key}: {first['msg'].removeprefix('Value error, ')} "
            f"(found {first['input']!r})",
            hint=f"the keys are {', '.join(Project.model_fields)}",
        ) from None


def project_name(root: Path) -> str | None:
    """Return the name of the project's distribution, if its file has one."""
    return _metadata(root).get("name")


def dependencies(root: Path) -> tuple[str, ...]:
    """Return the requirements under ``dependencies`` of ``[project]``."""
    return tuple(_metadata(root).get("dependencies", ()))


def python_versions(root: Path) -> str:
    """Return the versions of Python that the project supports; empty: it says nothing."""
    return str(_metadata(root).get("requires-python", ""))


def _metadata(root: Path) -> dict[str, Any]:
    path = root / FILE
    return dict(_toml(path).get("project", {})) if path.is_file() else {}


def _has_table(path: Path) -> bool:
    return path.is_file() and _table(path) is not None


def _table(path: Path) -> Any:
    return _toml(path).get("tool", {}).get(TABLE)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are these
        raise TopicbergError(f"{path} cannot be read: {error}", hint="correct the file") from None


def members(root: Path, names: tuple[str, ...], kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield what the modules of the project have of a type, with the module; twice if two have it.

    :raises SpecError: as of :func:`modules`
    """
    for module in modules(root, names):
        for member in vars(module).values():
            if isinstance(member, kind):
                yield module.__name__, member


def modules(root: Path, names: tuple[str, ...]) -> Iterator[ModuleType]:
    """Import modules of the project, and all modules of packages.

    :raises SpecError: one cannot be imported; names the file, the line and the reason
    """
    for place in (root, root / "src"):
        if place.is_dir() and str(place) not in sys.path:
            sys.path.append(str(place))
    for name in names:
        module = _imported(name)
        yield module
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            if not found.name.endswith(".__main__"):
                yield _imported(found.name)


def _imported(module: str) -> ModuleType:
    file = f"{module.replace('.', '/')}.py"
    try:
        return importlib.import_module(module)
    except TopicbergError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise SpecError(
                f"there is no module {error.name}, which [tool.{TABLE}] in {FILE} names",
                hint="correct the name, or install the package of the project",
            ) from None
        package = file.replace(".py", "/__init__.py")
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename.endswith((file, package))]
        reason = str(error)
        if isinstance(error, SyntaxError) and (error.filename or "").endswith(file):
            lines, reason = [error.lineno], error.msg
        at = f", line {lines[-1]}" if lines else ""
        hint = "correct the file, then run `topicberg pipelines check`"
        if any(code in reason for code in _NO_SESSION):
            hint = (
                "there is no Spark when a module is imported: make the function for Spark in the "
                "function of the table, or name types by objects, as in `udf(StringType())`"
            )
        raise SpecError(f"{file}{at}: {type(error).__name__}: {reason}", hint=hint) from error
