"""Files that other processes read at any time."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file, mode 0600, in one step: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.")
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    Path(temporary).replace(path)
