"""What the wheels need: ranges that the locked versions are in, and each other's version."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from repository import DISTRIBUTIONS, PROJECT_ROOT
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.version import VERSION

_, DEPLOY, LOCAL = DISTRIBUTIONS
CONSTRAINTS = PROJECT_ROOT / "platform" / "topicberg" / "constraints.txt"
_PIN = re.compile(r"(?m)^([a-z0-9-]+)==([^\s;]+)( ; .*?)?(?: \\)?$")


def project(folder: Any) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def requirements() -> list[Requirement]:
    """Return what the distributions need, without themselves."""
    library = project(PROJECT_ROOT)["project"]
    texts = [*library["dependencies"]]
    for extra in ("charts", "delta", "query", "snowflake", "production"):
        texts += library["optional-dependencies"][extra]
    for folder in (DEPLOY, LOCAL):
        texts += project(folder)["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]
    return [Requirement(text) for text in texts if not text.startswith("topicberg")]


def pins(text: str) -> dict[str, set[tuple[str, str]]]:
    """Return package → its versions and their markers."""
    found: dict[str, set[tuple[str, str]]] = {}
    for name, version, marker in _PIN.findall(text):
        found.setdefault(name, set()).add((version, marker))
    return found


def test_requirement_is_a_range_that_has_the_locked_version() -> None:
    locked = pins((PROJECT_ROOT / "requirements.lock").read_text())
    for requirement in requirements():
        operators = {each.operator for each in requirement.specifier}
        assert ">=" in operators, f"{requirement} has no lowest version"
        assert not operators & {"==", "==="}, f"{requirement} is pinned"
        for version, _ in locked[canonicalize_name(requirement.name)]:
            assert requirement.specifier.contains(version), f"{requirement}: {version} is locked"


def test_constraints_are_versions_of_the_lock() -> None:
    locked, constraints = (
        pins((PROJECT_ROOT / "requirements.lock").read_text()),
        pins(CONSTRAINTS.read_text()),
    )
    assert {canonicalize_name(each.name) for each in requirements()} <= constraints.keys()
    for name, pinned in constraints.items():  # what tests need may need it on more platforms
        versions = {version for version, _ in locked[name]}
        assert {version for version, _ in pinned} == versions, f"{name}: run `make lock`"


def test_constraints_are_printed_as_pip_reads_them() -> None:
    printed = CliRunner().invoke(app, ["constraints"])
    assert printed.exit_code == 0
    assert printed.output == CONSTRAINTS.read_text()
    for line in printed.output.splitlines():
        assert not Requirement(line).extras


def test_version_of_command_is_newest_of_changelog() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"{VERSION}\n"
    released = re.findall(r"(?m)^## (\d\S*)", (PROJECT_ROOT / "CHANGELOG.md").read_text())
    assert released[0] == VERSION


@pytest.mark.parametrize("folder", [DEPLOY, LOCAL], ids=["deploy", "local"])
def test_distribution_requires_its_own_version_of_topicberg(folder: Any) -> None:
    code = (
        "from hatchling.metadata.core import ProjectMetadata\n"
        "from hatchling.plugin.manager import PluginManager\n"
        "metadata = ProjectMetadata('.', PluginManager())\n"
        "print(metadata.version, *[one for one in metadata.core.dependencies if 'berg=' in one])"
    )
    version, required = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.split()
    requirement = Requirement(required)
    assert requirement.name == "topicberg"
    assert requirement.specifier.contains(version, prereleases=True)
    assert str(requirement.specifier) == f"=={Version(version).public}"


@pytest.mark.parametrize(
    "folder",
    [PROJECT_ROOT, DEPLOY, LOCAL],
    ids=["topicberg", "topicberg-deploy", "topicberg-local"],
)
def test_distribution_has_a_license(folder: Any) -> None:
    assert project(folder)["project"]["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_text() == (PROJECT_ROOT / "LICENSE").read_text()
    assert (folder / "README.md").is_file()


def test_import_on_windows_names_wsl() -> None:
    code = "import sys; sys.platform = 'win32'; import topicberg"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: topicberg runs on Linux, and not on Windows")
