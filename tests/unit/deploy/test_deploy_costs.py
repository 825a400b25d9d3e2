"""The preview of costs and quotas of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from topicberg.settings import Settings
from topicberg.topics import TopicSpec, load_topics
from topicberg_deploy.confluent.organization import Cluster
from topicberg_deploy.confluent.tableflow import TableflowTopic
from topicberg_deploy.context import CLUSTER
from topicberg_deploy.costs import HOURS, PRICES
from topicberg_deploy.platform import costs, resources, usage
from topicberg_deploy.resource import Live, Resource


def graph(topics: list[TopicSpec] | None = None, **changes: Any) -> tuple[list[Resource], Settings]:
    config = Settings.model_validate({"deployment": "cloud", "prefix": "demo", **changes})
    return resources(config, load_topics(config) if topics is None else topics), config


def by_kind(found: list[Resource], config: Settings, kind: type[Resource], **live: Live) -> float:
    every = costs(found, config, live)
    return sum(cost.usd for resource, cost in every if isinstance(resource, kind))


def test_each_tableflow_topic_costs_by_the_hour() -> None:
    found, config = graph()
    topics = [one for one in found if isinstance(one, TableflowTopic) and one.wanted]
    expected = len(topics) * PRICES["tableflow"] * HOURS
    assert by_kind(found, config, TableflowTopic) == pytest.approx(expected)
    assert expected > 0


def test_an_existing_standard_cluster_costs_as_one() -> None:
    found, config = graph()
    assert by_kind(found, config, Cluster) == 0
    live = {CLUSTER: Live("lkc-1", {"type": "Standard"})}
    assert by_kind(found, config, Cluster, **live) == PRICES["standard"] * HOURS


def test_the_default_deployment_meets_no_quota() -> None:
    assert [one.name for one, used in usage(*graph()).items() if used > one.limit] == []


def test_a_plan_that_passes_a_quota_is_noticed() -> None:
    (spec,) = [one for one in load_topics() if one.name == "stock_trades"]
    found = usage(*graph([spec.model_copy(update={"partitions": 5000})], emr={"max_vcpu": 64}))
    passed = {quota.name: used for quota, used in found.items() if used > quota.limit}
    assert passed == {"partitions": 5000, "vCPU of EMR Serverless": 64}
