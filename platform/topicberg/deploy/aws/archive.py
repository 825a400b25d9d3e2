"""The code that a job run of EMR Serverless executes, packed for the release's image.

One archive has this project and its dependencies as wheels for Linux x86-64 and Python 3.11; Spark
is the release's own. A small entry point beside it puts both on Python's path.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from topicberg.errors import TopicbergError

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
PROJECT = (
    *("platform/topicberg", "platform/topics", "platform/schemas"),
    *("assets", "jobs", "resources"),
)
_PATHS = ("project/platform", "project", "site")
PYTHONPATH = ":".join(f"./{UNPACKED}/{path}" for path in _PATHS)


def entry_point() -> str:
    """Return the text of the script that Spark starts."""
    return f'''"""Started by Spark: finds the code beside it, and computes what Dagster asks for."""
import sys
from pathlib import Path

sys.path[:0] = [str(Path("{UNPACKED}", path).resolve()) for path in {_PATHS!r}]

from assets.emr.job import main

main()
'''


@lru_cache(maxsize=2)
def version(root: Path) -> str:
    """Return a hash of what is packed. A process reads the files once."""
    digest = hashlib.sha256(entry_point().encode())
    for path in _files(root):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(_requirements(root).encode())
    return digest.hexdigest()[:16]


def _files(root: Path) -> list[Path]:
    """Return the files of the project, but for those that Python makes."""
    return sorted(
        path
        for folder in PROJECT
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def _requirements(root: Path) -> str:
    """Return the locked dependencies without Spark and what no job imports."""
    try:
        text = (root / LOCK).read_text()
    except OSError as error:
        raise TopicbergError(
            f"{root / LOCK}: {error.strerror}; it lists what a job run of EMR Serverless needs",
            hint="run `topicberg deploy` in a clone of the repository, or set TOPICBERG_EMR_IMAGE",
        ) from None
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
    without = SPARKS_OWN | UNUSED
    return "\n".join(one for one in blocks if re.split(r"[=\[ ;]", one)[0] not in without) + "\n"


@contextmanager
def built(root: Path) -> Iterator[Path]:
    """Pack the project and its dependencies. The file is deleted at the end.

    :raises TopicbergError: the dependencies cannot be downloaded
    """
    with TemporaryDirectory(prefix="topicberg-emr-") as name:
        folder = Path(name)
        requirements = folder / "requirements.txt"
        requirements.write_text(_requirements(root))
        _install(requirements, folder / "site")
        path = folder / ARCHIVE
        with tarfile.open(path, "w:gz", compresslevel=6) as tar:
            _add(tar, folder / "site", "site", sorted((folder / "site").rglob("*")))
            _add(tar, root, "project", _files(root))
        yield path


def _add(tar: tarfile.TarFile, root: Path, inside: str, paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_file():
            tar.add(path, f"{inside}/{path.relative_to(root)}", recursive=False)


def _install(requirements: Path, target: Path) -> None:
    """Download wheels for EMR's image, whatever machine this is, each checked by its hash."""
    target.mkdir()
    if find_spec("pip") is None:
        raise TopicbergError(
            "the code for EMR Serverless cannot be packed: this Python has no pip",
            hint="run `python -m ensurepip`, or set TOPICBERG_EMR_IMAGE to an image of your own",
        )
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-compile", "--no-deps", "--require-hashes", "--only-binary=:all:"),
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
