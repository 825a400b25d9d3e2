"""Write the files of a new project, or what a project lacks."""

from __future__ import annotations

import keyword
import re
import sys
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from string import Template

from topicberg.errors import TopicbergError
from topicberg.project import FILE, TABLE

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
_OF_CODE_LOCATION = (
    *("dagster.yaml", "topics/orders.yaml", "schemas/orders.avsc"),
    *("{module}/generators.py", "{module}/pipelines.py"),
    *("{module}/defs/topicberg/defs.yaml", "tests/test_pipelines.py"),
)
"""What a project that has a code location already lacks."""


@dataclass(frozen=True)
class Written:
    """What was written, and what is left to do."""

    root: Path
    files: tuple[str, ...]
    kept: tuple[str, ...] = ()
    """Files that there were already."""


def new_project(name: str, parent: Path, requirement: str) -> Written:
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
    texts = {
        path.format(module=f"src/{package}"): _text(template, name, package, requirement)
        for path, template in _FILES.items()
    }
    return _write(root, texts)


def existing_project(root: Path, requirement: str) -> Written:
    """Add to a project with a code location what it lacks; no file is changed but pyproject.toml.

    :raises TopicbergError: there is no pyproject.toml, or it names no module of a code location
    """
    path = root / FILE
    try:
        text = path.read_text()
        given = tomllib.loads(text)
    except OSError as error:
        raise TopicbergError(
            f"{path}: {error.strerror}",
            hint="run the command in the folder of a project, or `topicberg init NAME` for a new "
            "one",
        ) from None
    except ValueError as error:
        raise TopicbergError(f"{path} is invalid: {error}", hint="correct the file") from None
    tool = given.get("tool", {})
    if TABLE in tool:
        raise TopicbergError(
            f"{path} has a table [tool.{TABLE}] already", hint="nothing is left to do"
        )
    named = tool.get("dg", {}).get("project", {}).get("root_module")
    named = named or str(tool.get("dagster", {}).get("module_name", "")).partition(".")[0]
    if not named:
        raise TopicbergError(
            f"{path} names no code location: expected is `root_module` in [tool.dg.project], or "
            "`module_name` in [tool.dagster]",
            hint="add one of them, or run `topicberg init NAME` for a new project",
        )
    name = given.get("project", {}).get("name", named)
    module = f"src/{named}" if (root / "src" / named).is_dir() else named
    texts = {
        key.format(module=module): _text(_FILES[key], name, named, requirement)
        for key in _OF_CODE_LOCATION
    }
    table = f"""
[tool.{TABLE}]
topics = "topics"
schemas = "schemas"
defs = "{module}/defs"
pipelines = ["{named}.pipelines"]
generators = ["{named}.generators"]
"""
    written = _write(root, texts)
    path.write_text(text.rstrip("\n") + "\n" + table)
    return written


def _text(template: str, name: str, package: str, requirement: str) -> str:
    if not template:
        return ""
    values = {
        "name": name,
        "package": package,
        "requirement": requirement,
        "today": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    return Template((TEMPLATES / f"{template}.txt").read_text()).substitute(values)


def _write(root: Path, texts: dict[str, str]) -> Written:
    kept = tuple(name for name in texts if (root / name).exists())
    written = tuple(name for name in texts if name not in kept)
    for name in written:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[name])
    return Written(root, written, kept)
