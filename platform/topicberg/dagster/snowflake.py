"""dagster-snowflake's resource, imported without Snowpark and Snowflake's REST API.

It imports both for methods that are not called here. Each run is a process, and for each one that
uses Snowflake they would cost 7 seconds of computing.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_snowflake import SnowflakeResource

_PARTS = ("database", "pipe", "schema", "stage", "table", "view")
_UNUSED = ("snowflake.snowpark", "snowflake.core", *(f"snowflake.core.{part}" for part in _PARTS))


class _Unused(ModuleType):
    """A module that has every class, none of which does anything."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


@cache
def snowflake_resource() -> type[SnowflakeResource]:
    """Return ``dagster_snowflake.SnowflakeResource``."""
    absent = {name: _Unused(name) for name in _UNUSED if name not in sys.modules}
    sys.modules.update(absent)
    try:
        from dagster_snowflake import SnowflakeResource
    finally:
        for name in absent:
            del sys.modules[name]
    return SnowflakeResource
