"""Jobs to run by hand: each pipeline as a whole, and everything."""

from __future__ import annotations

import dagster as dg

from assets.platform import PLATFORM

EVERYTHING = "everything"
_TAGS = {"topicberg/kind": "pipeline"}


def pipeline_jobs(pipelines: set[str]) -> list[dg.UnresolvedAssetJobDefinition]:
    """A job for each pipeline, named like its group, and :data:`EVERYTHING`."""
    jobs = [
        dg.define_asset_job(
            f"{name}_pipeline",
            selection=dg.AssetSelection.groups(name),
            description=f"Every asset and check of the pipeline {name}.",
            tags=_TAGS,
        )
        for name in sorted(pipelines)
    ]
    everything = dg.define_asset_job(
        EVERYTHING,
        selection=dg.AssetSelection.all() - dg.AssetSelection.groups(PLATFORM),
        description="Every asset and check of the data; the platform is made by itself.",
        tags=_TAGS,
    )
    return [*jobs, everything]
