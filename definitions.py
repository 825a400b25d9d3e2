"""The code location that ``workspace.yaml`` names: the whole asset graph, put together."""

from __future__ import annotations

import warnings

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning)

from assets import find_derived, graph_assets, graph_checks, topic_graphs  # noqa: E402
from assets.platform import platform_assets  # noqa: E402
from jobs import pipeline_jobs, rotation_schedule, snapshot_sensor  # noqa: E402
from resources import RESOURCES  # noqa: E402
from topicberg.settings import settings  # noqa: E402
from topicberg.topics import load_topics  # noqa: E402

_config = settings()
_specs = load_topics(_config)
_graphs = topic_graphs(_specs, find_derived())

defs = dg.Definitions(
    assets=[
        *(asset for graph in _graphs for asset in graph_assets(graph, _config)),
        platform_assets(_config, _specs),
    ],
    asset_checks=[check for graph in _graphs for check in graph_checks(graph, _config)],
    jobs=pipeline_jobs({graph.spec.pipeline for graph in _graphs}),
    sensors=[snapshot_sensor(graph, _config) for graph in _graphs if graph.spec.tableflow.enabled],
    schedules=[rotation_schedule(_config)],
    resources=RESOURCES,
    # Every run is a process of its own already; a process a step would cost 5 seconds each.
    executor=dg.in_process_executor,
)
