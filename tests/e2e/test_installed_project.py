"""The wheels in an environment of their own, outside of this repository: a project from nothing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from repository import DISTRIBUTIONS, PROJECT_ROOT

from topicberg.cli.init import CONSTRAINTS

pytestmark = [pytest.mark.e2e]

UV = str(Path(sys.executable).with_name("uv"))
INSTALL = [UV, "pip", "install", "--quiet", "--python", "venv/bin/python"]


class Installed:
    """An environment with the wheels, and a project in another folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "post-office"
        self.programs = folder / "venv" / "bin"

    def run(self, line: str, cwd: Path | None = None, *, fails: bool = False) -> str:
        """Run a program of the environment and return its output."""
        program, *arguments = shlex.split(line)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TOPICBERG_", "PYTHON", "VIRTUAL_ENV", "DAGSTER_"))
        }
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=cwd or self.root,
            env={**environment, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"{line}:\n{output}"
        assert str(PROJECT_ROOT) not in output
        return output


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    with TemporaryDirectory(prefix="topicberg-installed-") as name:
        own, tools = Installed(Path(name)), ["dagster-dg-cli", "editables", "hatchling", "pytest"]
        install_wheels(own.folder, DISTRIBUTIONS, "[local,production]", tools)
        own.run("topicberg init post-office", own.folder)
        editable = ["--no-deps", "--no-build-isolation", "--editable", "post-office"]
        subprocess.run([*INSTALL, *editable], cwd=own.folder, check=True)
        yield own


def install_wheels(folder: Path, parts: Iterable[Path], extras: str, tools: Sequence[str]) -> None:
    """Build distributions, the library first, and install them into ``venv`` of a folder."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    for part in parts:
        subprocess.run([*build, str(folder)], cwd=part, check=True, capture_output=True)
    shutil.copy(CONSTRAINTS, folder / "constraints.txt")
    (folder / "built.txt").write_text(_locked("pyspark"))
    subprocess.run(
        [UV, "venv", "--quiet", "--python", sys.executable, "venv"], cwd=folder, check=True
    )
    # Without its hash, uv would download and build Spark again: 20 seconds of a processor.
    built = ["--no-deps", "--require-hashes", "--requirement", "built.txt"]
    subprocess.run([*INSTALL, *built], cwd=folder, check=True)
    library, *others = sorted(map(str, folder.glob("*.whl")))
    wheels = [f"{library}{extras}", *others]
    subprocess.run(
        [*INSTALL, "--constraint", "constraints.txt", *wheels, *tools], cwd=folder, check=True
    )
    _link_compiled_modules(folder / "venv")


def _locked(package: str) -> str:
    """Return the package's lines of ``requirements.lock``: version and hashes."""
    lock = (PROJECT_ROOT / "requirements.lock").read_text()
    (lines,) = re.findall(rf"^{package}==.*(?:\n +--hash=.*)+", lock, re.MULTILINE)
    return str(lines)


def _link_compiled_modules(environment: Path) -> None:
    """Link this environment's compiled modules: Python compiles those again that differ."""
    packages = Path(pytest.__file__).parents[1]
    target = environment / packages.relative_to(sys.prefix)
    for compiled in packages.rglob("__pycache__"):
        folder = target / compiled.relative_to(packages)
        if folder.parent.is_dir():
            shutil.copytree(compiled, folder, copy_function=os.link, dirs_exist_ok=True)


def test_wheels_have_one_package_each(installed: Installed) -> None:
    found = installed.folder.glob("venv/lib/python*/site-packages/*")
    names = {path.name for path in found}
    assert {"topicberg", "topicberg_deploy", "topicberg_local"} <= names
    assert not names & {"assets", "jobs", "resources", "emulators", "definitions.py", "platform"}


def test_wheels_have_the_license_and_the_constraints(installed: Installed) -> None:
    (packages,) = installed.folder.glob("venv/lib/python*/site-packages")
    licenses = {path.parts[-3] for path in packages.glob("topicberg*.dist-info/licenses/LICENSE")}
    assert len(licenses) == 3
    assert installed.run("topicberg constraints", installed.folder) == CONSTRAINTS.read_text()


def test_project_is_loaded_without_the_repository(installed: Installed) -> None:
    assert "1 topic specs are valid: orders" in installed.run("topicberg topics validate")
    assert "All definitions loaded" in installed.run("dg check defs")
    outside = installed.run("topicberg topics list", installed.folder, fails=True)
    assert "is not in a project of topicberg" in outside
    assert "Traceback" not in outside


@pytest.mark.slow
def test_project_goes_from_a_record_to_an_erased_key(installed: Installed) -> None:
    run = installed.run
    try:
        run("topicberg up")
        run("topicberg datagen start orders --rate 0 --count 1000 --foreground")
        assert "1 passed" in run("pytest -q")
        assert "src/post_office/pipelines.py" in run("topicberg pipelines check")
        run("dagster asset materialize -m post_office.definitions --select iceberg/orders")
        run("dagster job execute -m post_office.definitions -j check_tables")
        assert "0 failing" in run("topicberg checks")
        assert "0 orders of more than 1,000.00" in run("topicberg checks orders")
        assert "1000" in run("topicberg query 'SELECT count(*) FROM orders'").replace(",", "")
        erased = run("topicberg forget orders --where 'customer=customer 1' --dry-run")
        assert "nothing was changed" in erased
        planned = run("topicberg deploy plan", fails=True)  # there are changes
        assert "create Snowflake Iceberg table ORDERS" in planned
        assert "stock_trades" not in planned
        assert "Traceback" not in planned
    finally:
        run("topicberg down")
