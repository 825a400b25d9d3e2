"""The code location that ``workspace.yaml`` names: the whole asset graph, put together."""

from __future__ import annotations

import gc
import warnings

gc.disable()  # a fifth of the time to load a fleet: nothing that is loaded becomes garbage

import dagster as dg  # noqa: E402

warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)  # of Pipes, about itself

from assets import Lake, find_derived, lake_assets, lake_checks  # noqa: E402
from assets.platform import platform_nodes  # noqa: E402
from jobs import (  # noqa: E402
    alert_sensor,
    catalog_sensor,
    check_job,
    check_schedule,
    engine_sensor,
    maintenance_job,
    maintenance_schedule,
    pipeline_jobs,
    retention_schedule,
    rotation_schedule,
    snapshot_sensor,
)
from resources import RESOURCES  # noqa: E402
from topicberg.settings import emr_settings, settings  # noqa: E402
from topicberg.topics.kept import KnownSpecs, build_with_kept  # noqa: E402

_config = settings()
emr_settings()  # what is wrong with them is told here, not by the first run


def _definitions(known: KnownSpecs) -> dg.Definitions:
    lake = Lake(_config, tuple(known.specs), tuple(find_derived()), known.left_out)
    return dg.Definitions(
        assets=[*lake_assets(lake), *platform_nodes(_config, known.specs)],
        asset_checks=list(lake_checks(lake)),
        jobs=[*pipeline_jobs(lake), check_job(lake), maintenance_job(lake)],
        schedules=[
            check_schedule(),
            maintenance_schedule(),
            retention_schedule(),
            rotation_schedule(_config),
        ],
        sensors=[
            snapshot_sensor(lake),
            catalog_sensor(lake),
            alert_sensor(known.problem),
            *([engine_sensor()] if _config.deployment == "local" else []),
        ],
        resources=RESOURCES,
        # Every run is a process of its own already; a process a step would cost seconds each.
        executor=dg.in_process_executor,
    )


defs = build_with_kept(_config, _definitions)
defs.get_repository_def()  # which Dagster needs in every process, and which it keeps
gc.enable()
gc.freeze()  # what was loaded stays until the process ends
