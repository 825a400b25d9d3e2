"""The files of code that is shipped, their version, and the archive that carries them."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path
from typing import IO

LIBRARY = Path(__file__).parents[1]  # The folder of topicberg.


def below(folder: Path, inside: str = "") -> Iterator[tuple[str, Path]]:
    """Yield name in a folder of an archive, and file, of all but what Python has compiled."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.relative_to(folder).parts:
            yield Path(inside, path.relative_to(folder)).as_posix(), path


def installed_files(package: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield name below site-packages, and file, of all that a distribution has there."""
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        if ".." not in file.parts and path.is_file():
            yield str(file), path


def version(files: Mapping[str, Path], *texts: str) -> str:
    """Return a hash of the content of files, and of texts."""
    digest = hashlib.sha256("\0".join(texts).encode())
    for name, path in sorted(files.items()):
        digest.update(f"\0{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def pack(files: Mapping[str, Path], target: IO[bytes]) -> None:
    """Write an archive (tar, gzip), the same for the same content: whose it is and when it was
    written is left out."""
    with (
        gzip.GzipFile("", "wb", 6, target, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, path in sorted(files.items()):
            tar.add(path, name, recursive=False, filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    return info
