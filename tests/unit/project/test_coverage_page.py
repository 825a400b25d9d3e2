"""docs/contributing/coverage.md: what it says is there, is there."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from repository import PROJECT_ROOT

from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy.platform import resources


def test_coverage_page_names_resources_that_exist_and_misses_no_kind() -> None:
    config = Settings()
    found = {one.key: type(one) for one in resources(config, load_topics(config))}
    text = (PROJECT_ROOT / "docs" / "contributing" / "coverage.md").read_text()
    patterns = re.findall(r"`((?:confluent|aws|snowflake|key)/[a-z_*/]+)`", text)
    assert len({*patterns}) > 30
    assert [one for one in patterns if not any(fnmatch(key, one) for key in found)] == []
    named = {kind for key, kind in found.items() if any(fnmatch(key, one) for one in patterns)}
    assert {*found.values()} - named == set()
