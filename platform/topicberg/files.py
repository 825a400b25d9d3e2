"""Files that other processes read at any time."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from topicberg.errors import SpecError


def topic_file(folder: Path, topic: str) -> Path:
    """The JSON file that a folder has for a topic.

    :raises SpecError: the name would lead to a file somewhere else
    """
    if not topic.strip(".") or "\0" in topic or Path(topic).name != topic:
        raise SpecError(f"{topic!r} is no name of a topic")
    return folder / f"{topic}.json"


def replace_file(path: Path, text: str) -> None:
    """Write a file, mode 0600, in one step: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.")
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    Path(temporary).replace(path)
