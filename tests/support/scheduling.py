"""Which of pytest-xdist's workers runs which files."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class StackScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A whole file for a worker; only the first ``--stacks`` workers have files that need a stack.

    A test with a stack often waits, for a service or a commit. A worker without one, which costs
    neither memory nor a start, uses that time for the unit tests.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        stackless = [scope for scope in self.workqueue if scope.startswith("tests/unit/")]
        if self._is_stackless(node):
            if not stackless:
                node.shutdown()
                return
            first = stackless[0]
        else:
            first = next((scope for scope in self.workqueue if scope not in stackless), "")
        if first:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _is_stackless(self, node: WorkerController) -> bool:
        """Tell by the number of the worker; one that replaces a crashed worker may have a stack."""
        number = int(node.gateway.id.removeprefix("gw"))
        return self.config.getoption("stacks") <= number < self.numnodes
