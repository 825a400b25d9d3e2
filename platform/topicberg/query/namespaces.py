"""The namespaces in which names of tables without one are found.

A catalog may have the tables of several deployments: the pipelines of each have namespaces of their
own, and a name that is not in those of this deployment is not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topicberg.settings import Settings
from topicberg.topics import check_topics

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def own_namespaces(config: Settings) -> list[str]:
    """Return the namespaces of a deployment: of the topics' tables, then of its pipelines."""
    pipelines = {spec.namespace(config) for spec in check_topics(config)[0]}
    return [config.topics_namespace, *sorted(pipelines - {config.topics_namespace})]


def own_tables(catalog: Catalog, config: Settings) -> list[tuple[str, str]]:
    """Return namespace and name of a deployment's tables, in the order of the search."""
    there = {namespace[0] for namespace in catalog.list_namespaces() if len(namespace) == 1}
    return [
        (namespace, name)
        for namespace in own_namespaces(config)
        if namespace in there
        for name in sorted(table[-1] for table in catalog.list_tables(namespace))
    ]
