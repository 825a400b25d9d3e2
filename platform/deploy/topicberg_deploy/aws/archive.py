"""The code that a job run of EMR Serverless executes, packed for the release's image.

One archive has the library, the project (specs, schemas, and its packages) and the dependencies of
both, as wheels for Linux x86-64 and Python 3.11; Spark is the release's own. A small entry point
beside it puts all of them on Python's path. An image of one's own has the same files.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import Distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from topicberg.errors import TopicbergError
from topicberg.project import (
    FILE,
    VARIABLE,
    dependencies,
    project_name,
    python_versions,
    read_project,
)
from topicberg.shipping import files
from topicberg.shipping.project import files_of, libraries, packages
from topicberg.shipping.workers import needed
from topicberg.topics.sources import COMPONENT_FILE

ARCHIVE = "topicberg.tar.gz"
ENTRY_POINT = "job.py"
UNPACKED = "topicberg"
"""Folder in a worker's working directory into which Spark unpacks the archive."""
LOCK = "requirements-production.lock"
PYTHON_VERSION = "3.11"
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{glibc}_x86_64" for glibc in (17, 28, 34)))
"""Of Amazon Linux 2023, on which the releases with Spark 4 run: glibc 2.34."""
SPARKS_OWN = frozenset({"pyspark", "py4j"})
UNUSED = frozenset(
    {
        *("arro3-core", "contourpy", "cycler", "dagster-graphql", "dagster-k8s"),
        *("dagster-postgres", "dagster-webserver", "deltalake", "duckdb"),
        *("duckdb-extension-avro", "duckdb-extension-httpfs", "duckdb-extension-iceberg"),
        *("fonttools", "grpcio-tools", "httptools", "kiwisolver", "kubernetes", "matplotlib"),
        *("pillow", "psycopg2-binary", "uvicorn", "uvloop", "watchfiles"),
    }
)
"""What no job imports, and is large."""
SITE = "site-packages"
"""Of the archive: by this name, code is known as that of libraries."""
IN_IMAGE = "/opt/topicberg"
"""Folder of an image in which the entry point and the unpacked archive are."""
NEVER = frozenset({"topicberg", "topicberg-local"})
"""Packed otherwise, or never."""
ENVIRONMENT = {
    **{"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    **{"python_version": PYTHON_VERSION, "python_full_version": f"{PYTHON_VERSION}.0"},
}
"""Of EMR's image, for the markers of requirements."""
DOCKERFILE = f"""\
# The code of a project in the image of an EMR Serverless application: written by
# `topicberg deploy emr-image`. BASE is AWS's image of the application's release; EMR Serverless
# refuses an image of another release.
ARG BASE
FROM ${{BASE}}
USER root
ADD {ARCHIVE} {IN_IMAGE}/{UNPACKED}/
COPY {ENTRY_POINT} {IN_IMAGE}/
USER hadoop:hadoop
"""
_NO_WHEEL = re.compile(r"No matching distribution found for (\S+)")
_PATHS = ("library", "project", "project/src", SITE)


def python_path(place: str) -> str:
    """Return the variable PYTHONPATH of a worker, which has the unpacked archive in a folder."""
    return ":".join(f"{place}/{UNPACKED}/{path}" for path in _PATHS)


def entry_point() -> str:
    """Return the text of the script that Spark starts."""
    return f'''"""Started by Spark: finds the code, and computes what Dagster requests."""
import os
import sys
from pathlib import Path

# Spark unpacks the archive in the working directory; an image has it beside this file.
place = Path("{UNPACKED}")
if not place.is_dir():
    place = Path(__file__).with_name("{UNPACKED}")
os.environ["{VARIABLE}"] = str((place / "project").resolve())
sys.path[:0] = [str((place / path).resolve()) for path in {_PATHS!r}]

from topicberg.orchestration.emr.job import main

main()
'''


@lru_cache(maxsize=2)
def version(root: Path) -> str:
    """Return a hash of what is packed. A process reads the files once."""
    if not SpecifierSet(python_versions(root)).contains(f"{PYTHON_VERSION}.9"):
        raise TopicbergError(
            f"{root / FILE}: the project requires Python {python_versions(root)}; EMR Serverless "
            f"runs its code with Python {PYTHON_VERSION}",
            hint="let `requires-python` include it, or set TOPICBERG_SPARK_REMOTE and compute the "
            "derived tables there",
        )
    distributions = sorted(_not_in_index(root).items())
    records = [package.read_text("RECORD") or "" for _, package in distributions]
    return files.version(_files(root), entry_point(), _requirements(root), *records)


def _files(root: Path) -> dict[str, Path]:
    """Return name in the archive → file, but for the files that Python makes."""
    project = read_project(root)
    packed = dict(files.below(files.LIBRARY, "library/topicberg"))
    for folder in (project.topics, project.schemas):
        for name, path in files.below(root / folder, f"project/{folder}"):
            if not any(part.startswith(".") for part in path.relative_to(root).parts):
                packed[name] = path
    for path in sorted((root / project.defs).rglob(COMPONENT_FILE)) if project.defs else ():
        packed[f"project/{path.relative_to(root)}"] = path
    for place in packages(root).values():
        # A package that is installed elsewhere is found in "src".
        parent = "src" if place.parent != root else ""
        for name, path in files_of(place):
            packed[str(Path("project", parent, "" if place.is_file() else place.name, name))] = path
    if (root / FILE).is_file():
        packed[f"project/{FILE}"] = root / FILE
    return packed


def _requirements(root: Path) -> str:
    """Return the dependencies without Spark and what no job imports, one a line: those of the
    project's lock file, with their hashes; else what is installed here.

    :raises TopicbergError: the lock file lacks one
    """
    own = _needed_by_project(root)
    unused = SPARKS_OWN | (UNUSED - own.keys())
    if not (root / LOCK).is_file():
        installed = needed(["topicberg"], unused, ENVIRONMENT) | own
        return "".join(
            f"{name}=={distribution.version}\n" if distribution is not None else f"{name}\n"
            for name, distribution in sorted(installed.items())
            if name != "topicberg" and (distribution is None or _origin(distribution) is None)
        )
    blocks = re.split(r"\n(?=[A-Za-z0-9])", (root / LOCK).read_text())
    locked = [(canonicalize_name(re.split(r"[=\[ ;]", block)[0]), block) for block in blocks]
    if missing := sorted(needed(_declared(root), unused, ENVIRONMENT).keys() - dict(locked).keys()):
        raise TopicbergError(
            f"{root / LOCK} has no {', '.join(missing)}, which the project needs",
            hint="lock the dependencies of pyproject.toml again; without the file, what is "
            "installed here is packed",
        )
    return "\n".join(block for name, block in locked if name not in unused) + "\n"


@lru_cache(maxsize=2)
def _needed_by_project(root: Path) -> dict[str, Distribution | None]:
    """Return the libraries of the project: what it declares, and what its modules import."""
    names = packages_distributions()
    imported = [one for name in sorted(libraries(root)) for one in names.get(name, ())]
    return needed([*_declared(root), *imported], SPARKS_OWN | NEVER, ENVIRONMENT)


def _declared(root: Path) -> list[str]:
    """Return the requirements of the project besides topicberg, whose own are known."""
    if project_name(root) == "topicberg":
        return []
    return [
        str(one)
        for one in map(Requirement, dependencies(root))
        if canonicalize_name(one.name) not in NEVER
        and (one.marker is None or one.marker.evaluate({**ENVIRONMENT, "extra": ""}))
    ]


def _origin(one: Distribution) -> dict[str, Any] | None:
    """Return where a distribution was installed from (PEP 610); None: a package index."""
    text = one.read_text("direct_url.json")
    return dict(json.loads(text)) if text else None


def _not_in_index(root: Path) -> dict[str, Distribution]:
    """Return the libraries of the project that were installed from a file or a repository; those
    that are installed in place are packed as packages of the project.

    :raises TopicbergError: one has compiled code, which is that of this machine
    """
    distributions = {}
    for name, distribution in _needed_by_project(root).items():
        origin = _origin(distribution) if distribution is not None else None
        if distribution is None or origin is None or origin.get("dir_info", {}).get("editable"):
            continue
        if "Root-Is-Purelib: true" not in (distribution.read_text("WHEEL") or ""):
            raise TopicbergError(
                f"{name} was installed from {origin.get('url')} and has compiled code, so it "
                "cannot be packed for EMR Serverless",
                hint="install it from a package index, or set TOPICBERG_EMR__IMAGE to an image of "
                "your own that has it",
            )
        distributions[name] = distribution
    return distributions


@contextmanager
def built(root: Path) -> Iterator[Path]:
    """Pack the library, the project and the dependencies. The file is deleted at the end.

    :raises TopicbergError: the dependencies cannot be downloaded
    """
    with TemporaryDirectory(prefix="topicberg-emr-") as name:
        folder = Path(name)
        requirements = folder / "requirements.txt"
        requirements.write_text(_requirements(root))
        _install(requirements, folder / SITE)
        path = folder / ARCHIVE
        with path.open("wb") as file:
            site = dict(files.below(folder / SITE, SITE))
            files.pack(site | _library_files(root) | _files(root), file)
        yield path


def _library_files(root: Path) -> dict[str, Path]:
    """Return the files of libraries that no package index has."""
    return {
        f"{SITE}/{name}": path
        for one in _not_in_index(root).values()
        for name, path in files.installed_files(one)
        if "__pycache__" not in path.parts
    }


def write_image_context(root: Path, folder: Path) -> None:
    """Write what an image of EMR Serverless is built from: the code, and a Dockerfile.

    :raises TopicbergError: the dependencies cannot be downloaded
    """
    folder.mkdir(parents=True, exist_ok=True)
    with built(root) as path:
        shutil.copyfile(path, folder / ARCHIVE)
    (folder / ENTRY_POINT).write_text(entry_point())
    (folder / "Dockerfile").write_text(DOCKERFILE)


def _install(requirements: Path, target: Path) -> None:
    """Download wheels for EMR's image, whatever machine this is, checked by hashes if there are."""
    target.mkdir()
    text = requirements.read_text()
    if find_spec("pip") is None:
        raise TopicbergError(
            "the code for EMR Serverless cannot be packed: this Python has no pip",
            hint="run `python -m ensurepip`, or set TOPICBERG_EMR__IMAGE to an image of your own",
        )
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-compile", "--no-deps", "--only-binary=:all:"),
        *(("--require-hashes",) if "--hash=" in text else ()),
        *("--implementation", "cp", "--python-version", PYTHON_VERSION),
        *(word for platform in PLATFORMS for word in ("--platform", platform)),
        *("--target", str(target), "--requirement", str(requirements)),
    ]
    if not text.strip():
        return
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next(iter(done.stderr.strip().splitlines()[-1:]), "pip gives no reason")
        hint = "check the access to the package index"
        if missing := _NO_WHEEL.search(done.stderr):
            reason = (
                f"there is no wheel of {missing[1]} for Python {PYTHON_VERSION} on Linux x86-64"
            )
            hint += ", use a version that has a wheel"
        raise TopicbergError(
            f"the dependencies of the EMR Serverless jobs cannot be downloaded: {reason}",
            hint=f"{hint}, or set TOPICBERG_EMR__IMAGE to an image of your own that has them",
        )
