"""The namespaces in which names of tables without one are found.

A catalog may have the tables of several deployments: the pipelines of each have namespaces of their
own, and a name that is not in those of this deployment is not found.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog import Catalog

from topicberg.catalogs.snowflake.names import TablePath, quote
from topicberg.settings import Settings
from topicberg.topics import check_topics


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


def qualify(sql: str, find: Callable[[str], TablePath | None]) -> str:
    """Return a query for Snowflake with the whole names of tables that it calls by name only.

    Each keeps that name as its alias. The rest of the text stays as it is.

    :param sql: one statement that the parser has accepted
    :param find: name in upper case → where the table is; None: not in the linked database
    """
    from sqlglot import exp, parse_one

    tree = parse_one(sql, read="snowflake")
    within = {query.alias_or_name.upper() for query in tree.find_all(exp.CTE)}
    places: list[tuple[int, int, str]] = []
    for table in tree.find_all(exp.Table):
        name = table.name if table.this.args.get("quoted") else table.name.upper()
        place = table.this.meta
        if table.db or name in within or "start" not in place:
            continue
        if (path := find(name)) is not None:
            alias = "" if table.alias else f" AS {quote(name)}"
            places.append((place["start"], place["end"] + 1, path.sql + alias))
    for start, end, text in sorted(places, reverse=True):
        sql = sql[:start] + text + sql[end:]
    return sql
