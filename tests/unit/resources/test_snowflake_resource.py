"""The resource is dagster-snowflake's own, and what was left out can be imported afterwards."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from topicberg.dagster.snowflake import snowflake_resource
resource = snowflake_resource()
assert resource.__module__ == "dagster_snowflake.resources"
assert hasattr(resource, "get_connection")
assert not [name for name in sys.modules if name.startswith("snowflake.core")]
from snowflake.core import Root
assert Root is not object
"""


def test_the_resource_comes_without_snowpark() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
