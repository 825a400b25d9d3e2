"""Hints about a service that does not answer name `topicberg status` only where it can know."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from repository import PROJECT_ROOT

from topicberg.clients.registry import registry_errors
from topicberg.errors import UnreachableError, see_whether_it_runs
from topicberg.errors.meaning import availability_hint
from topicberg.settings import settings
from topicberg.spark import check_spark


@pytest.fixture(params=["local", "cloud"])
def deployment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TOPICBERG_DEPLOYMENT", request.param)
    settings.cache_clear()
    yield request.param
    monkeypatch.undo()
    settings.cache_clear()


def hints() -> Iterator[str]:
    yield see_whether_it_runs("Kafka", starts=True)
    for service in (None, "Spark", "the Iceberg catalog"):
        yield availability_hint(service)
    with pytest.raises(UnreachableError) as raised:
        check_spark("sc://127.0.0.1:9", timeout=1)
    yield raised.value.hint or ""
    with pytest.raises(UnreachableError) as raised, registry_errors("subject orders-value"):
        raise OSError("nothing listens")
    yield raised.value.hint or ""


def test_hint_names_the_status_of_the_local_stack_only_there(deployment: str) -> None:
    for hint in hints():
        assert ("`topicberg status`" in hint) == (deployment == "local"), hint
        assert re.match("run |check ", hint), "a hint begins with a verb"


def test_no_other_message_suggests_the_status_of_the_stack() -> None:
    """A message of the library has to go by :func:`see_whether_it_runs`."""
    assert {
        str(path.relative_to(PROJECT_ROOT / "platform" / "topicberg"))
        for path in (PROJECT_ROOT / "platform" / "topicberg").rglob("*.py")
        if "run `topicberg status`" in path.read_text()
    } == {"errors/__init__.py"}
