"""The wheels with the lowest and the highest versions of dependencies, and wheels of platforms."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from packaging.requirements import Requirement
from repository import DISTRIBUTIONS, PROJECT_ROOT

from topicberg.cli.init import CONSTRAINTS

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]

UV = str(Path(sys.executable).with_name("uv"))
TESTS = ("hypothesis", "pip", "pytest", "pytest-timeout", "pytest-xdist", "websockets")
UNITS = ("dagster", "alerts", "jobs", "checks", "formats/test_protobuf_format.py", "kafka", "query")
COMPONENTS = ("dagster", "alerts")
"""Tests of what depends on the versions of libraries, in ``tests/unit`` and ``tests/component``."""
DOCUMENTS = "tests/component/dagster/test_documents.py"
OF_A_CLONE = f"{DOCUMENTS}::test_folder_of_the_site_is_that_of_the_clone"
IMPORTS = """
import importlib, pkgutil, sys
import topicberg, topicberg_deploy, topicberg_local
for package in (topicberg, topicberg_deploy, topicberg_local):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__") and ".emr.job" not in module.name:
            importlib.import_module(module.name)
print(len(sys.modules), "modules")
"""
EXTRAS = ("charts", "delta", "query", "snowflake")
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin")
NO_WHEELS = ("pyspark",)
"""Published without a wheel; it is plain Python and jars."""


@pytest.fixture(scope="module")
def wheels() -> Iterator[list[Path]]:
    with TemporaryDirectory(prefix="topicberg-wheels-") as name:
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
        for part in DISTRIBUTIONS:
            subprocess.run([*build, name], cwd=part, check=True, capture_output=True)
        yield sorted(Path(name).glob("*.whl"))


def needed(wheels: list[Path]) -> list[str]:
    """Return what the wheels need, but for each other: uv lowers only what is named directly."""
    found = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
            metadata = message_from_bytes(archive.read(name))
        for text in metadata.get_all("Requires-Dist", ()):
            requirement = Requirement(text)
            marker = requirement.marker
            is_needed = marker is None or any(marker.evaluate({"extra": one}) for one in EXTRAS)
            if is_needed and not requirement.name.startswith("topicberg"):
                found.append(text.partition(";")[0])
    return found


def run(command: list[str], folder: Path) -> str:
    """Run a program without the settings of this process, and return its output."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TOPICBERG_", "PYTHON", "VIRTUAL_ENV", "DAGSTER_"))
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}:\n{(done.stdout + done.stderr)[-8000:]}"
    return done.stdout


@pytest.fixture(scope="module", params=["lowest-direct", "highest"])
def python(
    request: pytest.FixtureRequest, wheels: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Return the Python of an environment with these versions."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "needed.in").write_text("\n".join(needed(wheels)))
    resolve = [UV, "pip", "compile", "--quiet", "--resolution", request.param, "needed.in"]
    run([*resolve, "--python", sys.executable, "--output-file", "versions.txt"], folder)
    run([UV, "venv", "--quiet", "--python", sys.executable, "venv"], folder)
    chosen = str(folder / "venv" / "bin" / "python")
    install = [UV, "pip", "install", "--quiet", "--python", chosen]
    run([*install, "--requirement", "versions.txt", *TESTS], folder)
    run([*install, "--no-deps", *map(str, wheels)], folder)
    return chosen


def test_every_module_is_imported(python: str, tmp_path: Path) -> None:
    assert "modules" in run([python, "-c", IMPORTS], tmp_path)


def test_new_project_loads_without_a_warning_of_dagster(python: str, tmp_path: Path) -> None:
    program = str(Path(python).with_name("topicberg"))
    run([program, "init", "post-office"], tmp_path)
    root = tmp_path / "post-office"
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", "."], root)
    assert "1 topic specs are valid" in run([program, "topics", "validate"], root)
    loaded = subprocess.run(
        [python, "-m", "dagster", "definitions", "validate", "-m", "post_office.definitions"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert "differs from the versions" not in loaded.stderr


def test_unit_tests_pass(python: str) -> None:
    folders = [f"tests/unit/{name}" for name in UNITS]
    folders += [f"tests/component/{name}" for name in COMPONENTS]
    tests = [*folders, "--deselect", OF_A_CLONE]
    run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], PROJECT_ROOT)


def test_derived_table_is_computed_on_the_local_stack(python: str, tmp_path: Path) -> None:
    """A record of Kafka, its row, the pipeline's test and its checks: the project's first day."""
    programs = Path(python).parent
    topicberg, dagster = (str(programs / name) for name in ("topicberg", "dagster"))
    run([topicberg, "init", "sorting-office"], tmp_path)
    root = tmp_path / "sorting-office"
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", "."], root)
    try:
        run([topicberg, "up"], root)
        records = ["--rate", "0", "--count", "1000", "--foreground"]
        run([topicberg, "datagen", "start", "orders", *records], root)
        assert "1 passed" in run([python, "-m", "pytest", "-q"], root)
        materialize = [dagster, "asset", "materialize", "-m", "sorting_office.definitions"]
        run([*materialize, "--select", "iceberg/orders"], root)
        counted = run([topicberg, "query", "SELECT count(*) FROM orders"], root)
        assert "1000" in counted.replace(",", "")
    finally:
        run([topicberg, "down"], root)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_tested_versions_have_wheels(
    wheels: list[Path], tmp_path: Path, platform: str, version: str
) -> None:
    (tmp_path / "needed.in").write_text("\n".join(needed(wheels)))
    command = [UV, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "needed.in"]
    command += ["--python-version", version, "--python-platform", platform]
    command += ["--constraint", str(CONSTRAINTS), "--only-binary", ":all:"]
    for name in NO_WHEELS:
        command += ["--no-binary", name]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"(?m)^dagster==", done.stdout)
