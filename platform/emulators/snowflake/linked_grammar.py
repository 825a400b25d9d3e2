"""Grammar of catalog-linked databases.

https://docs.snowflake.com/en/sql-reference/sql/create-database-catalog-linked and
https://docs.snowflake.com/en/sql-reference/sql/alter-database-catalog-linked
"""

from __future__ import annotations

from emulators.snowflake.errors import invalid_request, invalid_value, missing_options, unsupported
from emulators.snowflake.grammar import Statement
from emulators.snowflake.options import Spec, choice, group, integer, reference, text, texts
from emulators.snowflake.tokens import Stream

SYNC_SECONDS = (30, 86400)
"""Shortest, which is the default too, and longest interval between two discoveries."""
FLATTEN = "FLATTEN_NESTED_NAMESPACE"
_CATALOG = Spec(
    "LINKED_CATALOG",
    {
        "CATALOG": reference,
        "ALLOWED_NAMESPACES": texts,
        "BLOCKED_NAMESPACES": texts,
        "ALLOWED_WRITE_OPERATIONS": choice("NONE", "ALL"),
        "NAMESPACE_MODE": choice("IGNORE_NESTED_NAMESPACE", FLATTEN),
        "NAMESPACE_FLATTEN_DELIMITER": text,
        "SYNC_INTERVAL_SECONDS": integer,
    },
    required=("CATALOG",),
)
_DATABASE = Spec(
    "DATABASE",
    {
        "LINKED_CATALOG": group(_CATALOG),
        "EXTERNAL_VOLUME": reference,
        "COMMENT": text,
        "CATALOG_CASE_SENSITIVITY": choice("CASE_SENSITIVE", "CASE_INSENSITIVE"),
    },
    required=("LINKED_CATALOG",),
)
_SET = Spec(
    "LINKED_CATALOG",
    {"SYNC_INTERVAL_SECONDS": integer, "ALLOWED_WRITE_OPERATIONS": choice("NONE", "ALL")},
)


def is_linked(stream: Stream) -> bool:
    """Return whether a CREATE DATABASE links a catalog, wherever it says so."""
    ahead = 0
    while (token := stream.peek(ahead)).kind != "end":
        if token.kind == "word" and token.value == "LINKED_CATALOG":
            return True
        ahead += 1
    return False


def read_linked(stream: Stream, statement: Statement) -> None:
    """Read what follows the name of a catalog-linked database."""
    properties = _DATABASE.read(stream, until=("WITH", "TAG"), commas=True)
    if stream.peek().kind != "end":
        raise unsupported("tags and contacts of a catalog-linked database")
    linked = properties["LINKED_CATALOG"]
    _check_interval(linked.get("SYNC_INTERVAL_SECONDS", SYNC_SECONDS[0]))
    delimiter = linked.get("NAMESPACE_FLATTEN_DELIMITER")
    if linked.get("NAMESPACE_MODE") == FLATTEN and not delimiter:
        raise missing_options(["NAMESPACE_FLATTEN_DELIMITER"])
    if delimiter is not None and any(c.isalpha() or c.isspace() for c in delimiter):
        raise invalid_value(delimiter, "NAMESPACE_FLATTEN_DELIMITER")
    statement.properties = properties


def _check_interval(seconds: int) -> None:
    if not SYNC_SECONDS[0] <= seconds <= SYNC_SECONDS[1]:
        raise invalid_value(str(seconds), "SYNC_INTERVAL_SECONDS")


def alter_linked(stream: Stream, statement: Statement) -> None:
    """Read what follows the name in an ALTER DATABASE: of catalog-linked databases only."""
    for action in ("SUSPEND", "RESUME"):
        if stream.take(action, "DISCOVERY"):
            statement.action = action
            return
    if not stream.take("UPDATE", "LINKED_CATALOG"):
        raise unsupported(f"ALTER DATABASE … {stream.peek().value}")
    if stream.take("SET"):
        statement.action = "SET"
        statement.properties = _SET.read(stream)
        if len(statement.properties) != 1:
            raise invalid_request("UPDATE LINKED_CATALOG SET takes one property.")
        if "SYNC_INTERVAL_SECONDS" in statement.properties:
            _check_interval(statement.properties["SYNC_INTERVAL_SECONDS"])
        return
    for action, preposition in (("ADD", "TO"), ("REMOVE", "FROM"), ("UNSET", "")):
        if stream.take(action):
            statement.action = action
            namespaces = texts(stream, action) if preposition else []
            if preposition:
                stream.expect(preposition)
            kind = stream.word()
            if kind not in ("ALLOWED_NAMESPACES", "BLOCKED_NAMESPACES"):
                raise invalid_value(kind, "LINKED_CATALOG")
            statement.properties = {kind: namespaces}
            return
    raise stream.unexpected()
