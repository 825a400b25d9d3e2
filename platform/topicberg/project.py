"""The project that topicberg works for: where its topics, schemas, pipelines and generators are.

A project is a folder with a ``pyproject.toml`` that has a table ``[tool.topicberg]``::

    [tool.topicberg]
    prefix = "shop"                        # of the names of everything that is created
    topics = "topics"                      # folder of the specs
    schemas = "schemas"                    # folder of the schema files
    defs = "src/shop/defs"                 # folder of Dagster's components, if they have topics
    pipelines = ["shop.defs.pipelines"]    # modules, or packages, of derived tables and checks
    generators = ["shop.generators"]       # the same of generators of records

The project is the folder that ``TOPICBERG_PROJECT_ROOT`` names, else the nearest one from the
working directory upwards.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from topicberg.errors import SpecError, TopicbergError, line_in

T = TypeVar("T")
FILE, TABLE = "pyproject.toml", "topicberg"
DG_FILE = "dg.toml"
"""Where `dg` looks before it looks into ``pyproject.toml``."""
PREFIX = r"^[a-z][a-z0-9_]{0,35}$"
VARIABLE = "TOPICBERG_PROJECT_ROOT"
ENV_FILE_VARIABLE = "TOPICBERG_ENV_FILE"

_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")
"""PySpark's errors of what needs a session."""


class Project(BaseModel):
    """What ``[tool.topicberg]`` says; paths are relative to the project's root."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefix: str | None = Field(default=None, pattern=PREFIX)
    """The default of ``TOPICBERG_PREFIX``; None: the name of the project, if it has one."""
    topics: str = "topics"
    schemas: str = "schemas"
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
    """Return the root of the project; raise TopicbergError if there is none."""
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if _document(folder / FILE).get("tool", {}).get(TABLE) is not None:
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
    document = _document(path)
    table = document.get("tool", {}).get(TABLE) or {}
    name = document.get("project", {}).get("name")
    try:
        project = Project.model_validate(table)
        return project.model_copy(update={"prefix": project.prefix or (name and prefix_of(name))})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise TopicbergError(
            f"{path}: [tool.{TABLE}] {key}: {first['msg'].removeprefix('Value error, ')} "
            f"(found {first['input']!r})",
            hint=f"the keys are {', '.join(Project.model_fields)}",
        ) from None


def prefix_of(name: str) -> str:
    """Return the name of a project as a prefix, with which names of buckets can begin."""
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    prefix = (words if words[:1].isalpha() else f"project_{words}")[:36].strip("_")
    return prefix if len(prefix) > 2 else f"{prefix}_data"


@dataclass(frozen=True)
class CodeLocation:
    """What Dagster's tools know of the project's code location."""

    root_module: str
    """The package of the project; of a single module, that module."""
    target: str
    """The module that has the definitions."""
    defs_module: str | None = None
    """The package of the components, if it has a name of its own."""
    has_components: bool = False
    """Whether it is one of `dg`, which looks for components."""
    name: str | None = None
    """What Dagster calls it; None: nothing says so."""


def code_location(root: Path) -> CodeLocation | None:
    """Return the code location that the files of a project name; None: they name none."""
    tool = _document(root / FILE).get("tool", {})
    project = _document(root / DG_FILE).get("project") or tool.get("dg", {}).get("project", {})
    if name := project.get("root_module"):
        target = project.get("code_location_target_module", f"{name}.definitions")
        return CodeLocation(
            root_module=name,
            target=target,
            defs_module=project.get("defs_module"),
            has_components=True,
            name=project.get("code_location_name", root.absolute().name),
        )
    if target := tool.get("dagster", {}).get("module_name"):
        folder = target.replace(".", "/")
        is_package = any((place / folder).is_dir() for place in (root / "src", root))
        return CodeLocation(target if is_package else target.rpartition(".")[0] or target, target)
    return None


def location_options(root: Path) -> str:
    """Return the options of ``dagster asset materialize`` that name the code location."""
    location = None if (root / "definitions.py").is_file() else code_location(root)
    return f"-m {location.target}" if location else "-f definitions.py"


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
    return dict(_document(root / FILE).get("project", {}))


def _document(path: Path) -> Mapping[str, Any]:
    """Return what a file says; nothing, if there is none."""
    try:
        return tomllib.loads(path.read_bytes().decode()) if path.is_file() else {}
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are these
        raise TopicbergError(f"{path} cannot be read: {error}", hint="correct the file") from None


def members(root: Path, names: tuple[str, ...], kind: type[T]) -> Iterator[tuple[str, T]]:
    """Return what the modules of the project have of a type, with the module; twice if two have it.

    :raises SpecError: as of :func:`modules`
    """
    return (
        (module.__name__, member)
        for module in modules(root, names)
        for member in vars(module).values()
        if isinstance(member, kind)
    )


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
        for submodule in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            if not submodule.name.endswith(".__main__"):
                yield _imported(submodule.name)


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
        line, reason = line_in(error, file, file.replace(".py", "/__init__.py")), str(error)
        if isinstance(error, SyntaxError) and (error.filename or "").endswith(file):
            line, reason = error.lineno, error.msg
        where = f", line {line}" if line else ""
        hint = "correct the file, then run `topicberg pipelines check`"
        if any(code in reason for code in _NO_SESSION):
            hint = (
                "there is no Spark when a module is imported: make the function for Spark in the "
                "function of the table, or name types by objects, as in `udf(StringType())`"
            )
        raise SpecError(f"{file}{where}: {type(error).__name__}: {reason}", hint=hint) from error
