"""Files of a folder in which others write and delete."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from topicberg.files import files_below


def contents(folder: Path, most_bytes: float = 1e6) -> Iterator[tuple[Path, int, bytes]]:
    """Yield path, permissions and content of each file that is not larger."""
    for path in files_below(folder):
        with suppress(FileNotFoundError):
            state = path.stat()
            if stat.S_ISREG(state.st_mode) and state.st_size <= most_bytes:
                yield path, stat.S_IMODE(state.st_mode), path.read_bytes()
