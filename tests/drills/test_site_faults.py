"""Faults of addresses, Dagster, data and services: each is alerted with its cause and its fix."""

from __future__ import annotations

from collections.abc import Iterator

import address_faults
import dagster_faults
import data_faults
import other_faults
import pytest
from fault_site import Fault, Site, committing_site, drill

from topicberg.endpoints import Endpoints

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]
FAULTS = (
    *(*address_faults.FAULTS, *dagster_faults.FAULTS),
    *(*data_faults.FAULTS, *other_faults.FAULTS),  # the last one deletes the topic
)


@pytest.fixture(scope="module")
def site(stack: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with committing_site(stack, tmp_path_factory.mktemp("project")) as site:
        yield site


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_alerted_in_a_minute_and_resolved(site: Site, fault: Fault) -> None:
    drill(site, fault)
