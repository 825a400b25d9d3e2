"""Names of topics in a query for Snowflake that has their tables in a catalog-linked database."""

from __future__ import annotations

from collections.abc import Callable

from topicberg.catalogs.snowflake.names import TablePath, quote


def qualify(sql: str, find: Callable[[str], TablePath | None]) -> str:
    """Return the query with the whole names of tables that it calls by their name only.

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
