"""Replace the specs and schemas of this checkout by those of a pull request, as data.

Usage: ``request_specs.py ARCHIVE``, a tar file of the request's tree. Of it, only regular files
with the names of specs and schemas are taken: no link, no other folder, and nothing that Python or
a shell would run.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
from pathlib import Path

FOLDERS = ("platform/topics", "platform/schemas")
_TAKEN = re.compile(r"platform/(topics/[^/]+\.yaml|schemas/([\w.-]+/)*[\w.-]+\.(avsc|json|proto))")
MAX_FILES, MAX_BYTES = 20_000, 64 * 2**20


def take(archive: Path, root: Path) -> list[str]:
    """Replace the folders of specs and schemas; return the names that were left out.

    :raises ValueError: the archive has more files or bytes than any repository of specs
    """
    files: dict[str, bytes] = {}
    left_out, size = [], 0
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]  # the first folder is the commit's
            if not name.startswith(FOLDERS) or member.isdir():
                continue
            if not (member.isreg() and _TAKEN.fullmatch(name)) or ".." in Path(name).parts:
                left_out.append(name)
                continue
            size += member.size
            if size > MAX_BYTES or len(files) >= MAX_FILES:
                raise ValueError(f"more than {MAX_FILES} files or {MAX_BYTES} bytes of specs")
            content = tar.extractfile(member)
            files[name] = content.read() if content else b""
    for folder in FOLDERS:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return left_out


if __name__ == "__main__":
    for each in take(Path(sys.argv[1]), Path()):
        sys.stdout.write(f"left out: {each!r}\n")
