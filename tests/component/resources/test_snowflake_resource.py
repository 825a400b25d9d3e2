"""The resource is dagster-snowflake's own, and what was left out can be imported afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
import pytest

from topicberg.orchestration.resources import Snowflake

PROGRAM = """
import sys
from topicberg.dagster.snowflake import snowflake_resource
resource = snowflake_resource()
assert resource.__module__ == "dagster_snowflake.resources"
assert hasattr(resource, "get_connection")
assert not [name for name in sys.modules if name.startswith(("snowflake.core", "snowflake.sn"))]
from dagster_snowflake import resources
deferred, session = resources.Root, resources.snowpark.Session
from snowflake.core import Root
from snowflake.snowpark import Session
assert session.SessionBuilder is Session.SessionBuilder, "a class that was deferred is the real one"
assert isinstance(session.builder, Session.SessionBuilder)
assert deferred is not Root
connection = type("Connection", (), {"_rest": None})()
try:
    deferred(connection)
except Exception as error:
    assert "Connection" in str(error) or "_rest" in str(error), error
"""


def test_the_resource_comes_without_snowpark() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_steps_of_a_run_share_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that failed is not used again, and none stays open after the run."""
    events: list[str] = []

    @contextmanager
    def opened(self: Snowflake) -> Iterator[object]:
        events.append("open")
        yield object()
        events.append("close")

    monkeypatch.setattr(Snowflake, "_opened", opened)

    @dg.asset
    def first(snowflake: Snowflake) -> None:
        for _ in range(3):
            with snowflake.connection():
                events.append("use")

    @dg.asset(deps=[first])
    def second(snowflake: Snowflake) -> None:
        with pytest.raises(ValueError, match="refused"), snowflake.connection():
            raise ValueError("refused")
        with snowflake.connection():
            events.append("use")

    dg.materialize([first, second], resources={"snowflake": Snowflake()})
    assert events == ["open", "use", "use", "use", "close", "open", "use", "close"]
    with Snowflake().connection():
        events.clear()
    assert events == ["close"]
