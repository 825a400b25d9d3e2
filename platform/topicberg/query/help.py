"""Hints for an engine's error: similar names, quoted as the engine reads them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, filterfalse

from topicberg.extensions import of_extra
from topicberg.topics.spec import asset_name
from topicberg.wording import count

Columns = Callable[[], Mapping[str, Sequence[str]]]
"""Tables of the lake with their columns; tables that a query does not name may lack them."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNQUOTED = re.compile(r"""(?<!["`$])\$\$[A-Za-z][\w-]*(?![\w"`$-])""")
_NO_DATABASE = re.compile(r"does not have a current (database|schema)", re.IGNORECASE)
_TABLE = re.compile(
    r"""Table with name ["']?(.+?)["']? does not exist"""
    r"|table or view (`.+?`|\S+) cannot be found"
    r"|Object '(.+?)' does not exist"
)
_COLUMN = re.compile(
    r'column "(.+?)" not found'
    r"|with name (`.+?`|\S+) cannot be resolved"
    r"|invalid identifier '(.+?)'"
    r'|Could not find key "(.+?)" in struct'
)
_IN_LISTS = re.compile(r"\.(element|key|value)(\.|$)")
"""Parts of the names that Iceberg gives to what is in lists and maps; no query can write them."""
_MOST = 8


def quoted(name: str, engine: str) -> str:
    """Return a name as a query of the engine has to write it."""
    if _PLAIN.fullmatch(name) and (engine != "duckdb" or name.lower() not in _reserved()):
        return name
    return f"`{name}`" if engine == "spark" else f'"{name}"'


@cache
def _reserved() -> frozenset[str]:
    """Return DuckDB's reserved words, e.g. ``to``: a column of such a name needs quotes."""
    with of_extra("query"):
        import duckdb

    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    with duckdb.connect() as connection:
        return frozenset(name for (name,) in connection.execute(query).fetchall())


def unquoted(sql: str, engine: str) -> str | None:
    """Return the hint for a query that has a metadata column's name without quotes."""
    match = _UNQUOTED.search(sql)
    return f"write {quoted(match[0], engine)}" if match else None


def hint(
    text: str, engine: str, columns: Columns, behind: Callable[[str], int | None] = lambda _: None
) -> str | None:
    """Return the hint for an error, or None if there is nothing to add to the engine's message.

    :param text: the engine's own message
    :param behind: by how many commits Snowflake's state of a table is older than the table; None:
        it is not known
    """
    if _NO_DATABASE.search(text):
        return "materialize a snowflake/… asset first: it creates the database and the tables"
    if match := _TABLE.search(text):
        return _of_table(_name(match), engine, list(columns()))
    if match := _COLUMN.search(text):
        return _of_column(_name(match), engine, columns(), behind)
    return None


def _of_table(name: str, engine: str, known: Sequence[str]) -> str | None:
    if engine == "snowflake":
        known = [asset_name(each).upper() for each in known]
    if name.lower() not in map(str.lower, known):
        return _suggestion("table", name, known, engine)
    if engine == "snowflake":
        table = name.lower() if name.upper() == name else name
        return (
            f"run `topicberg sync {table}`, or materialize snowflake/{table}: the table is not "
            "registered in Snowflake yet"
        )
    return (
        f"write {quoted(name, engine)} without what stands before it, if anything does: the "
        "catalog has a table of this name"
    )


def _of_column(
    name: str,
    engine: str,
    columns: Mapping[str, Sequence[str]],
    behind: Callable[[str], int | None],
) -> str | None:
    having = [table for table, named in columns.items() if name.lower() in map(str.lower, named)]
    if not having:
        names = chain.from_iterable(columns.values())
        return _suggestion("column", name, filterfalse(_IN_LISTS.search, names), engine)
    if engine == "snowflake" and (commits := behind(having[0])) != 0:
        older = f"a state that is {count(commits, 'commit')} older" if commits is not None else ""
        return (
            f"run `topicberg sync {asset_name(having[0])}`: the Iceberg table {having[0]} has this "
            f"column, and Snowflake reads {older or 'an older state of it'}"
        )
    tables = " and ".join(quoted(table, engine) for table in having)
    return f"check which table the column is taken from: {tables} has it"


def _name(match: re.Match[str]) -> str:
    """Return the last part of the name that an engine does not know."""
    parts: list[str] = re.findall(r'`[^`]+`|"[^"]+"|[^.`"]+', next(filter(None, match.groups())))
    return parts[-1].strip('`"')


def _suggestion(kind: str, name: str, known: Iterable[str], engine: str) -> str | None:
    """Return the similar names, else the existing names."""
    names = sorted(set(known))
    if not names:
        return None
    keys = {_plain(part): text for text in names for part in (text, text.split(".")[-1])}
    close = difflib.get_close_matches(_plain(name), list(keys), n=3, cutoff=0.6)

    def written(each: str) -> str:
        """A table's name with a dot is one identifier, a column's is a field of a struct."""
        parts = each.split(".") if kind == "column" else [each]
        return ".".join(quoted(part, engine) for part in parts)

    if similar := list(dict.fromkeys(keys[key] for key in close)):
        return f"did you mean the {kind} {' or '.join(map(written, similar))}?"
    names = [text for text in names if kind == "table" or "." not in text]
    more = ", …" if len(names) > _MOST else ""
    return f"choose one of the {kind}s {', '.join(map(written, names[:_MOST]))}{more}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
