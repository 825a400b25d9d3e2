"""The spec of a dead-letter topic: every topic with error handling LOG brings one with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from topicberg.topics.schema import OWN
from topicberg.topics.spec import TableflowSpec, TopicSpec

ERROR_LOG_SCHEMA = f"{OWN}error_log.avsc"
DEFAULT_TARGET = "error_log"


def dead_letter_spec(spec: TopicSpec) -> TopicSpec:
    """Return the spec of a topic's dead-letter topic, if that has no spec file of its own."""
    return TopicSpec.model_validate(
        {
            "name": spec.tableflow.error_handling.target or DEFAULT_TARGET,
            "pipeline": spec.pipeline,
            "description": "Records that could not be materialized, with the reason of each.",
            "schema": {"format": "avro", "file": ERROR_LOG_SCHEMA},
            "key": {"format": "bytes"},
            "partitions": 1,
            "tableflow": TableflowSpec(
                commit_interval_seconds=spec.tableflow.commit_interval_seconds
            ).model_dump(),
            "owners": spec.owners,
        }
    )


def dead_letter_specs(specs: Iterable[TopicSpec], known: Collection[str]) -> list[TopicSpec]:
    """Return the specs of the dead-letter topics of these topics, without those in ``known``."""
    by_target: dict[str, TopicSpec] = {}
    for spec in specs:
        if spec.tableflow.error_handling.mode == "LOG":
            target = dead_letter_spec(spec)
            by_target.setdefault(target.name, target)
    return [target for name, target in by_target.items() if name not in known]
