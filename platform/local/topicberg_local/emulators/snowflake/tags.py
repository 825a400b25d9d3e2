"""Tags: created in a schema, and set on objects of the account, on schemas and on tables.

Not at the creation of an object (``WITH TAG``), not on columns, and without propagation. External
volumes have no domain of tags.

https://docs.snowflake.com/en/sql-reference/sql/create-tag,
https://docs.snowflake.com/en/user-guide/object-tagging/work and
https://docs.snowflake.com/en/sql-reference/functions/system_get_tag
"""

from __future__ import annotations

from topicberg_local.emulators.snowflake.account import (
    DATABASE,
    DONE,
    INTEGRATION,
    NETWORK_POLICY,
    ROLE,
    SCHEMA,
    TABLE,
    TAG,
    USER,
    WAREHOUSE,
    Account,
    Context,
    remove,
    resolve,
)
from topicberg_local.emulators.snowflake.errors import does_not_exist, invalid_request, unsupported
from topicberg_local.emulators.snowflake.privileges import SessionRole
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Name,
    Spec,
    Statement,
    Stream,
    display,
    listed,
    read_name,
    text,
)
from topicberg_local.emulators.store import Stored

SET = "SET TAG"
"""Verb of a statement."""
REFERENCE = "TAG REFERENCE"
"""What a tag is set on, with the value."""
DOMAINS = {
    **{name: name for name in (DATABASE, SCHEMA, ROLE, USER, WAREHOUSE, NETWORK_POLICY)},
    "INTEGRATION": INTEGRATION,
    "TABLE": TABLE,
}
"""Domain of a tag → kind of object here."""
KINDS = tuple(DOMAINS.values())
_IN_ALTER = {"CATALOG INTEGRATION": "INTEGRATION", TABLE: "TABLE"}
_PARTS = {TABLE: 3, SCHEMA: 2}
_SPEC = Spec("TAG", {"COMMENT": text, "ALLOWED_VALUES": listed(text)})


def _create(stream: Stream, statement: Statement) -> None:
    if statement.or_replace:
        raise unsupported("CREATE OR REPLACE TAG")
    values = stream.many(stream.string) if stream.take("ALLOWED_VALUES") else []
    statement.properties = {**_SPEC.read(stream), "ALLOWED_VALUES": values}


TAG_KIND = Kind(TAG, parts=3, create=_create)


def parse_alter(stream: Stream) -> Statement | None:
    """ALTER … SET TAG; None: another statement."""
    start = stream.find("SET")
    if start is None or stream.peek(start + 1).value != "TAG" or not stream.take("ALTER"):
        return None
    kinds = (*_IN_ALTER, *DOMAINS)
    kind = next((candidate for candidate in kinds if stream.take(*candidate.split())), None)
    if kind is None:  # the caller refuses it
        return None
    domain = _IN_ALTER.get(kind, kind)
    statement = Statement(SET, DOMAINS[domain], if_exists=stream.take("IF", "EXISTS"))
    statement.name = stream.name(_PARTS.get(DOMAINS[domain], 1))
    stream.expect(*SET.split())

    def read() -> tuple[Name, str]:
        tag = stream.name(3)
        stream.expect("=")
        return tag, stream.string()

    statement.properties = {"TAGS": stream.many(read)}
    return statement


def drop_tag(account: Account, context: Context, statement: Statement) -> Rows:
    statement.name = name = resolve(statement.name, context, "DROP TAG")
    response = remove(account, statement)
    references = account.store.all(REFERENCE, lambda reference: reference.name[-3:] == name)
    account.store.delete(REFERENCE, [reference.name for reference in references])
    return response


def change_tags(account: Account, context: Context, statement: Statement) -> Rows:
    """SET TAG; raises ProgrammingError: no such object or tag, or it may not be."""
    name = _object(account, context, statement.kind, statement.name)
    if name is None:
        if statement.if_exists:
            return Rows.status(DONE)
        raise does_not_exist(statement.kind.capitalize(), display(statement.name))
    with account.store.lock:
        for given, value in statement.properties["TAGS"]:
            tag = resolve(given, context, statement.verb)
            allowed = account.require(TAG, tag).properties["ALLOWED_VALUES"]
            SessionRole(account, context).may_tag(statement.kind, name, tag)
            if len(value) > 256 or (allowed and value not in allowed):
                raise invalid_request(f"Tag value '{value}' is not allowed for '{display(tag)}'.")
            key = (statement.kind, *name, *tag)
            account.store.put(Stored(REFERENCE, key, {"VALUE": value}))
    return Rows.status(DONE)


def _object(account: Account, context: Context, kind: str, name: Name) -> Name | None:
    """Return the full name of an object; None: there is none."""
    if kind == TABLE:
        name = account.canonical(resolve(name, context, "tags"))
    elif kind == SCHEMA:
        name = resolve((*name, ""), context, "tags")[:2]
    return name if account.is_there(kind, name) else None


def call_get_tag(account: Account, context: Context, stream: Stream) -> str | None:
    """``SYSTEM$GET_TAG('tag', 'object', 'domain')``; schemas and tables inherit tags."""
    texts = stream.many(stream.string)
    if len(texts) != 3:
        raise invalid_request("SYSTEM$GET_TAG needs a tag, an object and its domain.")
    if (kind := DOMAINS.get(texts[2].upper())) is None:
        raise invalid_request(f"Invalid object domain '{texts[2]}'.")
    tag = resolve(read_name(texts[0], 3), context, "SYSTEM$GET_TAG")
    account.require(TAG, tag)
    name = _object(account, context, kind, read_name(texts[1], 3))
    if name is None:
        raise does_not_exist(texts[2].capitalize(), texts[1])
    above = {TABLE: ((TABLE, 3), (SCHEMA, 2), (DATABASE, 1)), SCHEMA: ((SCHEMA, 2), (DATABASE, 1))}
    places = above.get(kind, ((kind, len(name)),))
    values = (_value(account, of, name[:parts], tag) for of, parts in places)
    return next((value for value in values if value is not None), None)


def _value(account: Account, kind: str, name: Name, tag: Name) -> str | None:
    """A tag of an object that was dropped and created again is not there any more."""
    reference = account.store.get(REFERENCE, (kind, *name, *tag))
    stored = account.store.get(kind, name)
    if reference is None or (stored is not None and stored.created > reference.created):
        return None
    return str(reference.properties["VALUE"])
