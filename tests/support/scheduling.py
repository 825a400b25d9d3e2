"""Which of pytest-xdist's workers runs which files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

LONGEST = (
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
    "tests/component/project/test_recipes.py",
    "tests/conformance/test_damaged_memory.py",
    "tests/component/local/test_supervisor.py",
    "tests/component/local/test_processes.py",
    "tests/component/transforms/test_code_version.py",
)
"""Files that take long. They begin first, so no worker ends long after the others."""
RESTARTING = ("tests/integration/test_exactly_once.py", "tests/integration/test_stack.py")
"""Files that kill services with a JVM. They begin last: a new JVM is slow for minutes."""


class StackScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A whole file for a worker; the first ``--stack-workers`` have those that need the stack.

    They share it; the first worker has all that use the reference project's names.
    A test with a stack often waits, for a service or a commit. The workers without use that time
    for the other tests.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        number = int(node.gateway.id.removeprefix("gw"))
        has_stack = number < self.config.getoption("stack_workers")
        replaces_one = number >= self.numnodes  # that has crashed
        stackless = [scope for scope in self.workqueue if not self._has(scope, "integration")]
        restarting = [scope for scope in RESTARTING if scope in self.workqueue]
        stacked = [
            scope
            for scope in self.workqueue
            if self._has(scope, "integration") and scope not in restarting
        ]
        project = [scope for scope in stacked if self._has(scope, "project")]
        if number == 0 or replaces_one:
            scopes = project or stacked or restarting or stackless
        elif has_stack:
            scopes = [scope for scope in stacked if scope not in project] or stackless
        else:
            scopes = stackless
        if not scopes:
            node.shutdown()
            return
        first = next(scope for scope in (*LONGEST, *scopes) if scope in scopes)
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _has(self, scope: str, mark: str) -> bool:
        return f"mark.{mark}" in _text(self.config.rootpath / scope)


@cache
def _text(file: Path) -> str:
    return file.read_text()
