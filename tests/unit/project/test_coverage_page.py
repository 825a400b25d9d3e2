"""docs/contributing/coverage.md: what it says is there, is there."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from repository import PROJECT_ROOT

from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy.platform import resources

PAGE = PROJECT_ROOT / "docs" / "contributing" / "coverage.md"
_RESOURCE = re.compile(r"(confluent|aws|snowflake|key)/[a-z_*/]+")


def test_coverage_page_names_resources_that_exist() -> None:
    config = Settings()
    keys = [one.key for one in resources(config, load_topics(config))]
    named = {one for one in re.findall(r"`([^`]+)`", PAGE.read_text()) if _RESOURCE.fullmatch(one)}
    assert len(named) > 30
    assert {one for one in named if not any(fnmatch(key, one) for key in keys)} == set()


def test_coverage_page_misses_no_kind_of_resource() -> None:
    config = Settings()
    patterns = re.findall(r"`([^`]+)`", PAGE.read_text())
    kinds = {type(one): one.key for one in resources(config, load_topics(config))}
    missing = {k for k in kinds.values() if not any(fnmatch(k, one) for one in patterns)}
    assert missing == set()
