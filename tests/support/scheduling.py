"""Which of pytest-xdist's workers runs which files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

LONGEST = (
    "tests/integration/test_upsert_decoded_keys.py",
    "tests/e2e/test_demo.py",
    "tests/integration/test_graph.py",
    "tests/integration/test_upsert.py",
    "tests/integration/test_columnar.py",
    "tests/integration/test_forget.py",
    "tests/integration/test_tableflow.py",
    "tests/integration/test_delta.py",
    "tests/component/deploy/test_deploy_whole.py",
    "tests/e2e/test_installed_project.py",
    "tests/conformance/test_protobuf_programs.py",
    "tests/component/tableflow/test_upsert_keys.py",
    "tests/security/test_limits.py",
    "tests/component/transforms/test_emr_serverless.py",
    "tests/component/local/test_supervisor.py",
    "tests/component/local/test_python_daemon.py",
    "tests/component/transforms/test_code_version.py",
)
"""Files that take long. They begin first, so no worker ends long after the others."""
RESTARTING = ("tests/integration/test_stack.py", "tests/integration/test_exactly_once.py")
"""Files that kill services with a JVM. They begin late: a new JVM is slow for minutes."""
_LATE = 10
"""How many files that need a stack are left when those that kill services may begin."""


class StackScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A whole file for a worker; only the first ``--stacks`` workers have files that need a stack.

    A test with a stack often waits, for a service or a commit. A worker without one, which costs
    neither memory nor a start, uses that time for the other tests.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        stackless = [scope for scope in self.workqueue if not self._needs_stack(scope)]
        if self._is_stackless(node):
            if not stackless:
                node.shutdown()
                return
            scopes = stackless
        else:
            scopes = [scope for scope in self.workqueue if scope not in stackless] or stackless
        is_late = len(scopes) <= _LATE
        early = [scope for scope in scopes if scope not in RESTARTING]
        order = (*LONGEST, *(RESTARTING if is_late else early))
        first = next((scope for scope in order if scope in scopes), scopes[0])
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _is_stackless(self, node: WorkerController) -> bool:
        """Tell by the number of the worker; one that replaces a crashed worker may have a stack."""
        number = int(node.gateway.id.removeprefix("gw"))
        return self.config.getoption("stacks") <= number < self.numnodes

    def _needs_stack(self, scope: str) -> bool:
        return _is_marked(self.config.rootpath / scope)


@cache
def _is_marked(file: Path) -> bool:
    """Return whether the tests of a file are marked as those that need a stack."""
    return "mark.integration" in file.read_text()
