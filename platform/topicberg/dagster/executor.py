"""The executor of every job, whatever the code location has.

Steps that topics share need one process (:mod:`topicberg.orchestration.assets.sharing`), and a
process a step would cost seconds each.
"""

from __future__ import annotations

import dagster as dg

from topicberg.dagster.compatibility import require_attributes, warn_degraded

MAX_WAIT_SECONDS = 2  # Between two looks whether a pool has room; Dagster waits up to 15 seconds.
SLEEP_SECONDS = 0.5  # Of a run whose next step waits; then Dagster decides whether it looks again.

EXECUTOR = dg.in_process_executor


def _sleep_while_pools_are_full() -> None:
    """Let a run sleep while its next step waits for a pool.

    Dagster means to, but takes the smaller of zero and the time until the next look, so that each
    waiting run computes as fast as it can: with three runs of derived tables, two of two cores.
    Nothing public of Dagster decides how long a step waits.
    https://github.com/dagster-io/dagster/pull/20367 is the fix that was not merged.

    :raises ImportError: Dagster lacks a private part that this needs
    """
    from dagster._core.execution.plan import instance_concurrency_context as waiting

    require_attributes(waiting, "MAX_CONCURRENCY_CLAIM_BLOCKED_INTERVAL")
    context = waiting.InstanceConcurrencyContext
    require_attributes(context, "interval_to_next_pending_claim_check", "has_pending_claims")

    def seconds_to_next_look(self: waiting.InstanceConcurrencyContext) -> float:
        return SLEEP_SECONDS if self.has_pending_claims() else 0.0

    context.interval_to_next_pending_claim_check = seconds_to_next_look  # type: ignore[method-assign]
    waiting.MAX_CONCURRENCY_CLAIM_BLOCKED_INTERVAL = MAX_WAIT_SECONDS


try:
    _sleep_while_pools_are_full()
except ImportError as error:
    warn_degraded("a run that waits for a pool uses a core", error)
