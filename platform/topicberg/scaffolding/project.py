"""Write the files of a new project, or what a project lacks."""

from __future__ import annotations

import keyword
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from topicberg.errors import TopicbergError
from topicberg.project import DG_FILE, FILE, TABLE, CodeLocation, code_location, prefix_of

TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_FILES = {
    FILE: "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".env.example": "env.example",
    ".github/workflows/test.yml": "workflow.yml",
    "dagster.yaml": "dagster.yaml",
    "topics/orders.yaml": "orders.yaml",
    "schemas/orders.avsc": "orders.avsc",
    "{module}/__init__.py": "init.py",
    "{module}/definitions.py": "definitions.py",
    "{module}/generators.py": "generators.py",
    "{module}/pipelines.py": "pipelines.py",
    "{module}/defs/__init__.py": "",
    "{module}/defs/topicberg/defs.yaml": "defs.yaml",
    "tests/test_pipelines.py": "test_pipelines.py",
}
"""Path → template; ``{module}`` is the folder of the package."""


@dataclass(frozen=True)
class WrittenFiles:
    """What was written, and what is left to do."""

    root: Path
    files: tuple[str, ...]
    kept: tuple[str, ...] = ()  # Files that there were already.
    merge_into: str | None = None
    """The module into whose definitions those of topicberg are to be merged; None: a component adds
    them."""


