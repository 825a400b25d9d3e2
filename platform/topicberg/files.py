"""Files that other processes read at any time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from topicberg.errors import SpecError


def topic_file(folder: Path, topic: str) -> Path:
    """Return the JSON file of a topic in a folder; raise SpecError if the name would lead to a file
    outside of the folder."""
    if not topic.strip(".") or "\0" in topic or Path(topic).name != topic:
        raise SpecError(f"{topic!r} is not a name of a topic")
    return folder / f"{topic}.json"


def replace_file(path: Path, text: str) -> None:
    """Write a file, mode 0600, atomically: a reader never sees half of it."""
    with replacing(path) as stream:
        stream.write(text.encode())


def update_file(path: Path, text: str) -> None:
    """Write a file as :func:`replace_file` does, unless it has this text."""
    if not path.exists() or path.read_bytes() != text.encode():
        replace_file(path, text)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file, mode 0600, which replaces ``path`` at the end; it is deleted on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and in its folders, also while others delete some of these, for
    which Python's ``rglob`` fails."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
            raise error

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place, name) for name in names)
