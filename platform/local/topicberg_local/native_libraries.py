"""The native libraries of JVMs, unpacked before they are needed.

A JVM unpacks one when it first compresses with it. If its disk is full at that moment, the class
stays unusable for as long as the process runs, also when there is space again.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import ZipFile

from topicberg.files import replacing

_SYSTEMS = r"(?i:linux)" if platform.system() == "Linux" else r"(?:darwin|Mac)"
_MACHINES = r"(?:x86_64|amd64)" if platform.machine() in ("x86_64", "AMD64") else r"aarch64"
_LIBRARIES = {
    "zstd-jni": ("-DZstdNativePath={path}",),
    "snappy-java": (
        "-Dorg.xerial.snappy.lib.path={path.parent}",
        "-Dorg.xerial.snappy.lib.name={path.name}",
    ),
}
"""Jar → the JVM options with which it loads the library of a path."""
_LIBRARY = re.compile(rf"(?:.*/)?{_SYSTEMS}/{_MACHINES}/lib[^/]+\.(?:so|dylib)")


def options(class_path: Iterable[Path], folder: Path) -> list[str]:
    """Return the JVM options for the libraries in a class path, and unpack them.

    :param class_path: files, and folders followed by ``*``, as ``java`` reads them
    :param folder: of the service; where no library fits this machine, the JVM looks for one itself
    """
    given: list[str] = []
    for jar in _jars(class_path):
        texts = _LIBRARIES.get(re.sub(r"-\d.*", "", jar.stem), ())
        if texts and (path := _unpack(jar, folder)):
            given += [text.format(path=path) for text in texts]
    return given


def _jars(class_path: Iterable[Path]) -> Iterator[Path]:
    for path in class_path:
        yield from sorted(path.parent.glob("*.jar")) if path.name == "*" else [path]


def _unpack(jar: Path, folder: Path) -> Path | None:
    with ZipFile(jar) as archive:
        entry = next((one for one in archive.infolist() if _LIBRARY.fullmatch(one.filename)), None)
        if entry is None:
            return None
        path = folder / jar.stem / Path(entry.filename).name
        if not path.exists() or path.stat().st_size != entry.file_size:
            with replacing(path) as stream:
                stream.write(archive.read(entry))
        return path
