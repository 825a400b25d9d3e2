"""Another user of this machine, for tests of what that user can do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from topicberg_local import peers

NOBODY = 65534
needs_users = pytest.mark.skipif(
    not peers.is_supported() or os.geteuid() != 0, reason="only root can become another user"
)
# The interpreter and its packages may lie in a home that the other user cannot read.
_BECOME = """
import os, sys
import encodings.idna, linecache, traceback
for name in sys.argv[1].split(): __import__(name)
os.chdir("/")
os.setgroups([])
os.setgid({user})
os.setuid({user})
exec(sys.stdin.read())
"""


def as_other_user(code: str, *modules: str, user: int = NOBODY) -> str:
    """Run Python code as another user; what it printed.

    :param modules: imported before the process becomes the other user
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", _BECOME.format(user=user), " ".join(modules)],
        input=code,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
