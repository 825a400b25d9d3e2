"""What is sent to workers of Spark that have no topicberg."""

from __future__ import annotations

import subprocess
import sys

ONLY_WHAT_IS_SENT = """
import sys
from importlib.metadata import packages_distributions

from topicberg.shipping.workers import WORKERS_OWN, _distributions

sent = {name.lower() for name in _distributions()} | WORKERS_OWN | {"topicberg"}
missing = {
    module
    for module, names in packages_distributions().items()
    if not any(name.lower().replace("_", "-") in sent for name in names)
}


class Worker:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in [name for name in sys.modules if name.split(".")[0] in missing]:
    del sys.modules[name]
for name in [name for name in sys.modules if name.split(".")[0] == "topicberg"]:
    del sys.modules[name]
sys.meta_path.insert(0, Worker)
import topicberg.tableflow.decode.processes
from topicberg.tableflow.values.compiling import wait_ready

wait_ready()
"""


def test_tasks_import_only_what_workers_are_sent() -> None:
    command = [sys.executable, "-c", ONLY_WHAT_IS_SENT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
