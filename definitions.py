"""The code location that ``workspace.yaml`` names: the whole asset graph, put together."""

from __future__ import annotations

import warnings

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning)

from assets import find_derived, graph_assets, graph_checks, topic_graphs  # noqa: E402
from jobs import (  # noqa: E402
    maintenance_job,
    maintenance_schedule,
    pipeline_jobs,
    snapshot_sensor,
)
from resources import RESOURCES  # noqa: E402
from topicberg.settings import settings  # noqa: E402
from topicberg.topics import load_topics  # noqa: E402

_config = settings()
_graphs = topic_graphs(load_topics(_config), find_derived())
_maintenance = maintenance_job(_graphs, _config)

defs = dg.Definitions(
    assets=[asset for graph in _graphs for asset in graph_assets(graph, _config)],
    asset_checks=[check for graph in _graphs for check in graph_checks(graph, _config)],
    jobs=[*pipeline_jobs({graph.spec.pipeline for graph in _graphs}), _maintenance],
    schedules=[maintenance_schedule(_maintenance)],
    sensors=[snapshot_sensor(graph, _config) for graph in _graphs if graph.spec.tableflow.enabled],
    resources=RESOURCES,
    # Every run is a process of its own already; a process a step would cost 5 seconds each.
    executor=dg.in_process_executor,
)
