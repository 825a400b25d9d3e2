"""The preview of costs and quotas of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from topicberg.settings import Settings
from topicberg.topics import TopicSpec, load_topics
from topicberg_deploy.aws.emr import Application
from topicberg_deploy.confluent.organization import Cluster
from topicberg_deploy.confluent.tableflow import TableflowTopic
from topicberg_deploy.confluent_apis import CLUSTER
from topicberg_deploy.costs import HOURS, PRICES, QUOTAS, costs, usage
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Live, Resource
from topicberg_deploy.snowflake.tables import LinkedDatabase, LinkedTable

OFTEN: dict[str, Any] = {"snowflake_refresh_seconds": 30}


def graph(topics: list[TopicSpec] | None = None, **changes: Any) -> tuple[list[Resource], Settings]:
    config = Settings.model_validate({"deployment": "cloud", "prefix": "demo", **changes})
    return resources(config, load_topics(config) if topics is None else topics), config


def by_kind(found: list[Resource], config: Settings, kind: type[Resource], **live: Live) -> float:
    every = costs(found, config, live)
    return sum(one.usd for one in every if isinstance(one.resource, kind))


def test_each_tableflow_topic_costs_by_the_hour() -> None:
    found, config = graph()
    topics = [one for one in found if isinstance(one, TableflowTopic) and one.wanted]
    expected = len(topics) * PRICES["tableflow"].usd * HOURS
    assert by_kind(found, config, TableflowTopic) == pytest.approx(expected)
    assert expected > 0


def test_an_existing_standard_cluster_costs_as_one() -> None:
    found, config = graph()
    assert by_kind(found, config, Cluster) == 0
    live = {CLUSTER: Live("lkc-1", {"type": "Standard"})}
    assert by_kind(found, config, Cluster, **live) == PRICES["standard"].usd * HOURS


def test_what_is_not_wanted_costs_nothing() -> None:
    assert by_kind(*graph(), Application) > 0
    assert by_kind(*graph(compute="none"), Application) == 0


def test_polling_ten_times_as_often_costs_ten_times_as_much() -> None:
    """The refresh of each table, which Snowflake charges whether there is a new snapshot or not."""
    usual, often = (by_kind(*graph(**change), LinkedTable) for change in ({}, OFTEN))
    assert often == pytest.approx(10 * usual)
    assert usual > 0


def test_discovery_costs_what_is_beyond_the_free_cloud_services() -> None:
    found, config = graph()
    (line,) = [one for one in costs(found, config, {}) if isinstance(one.resource, LinkedDatabase)]
    assert (line.usd, line.basis) == (0, "discovery every 300 s, beyond what is free")
    assert by_kind(*graph(**OFTEN), LinkedDatabase) > 0


def test_the_default_deployment_meets_no_quota() -> None:
    assert [one.name for one, used in usage(*graph()).items() if used > one.limit] == []


def test_a_plan_that_passes_a_quota_is_noticed() -> None:
    (spec,) = [one for one in load_topics() if one.name == "stock_trades"]
    large = spec.model_copy(update={"partitions": 5000})
    found = usage(*graph([large], emr={"max_vcpu": 64}))
    passed = {quota.name: used for quota, used in found.items() if used > quota.limit}
    assert passed == {"partitions": 5000, "vCPU of EMR Serverless": 64}


def test_every_figure_names_its_source() -> None:
    pages = [one.source for one in PRICES.values()] + [one.source for one in QUOTAS.values()]
    assert all("." in page and "/" in page for page in pages)
