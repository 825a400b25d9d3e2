"""What tasks of Spark import, sent to workers that lack it.

The code is that of the engine's own Python, with what it needs, so versions are always the same.
PySpark and PyArrow are the workers' own. Source: Spark's "Python Package Management", archives of
Spark Connect sessions.
"""

from __future__ import annotations

import logging
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import IO, TYPE_CHECKING

from topicberg.shipping import files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    MapInArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


logger = logging.getLogger(__name__)

PACKAGE = "topicberg"
DISTRIBUTIONS = (
    "botocore",
    "cachetools",
    "confluent-kafka[avro,json,protobuf,schemaregistry]",
    "fastavro",
    "filelock",
    "grpcio-tools",
    "numba",
    "protobuf",
    "psutil",
    "pydantic-settings",
    "pyiceberg",
    "pyiceberg-core",
    "pyyaml",
    "requests",
    "tenacity",
)
"""What tasks import, besides what these need."""
WORKERS_OWN = frozenset({"pyspark", "py4j", "pyarrow"})


@lru_cache
def code_version() -> str:
    """Return a hash of the modules of topicberg in this Python."""
    return files.version(
        {name: path for name, path in files.below(files.LIBRARY) if path.suffix == ".py"}
    )


@lru_cache
def _folder() -> str:
    """Return the name of the folder into which workers unpack the code: it has its version."""
    versions = sorted(f"{name} {one.version}" for name, one in _distributions().items())
    return f"{PACKAGE}-{files.version({}, code_version(), *versions)}"


def ship(spark: SparkSession) -> None:
    """Send the code to the workers of a session: some 175 MB."""
    logger.info("sending topicberg to the workers of Spark")
    spark.addArtifacts(f"{_archive().name}#{_folder()}", archive=True)


def on_worker(task: MapInArrow) -> MapInArrow:
    """Return a task that imports the code that was shipped to its worker, if any was."""
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    name = _folder()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Sent as it is: the workers may not have topicberg.
        import pickle
        import sys

        from pyspark import SparkFiles

        # A worker serves one session only, as what is shipped belongs to one.
        shipped = Path(SparkFiles.getRootDirectory()) / name
        if shipped.is_dir() and str(shipped) not in sys.path:
            sys.path.insert(0, str(shipped))
        yield from pickle.loads(pickled)(batches)  # noqa: S301  from the engine

    return run


@lru_cache
def _archive() -> IO[bytes]:
    """Return the file of the packed code, which is deleted when the process ends."""
    target = tempfile.NamedTemporaryFile(prefix=f"{PACKAGE}-", suffix=".tar.gz")  # noqa: SIM115
    with tarfile.open(target.name, "w:gz", compresslevel=1) as tar:
        for package in _distributions().values():
            for name, path in files.installed_files(package):
                tar.add(path, name)
        # With what was compiled already, by Python and by Numba: the times of the files stay.
        tar.add(files.LIBRARY, PACKAGE)
    return target


@lru_cache
def _distributions() -> dict[str, Distribution]:
    """Return what tasks import, by name."""
    return {name: distribution(name) for name in needed(DISTRIBUTIONS, WORKERS_OWN)}


def needed(
    wanted: Iterable[str], without: Collection[str], environment: Mapping[str, str] | None = None
) -> dict[str, Distribution | None]:
    """Return packages and all that they need, by name; None: it is not installed here.

    :param wanted: requirements, such as ``confluent-kafka[avro]``
    :param without: names of packages that are left out, with what only these need
    :param environment: of markers, where it differs from this Python's (PEP 508)
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    distributions: dict[str, Distribution | None] = {}
    extras_of: dict[str, set[str]] = {}
    left = [Requirement(text) for text in wanted]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        new = {"", *requirement.extras} - extras_of.get(name, set())
        if name in without or not new:
            continue
        extras_of.setdefault(name, set()).update(new)
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            distributions[name] = None
            continue
        distributions[name] = installed
        for text in installed.requires or ():
            needs = Requirement(text)
            markers = [{**(environment or {}), "extra": extra} for extra in new]
            if needs.marker is None or any(map(needs.marker.evaluate, markers)):
                left.append(needs)
    return distributions
