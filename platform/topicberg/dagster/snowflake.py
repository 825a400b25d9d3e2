"""dagster-snowflake, imported without Snowpark and Snowflake's REST API until they are used.

It imports both for methods that are not called here: 10 seconds of computing with
dagster-snowflake 0.29. Each run is a process, and Dagster imports the package in each process of a
project with components, whether it uses Snowflake or not.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from topicberg.extensions import of_extra

if TYPE_CHECKING:
    from dagster_snowflake import SnowflakeResource

_PARTS = ("database", "pipe", "schema", "stage", "table", "view")
_DEFERRED = ("snowflake.snowpark", "snowflake.core", *(f"snowflake.core.{part}" for part in _PARTS))


class _DeferredClass(type):
    """The type of classes that stand for others, which are imported when they are used."""

    _module: str

    def _imported(cls) -> Any:
        return getattr(import_module(cls._module), cls.__name__)

    def __call__(cls, *given: Any, **named: Any) -> Any:
        return cls._imported()(*given, **named)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(cls._imported(), name)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._imported())


class _DeferredModule(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _DeferredClass(name, (), {"_module": self.__name__})


@cache
def snowflake_resource() -> type[SnowflakeResource]:
    """Return ``dagster_snowflake.SnowflakeResource``."""
    absent = {name: _DeferredModule(name) for name in _DEFERRED if name not in sys.modules}
    sys.modules.update(absent)
    try:
        with of_extra("snowflake"):
            from dagster_snowflake import SnowflakeResource
    finally:
        for name in absent:
            del sys.modules[name]
    return SnowflakeResource
