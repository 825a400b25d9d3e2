"""Names that Dagster needs its callers to have, but does not export.

Its public calls return or take them: ``get_freshness_state_records``, ``get_ticks``,
``get_asset_check_execution_history``, ``event_log_storage``. Without them, alerts on stale assets
and on failed ticks, and the newest result of a check that runs again, would not be possible.
"""

from dagster._core.definitions.freshness import FreshnessState
from dagster._core.scheduler.instigation import InstigatorType, TickStatus
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as ENDED_CHECKS,
)
from dagster._core.storage.event_log import SqlEventLogStorage

__all__ = ["ENDED_CHECKS", "FreshnessState", "InstigatorType", "SqlEventLogStorage", "TickStatus"]
