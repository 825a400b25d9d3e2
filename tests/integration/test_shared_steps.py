"""Topics that share the steps of runs, on the real stack, up to Snowflake."""

from __future__ import annotations

import uuid

import dagster as dg
import pytest
from kafka_topics import ORDER, Topic

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.kafka import topics as kafka
from topicberg.orchestration.assets import Lake, lake_assets, lake_checks
from topicberg.orchestration.catalogs.catalog import systems
from topicberg.orchestration.jobs.maintenance import check_job
from topicberg.orchestration.jobs.pipelines import pipeline_jobs
from topicberg.orchestration.jobs.sensors import snapshot_sensor
from topicberg.orchestration.resources import RESOURCES
from topicberg.query import run_query
from topicberg.settings import settings
from topicberg.topics import TopicSpec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
GOOD, BAD = ("orders", "payments"), "damaged"


@pytest.fixture(scope="module")
def topics(stack: Endpoints) -> dict[str, Topic]:
    """Topics with a record each; the engine suspends one of them."""
    found: dict[str, Topic] = {}
    mark = uuid.uuid4().hex[:6]
    for name in (*GOOD, BAD):
        spec = TopicSpec.model_validate(
            {
                "name": f"{name}_{mark}",
                "pipeline": f"shop_{mark}",
                "schema": {"format": "avro"},
                "partitions": 1,
            }
        )
        kafka.ensure_topic(spec, stack, settings())
        found[name] = topic = Topic(stack, spec)
        topic.send(ORDER, [{"id": 1, "note": name}])
        if name == BAD:
            topic.send_raw([b"no record"])
        try:
            topic.ingest()
        except TopicbergError:
            assert name == BAD
    return found


def test_run_of_shared_steps_isolates_a_topic(
    stack: Endpoints, topics: dict[str, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All assets and checks of three topics in one run; only the suspended topic has failed."""
    monkeypatch.setattr("topicberg.orchestration.resources.lakehouse.ENGINE_PATIENCE_SECONDS", 1.0)
    lake = Lake(settings(), tuple(topic.spec for topic in topics.values()), ())
    definitions = dg.Definitions(
        assets=[*lake_assets(lake)],
        asset_checks=[*lake_checks(lake)],
        jobs=[*pipeline_jobs(lake), check_job(lake)],
        sensors=[snapshot_sensor(lake)],
        resources=RESOURCES,
        executor=dg.in_process_executor,
    )
    good = {topics[name].spec.table_name for name in GOOD}
    with dg.instance_for_test() as instance:
        job = definitions.resolve_job_def("everything")
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        events = result.get_asset_materialization_events()
        done = {tuple(event.asset_key.path) for event in events if event.asset_key}
        assert done == {(system, name) for system in systems() for name in good}
        failed = [event.step_key for event in result.all_events if event.is_step_failure]
        assert failed == [f"iceberg_of_{topics[BAD].spec.pipeline}"]
        evaluated = result.get_asset_check_evaluations()
        assert {one.asset_key.path[-1] for one in evaluated} == good
        assert {"tableflow", "pointer", "parity"} <= {one.check_name for one in evaluated}
        assert all(one.passed for one in evaluated)
        for name in GOOD:
            text = f"SELECT note FROM {topics[name].spec.snowflake_name}"
            assert run_query(text, "snowflake", stack, settings()).scalar() == name
        # A run of checks evaluates those of every topic, also of the one that is suspended.
        checks = definitions.resolve_job_def("check_tables").execute_in_process(
            instance=instance, raise_on_error=False
        )
        verdicts = {
            one.asset_key.path[-1]: one.passed
            for one in checks.get_asset_check_evaluations()
            if one.check_name == "tableflow"
        }
        assert set(verdicts) == {topic.spec.table_name for topic in topics.values()}
        assert all(verdicts[name] for name in good)
