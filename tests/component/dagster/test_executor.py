"""A run that waits for a pool sleeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import dagster as dg
import pytest
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext

from topicberg.dagster.executor import EXECUTOR

POOL, OTHER_RUN = "spark", "another-run"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.event_log_storage.set_concurrency_slots(POOL, 1)
        yield instance


@dg.asset(pool=POOL)
def computed() -> None: ...


def test_run_waiting_for_a_pool_looks_a_few_times_and_then_continues(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, looks = instance.event_log_storage, 0
    free = Timer(1.5, storage.free_concurrency_slots_for_run, [OTHER_RUN])
    claim = InstanceConcurrencyContext.claim

    def counted(*arguments: object) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            free.start()
        return claim(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(InstanceConcurrencyContext, "claim", counted)
    assert storage.claim_concurrency_slot(POOL, OTHER_RUN, "step").is_claimed
    job = dg.define_asset_job("job", [computed], executor_def=EXECUTOR)
    defs = dg.Definitions(assets=[computed], jobs=[job])
    result = defs.resolve_job_def("job").execute_in_process(instance=instance)
    free.join()
    assert result.success
    assert 2 <= looks < 20  # thousands if it does not sleep
