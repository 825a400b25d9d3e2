"""The resource of Dagster's assets, of a deployment that a test holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from topicberg.orchestration.resources.lakehouse import Lakehouse


def lakehouse_of(iceberg: Any = None, client: Any = None) -> Lakehouse:
    """Return the resource of a deployment that has a catalog, a Glue and nothing else."""

    class Given(Lakehouse):
        def peek(self) -> Any:
            return SimpleNamespace(catalog=lambda _: iceberg)

        def catalog(self) -> Any:
            return iceberg

        def glue(self) -> Any:
            return client

    return Given()
