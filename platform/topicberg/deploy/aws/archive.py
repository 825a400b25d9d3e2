"""The code that a job run of EMR Serverless executes, packed for the release's image.

One archive has the library, the project (specs, schemas, and the packages of its pipelines) and
their dependencies as wheels for Linux x86-64 and Python 3.11; Spark is the release's own. A small
entry point beside it puts all of them on Python's path.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import topicberg
from topicberg.errors import TopicbergError
from topicberg.packages import needed
from topicberg.project import FILE, VARIABLE, read_project

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
_PATHS = ("library", "project", "project/src", "site")
PYTHONPATH = ":".join(f"./{UNPACKED}/{path}" for path in _PATHS)


def entry_point() -> str:
    """Return the text of the script that Spark starts."""
    return f'''"""Started by Spark: finds the code beside it, and computes what Dagster asks for."""
import os
import sys
from pathlib import Path

os.environ["{VARIABLE}"] = str(Path("{UNPACKED}", "project").resolve())
sys.path[:0] = [str(Path("{UNPACKED}", path).resolve()) for path in {_PATHS!r}]

from topicberg.orchestration.emr.job import main

main()
'''


@lru_cache(maxsize=2)
def version(root: Path) -> str:
    """Return a hash of what is packed. A process reads the files once."""
    digest = hashlib.sha256(entry_point().encode())
    for name, path in sorted(_files(root).items()):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(_requirements(root).encode())
    return digest.hexdigest()[:16]


def _files(root: Path) -> dict[str, Path]:
    """Return name in the archive → file, but for the files that Python makes."""
    project = read_project(root)
    library = Path(topicberg.__file__).parent
    found = dict(_below(library, "library/topicberg"))
    for folder in (project.topics, project.schemas):
        found |= _below(root / folder, f"project/{folder}")
    for name in {name.partition(".")[0] for name in (*project.pipelines, *project.generators)}:
        found |= _package(root, name)
    if (root / FILE).is_file():
        found[f"project/{FILE}"] = root / FILE
    return found


def _package(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a top-level package or module, wherever it is installed.

    :raises TopicbergError: there is none
    """
    for place in (root, root / "src"):
        if (place / name).is_dir():
            return _below(place / name, f"project/{place.relative_to(root) / name}")
        if (file := place / f"{name}.py").is_file():
            return iter([(f"project/{file.relative_to(root)}", file)])
    spec = find_spec(name)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        return _below(Path(folder), f"library/{name}")
    raise TopicbergError(
        f"there is no package {name}, which [tool.topicberg] in {root / FILE} names",
        hint="correct the name, or install the package of the project",
    )


def _below(folder: Path, inside: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{inside}/{path.relative_to(folder)}", path


def _requirements(root: Path) -> str:
    """Return the dependencies without Spark and what no job imports, one a line.

    They are those of the project's lock file, with their hashes; else what is installed here.
    """
    without = SPARKS_OWN | UNUSED
    if (root / LOCK).is_file():
        blocks = re.split(r"\n(?=[A-Za-z0-9])", (root / LOCK).read_text())
    else:
        blocks = [*_installed()]
    chosen = [one for one in blocks if re.split(r"[=\[ ;]", one)[0] not in without]
    return "\n".join(chosen) + "\n"


def _installed() -> Iterator[str]:
    """Yield what topicberg needs in EMR's image, in the versions that are installed here."""
    environment = {"sys_platform": "linux", "platform_system": "Linux"}
    environment |= {"python_version": PYTHON_VERSION, "python_full_version": f"{PYTHON_VERSION}.0"}
    found = needed(["topicberg"], SPARKS_OWN | UNUSED, environment)
    for name, one in sorted(found.items()):
        if name != "topicberg":
            yield f"{name}=={one.version}" if one is not None else name


@contextmanager
def built(root: Path) -> Iterator[Path]:
    """Pack the library, the project and the dependencies. The file is deleted at the end.

    :raises TopicbergError: the dependencies cannot be downloaded
    """
    with TemporaryDirectory(prefix="topicberg-emr-") as name:
        folder = Path(name)
        requirements = folder / "requirements.txt"
        requirements.write_text(_requirements(root))
        _install(requirements, folder / "site")
        path = folder / ARCHIVE
        with tarfile.open(path, "w:gz", compresslevel=6) as tar:
            for name, file in {**dict(_below(folder / "site", "site")), **_files(root)}.items():
                tar.add(file, name, recursive=False)
        yield path


def _install(requirements: Path, target: Path) -> None:
    """Download wheels for EMR's image, whatever machine this is, checked by hashes if there are."""
    target.mkdir()
    if find_spec("pip") is None:
        raise TopicbergError(
            "the code for EMR Serverless cannot be packed: this Python has no pip",
            hint="run `python -m ensurepip`, or set TOPICBERG_EMR_IMAGE to an image of your own",
        )
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-compile", "--no-deps", "--only-binary=:all:"),
        *(("--require-hashes",) if "--hash=" in requirements.read_text() else ()),
        *("--implementation", "cp", "--python-version", PYTHON_VERSION),
        *(word for platform in PLATFORMS for word in ("--platform", platform)),
        *("--target", str(target), "--requirement", str(requirements)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next(iter(done.stderr.strip().splitlines()[-1:]), "pip gives no reason")
        raise TopicbergError(
            f"the dependencies of the EMR Serverless jobs cannot be downloaded: {reason}",
            hint="check the access to the package index, or set TOPICBERG_EMR_IMAGE",
        )