def new_project(name: str, parent: Path, requirement: str) -> WrittenFiles:
    """Write a project into a new folder.

    :param requirement: topicberg, as the project depends on it
    :raises TopicbergError: the name is invalid, or the folder exists and has files
    """
    if not _NAME.fullmatch(name):
        raise TopicbergError(
            f"{name!r} is not a valid name of a project: expected are a-z and 0-9, in words with "
            "- or _ between them",
            hint="try `topicberg init my-project`",
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or find_spec(package):
        raise TopicbergError(
            f"a project cannot be called {name!r}: Python has a module {package} already",
            hint="choose another name",
        )
    root = parent / name
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise TopicbergError(
            f"{root} exists already",
            hint="choose another name, or run `topicberg init --existing` in the folder to add "
            "what it lacks",
        )
    values = _values(name, package, requirement)
    return _write(
        root,
        {
            path.format(module=f"src/{package}"): _text(template, values)
            for path, template in _FILES.items()
        },
    )


def existing_project(root: Path, requirement: str) -> WrittenFiles:
    """Add to a project with a code location what it lacks; no file is changed but pyproject.toml.

    :raises TopicbergError: there is no pyproject.toml, it names no module of a code location, or
        there is no such package
    """
    path = root / FILE
    text, given = _read(path)
    if TABLE in given.get("tool", {}):
        raise TopicbergError(
            f"{path} has a table [tool.{TABLE}] already", hint="nothing is left to do"
        )
    location = code_location(root)
    if location is None:
        raise TopicbergError(
            f"{path} names no code location: expected is `root_module` in [tool.dg.project], or "
            "`module_name` in [tool.dagster]",
            hint="add one of them, or run `topicberg init NAME` for a new project",
        )
    package = location.root_module
    folder = _folder(root, package)
    module = folder.relative_to(root).as_posix()
    defs = _defs_folder(root, folder, location)
    pipelines, generators = (_free_name(folder, name) for name in ("pipelines", "generators"))
    paths = {
        "dagster.yaml": "dagster.yaml",
        "topics/orders.yaml": "topics/orders.yaml",
        "schemas/orders.avsc": "schemas/orders.avsc",
        "{module}/generators.py": f"{module}/{generators}.py",
        "{module}/pipelines.py": f"{module}/{pipelines}.py",
        "tests/test_pipelines.py": f"tests/test_{pipelines}.py",
    }
    if defs is not None:
        paths["{module}/defs/topicberg/defs.yaml"] = f"{defs}/topicberg/defs.yaml"
    name = given.get("project", {}).get("name", package)
    values = _values(name, package, requirement) | {"pipelines": pipelines}
    table = (
        f'[tool.{TABLE}]\nprefix = "{prefix_of(name)}"\ntopics = "topics"\nschemas = "schemas"\n'
        + (f'defs = "{defs}"\n' if defs is not None else "")
        + f'pipelines = ["{package}.{pipelines}"]\ngenerators = ["{package}.{generators}"]\n'
    )
    extended = f"{text.rstrip()}\n\n{table}" if text.strip() else table
    try:
        tomllib.loads(extended)
    except ValueError:
        raise TopicbergError(
            f"{path}: a table [tool.{TABLE}] cannot be added, because `tool` is not a table of "
            "its own",
            hint="write [tool.…] tables, then run `topicberg init --existing` again",
        ) from None
    written = _write(root, {paths[key]: _text(_FILES[key], values) for key in paths})
    path.write_text(extended)
    names = {"pipelines": pipelines, "generators": generators}
    modules = [f"{module}/{name}" for name in names if names[name] != name]
    existing = [file if (root / file).exists() else f"{file}.py" for file in modules]
    return WrittenFiles(
        root,
        written.files,
        (*written.kept, *existing),
        None if defs is not None else location.target,
    )


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return pyproject.toml and what it says; a project of `dg` may have none."""
    try:
        text = path.read_text()
        return text, tomllib.loads(text)
    except FileNotFoundError as error:
        if (path.parent / DG_FILE).is_file():
            return "", {}
        raise TopicbergError(
            f"{path}: {error.strerror}",
            hint="run the command in the folder of a project, or `topicberg init NAME` for a new "
            "one",
        ) from None
    except OSError as error:
        raise TopicbergError(f"{path}: {error.strerror}", hint="make it readable") from None
    except ValueError as error:
        raise TopicbergError(f"{path} is invalid: {error}", hint="correct the file") from None


def _folder(root: Path, package: str) -> Path:
    """Return the folder of the package: below ``src``, in the project, or where it is installed."""
    parts = package.split(".")
    for folder in _places(root, parts[0]):
        if folder.joinpath(*parts).is_dir():
            return folder.joinpath(*parts)
    raise TopicbergError(
        f"{root} has no package {package}, which its code location is in: expected is a folder "
        f"{'/'.join(parts)} in it or in src",
        hint="correct the name, install the package in this environment, or run `topicberg init "
        "NAME` for a new project",
    )


def _places(root: Path, name: str) -> Iterator[Path]:
    yield from (root / "src", root)
    spec = find_spec(name)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if Path(folder).is_relative_to(root):
            yield Path(folder).parent


def _defs_folder(root: Path, folder: Path, location: CodeLocation) -> str | None:
    """Return the folder of the components; None: the definitions are not made of components."""
    if not location.has_components:
        return None
    if location.defs_module:
        parts = Path(*location.defs_module.split("."))
        candidates = [folder.parents[location.root_module.count(".")] / parts]
    else:  # `dg` looks for these
        candidates = [folder / "defs", folder / "definitions"]
    folders = (each.relative_to(root).as_posix() for each in candidates if each.is_dir())
    return next(folders, None)


def _free_name(folder: Path, name: str) -> str:
    """Return the name of a module that the package does not have."""
    is_taken = (folder / name).exists() or (folder / f"{name}.py").exists()
    return f"topicberg_{name}" if is_taken else name


def _values(name: str, package: str, requirement: str) -> dict[str, str]:
    return {
        "name": name,
        "package": package,
        "pipelines": "pipelines",
        "prefix": prefix_of(name),
        "requirement": requirement,
        "today": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _text(template: str, values: dict[str, str]) -> str:
    text = (TEMPLATES / f"{template}.txt").read_text() if template else ""
    return Template(text).substitute(values)


def _write(root: Path, texts: dict[str, str]) -> WrittenFiles:
    existing = tuple(name for name in texts if (root / name).exists())
    written = tuple(name for name in texts if name not in existing)
    for name in written:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[name])
    return WrittenFiles(root, written, existing)
