"""Tags: created in a schema, and set on objects of the account, on schemas and on tables.

Not at the creation of an object (``WITH TAG``), not on columns, and without propagation. External
volumes have no domain of tags.

https://docs.snowflake.com/en/sql-reference/sql/create-tag,
https://docs.snowflake.com/en/user-guide/object-tagging/work and
https://docs.snowflake.com/en/sql-reference/functions/system_get_tag
"""

from __future__ import annotations

from topicberg_local.emulators.snowflake import privileges
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
    create,
    remove,
    resolve,
)
from topicberg_local.emulators.snowflake.errors import does_not_exist, invalid_request, unsupported
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Name,
    Spec,
    Statement,
    Stream,
    display,
    listed,
    text,
)
from topicberg_local.emulators.store import Stored

SET, UNSET = "SET TAG", "UNSET TAG"
"""Verbs of statements."""
REFERENCE = "TAG REFERENCE"
"""What a tag is set on, with the value."""
MAX_VALUE = 256
"""Characters."""
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


def parse(stream: Stream) -> Statement | None:
    """CREATE TAG, DROP TAG, and ALTER … SET TAG and UNSET TAG; None: another statement."""
    if stream.at("CREATE", "TAG") or stream.at("CREATE", "OR", "REPLACE", "TAG"):
        return _parse_create(stream)
    if stream.take("DROP", "TAG"):
        statement = Statement("DROP", TAG, if_exists=stream.take("IF", "EXISTS"))
        statement.name = stream.name(3)
        stream.end()
        return statement
    return _parse_alter(stream) if stream.at("ALTER") else None


def _parse_create(stream: Stream) -> Statement:
    statement = Statement("CREATE", TAG)
    stream.advance()
    if stream.take("OR", "REPLACE"):
        raise unsupported("CREATE OR REPLACE TAG")
    stream.advance()
    statement.if_not_exists = stream.take("IF", "NOT", "EXISTS")
    statement.name = stream.name(3)
    values: list[str] = []
    if stream.take("ALLOWED_VALUES"):
        values.append(stream.string())
        while stream.take(","):
            values.append(stream.string())
    statement.properties = {**_SPEC.read(stream), "ALLOWED_VALUES": values}
    stream.end()
    return statement


def _parse_alter(stream: Stream) -> Statement | None:
    verb = next((verb for verb in (SET, UNSET) if _has(stream, verb)), None)
    if verb is None:
        return None
    stream.expect("ALTER")
    kinds = (*_IN_ALTER, *DOMAINS)
    kind = next((candidate for candidate in kinds if stream.take(*candidate.split())), None)
    if kind is None:  # the caller refuses it
        return None
    domain = _IN_ALTER.get(kind, kind)
    statement = Statement(verb, DOMAINS[domain], if_exists=stream.take("IF", "EXISTS"))
    statement.name = stream.name(_PARTS.get(DOMAINS[domain], 1))
    stream.expect(*verb.split())
    while True:
        tag = stream.name(3)
        if verb == SET:
            stream.expect("=")
            statement.properties[".".join(tag)] = (tag, stream.string())
        else:
            statement.properties[".".join(tag)] = (tag, None)
        if not stream.take(","):
            break
    stream.end()
    return statement


def _has(stream: Stream, verb: str) -> bool:
    """Whether these words are next to each other in the statement."""
    first, second = verb.split()
    start = stream.find(first)
    return start is not None and stream.peek(start + 1).value == second


def create_tag(account: Account, context: Context, statement: Statement) -> Rows:
    name = resolve(statement.name, context, "CREATE TAG")
    account.require_database(name[0])
    account.require_schema(name[:2])
    statement.name = name
    return create(account, context, statement, name, lambda _: statement.properties)


def drop_tag(account: Account, context: Context, statement: Statement) -> Rows:
    statement.name = name = resolve(statement.name, context, "DROP TAG")
    response = remove(account, statement)
    references = [
        reference.name for reference in account.store.all(REFERENCE) if reference.name[-3:] == name
    ]
    account.store.delete(REFERENCE, references)
    return response


def change_tags(account: Account, context: Context, statement: Statement) -> Rows:
    """SET TAG and UNSET TAG.

    :raises ProgrammingError: object or tag do not exist, the role may not, or the value is wrong
    """
    name = _object(account, context, statement.kind, statement.name)
    if name is None:
        if statement.if_exists:
            return Rows.status(DONE)
        raise does_not_exist(statement.kind.capitalize(), display(statement.name))
    with account.store.lock:
        for given, value in statement.properties.values():
            tag = resolve(given, context, statement.verb)
            stored_tag = account.require(TAG, tag)
            privileges.may_tag(account, context, statement.kind, name, tag)
            key = (statement.kind, *name, *tag)
            if value is None:
                account.store.delete(REFERENCE, [key])
                continue
            allowed = stored_tag.properties["ALLOWED_VALUES"]
            if len(value) > MAX_VALUE or (allowed and value not in allowed):
                raise invalid_request(f"Tag value '{value}' is not allowed for '{display(tag)}'.")
            account.store.put(Stored(REFERENCE, key, {"VALUE": value}))
    return Rows.status(DONE)


def _object(account: Account, context: Context, kind: str, name: Name) -> Name | None:
    """Return the full name of an object; None: there is none."""
    if kind == TABLE:
        name = account.canonical(resolve(name, context, "tags"))
    elif kind == SCHEMA:
        name = resolve((*name, ""), context, "tags")[:2]
    return name if privileges.is_there(account, context, kind, name) else None


def call_get_tag(account: Account, context: Context, stream: Stream) -> str | None:
    """``SYSTEM$GET_TAG('tag', 'object', 'domain')``; a schema has the tags of its database, a table
    those of its schema.

    :raises ProgrammingError: object, tag or domain do not exist
    """
    stream.expect("(")
    texts = stream.strings()
    if len(texts) != 3:
        raise invalid_request("SYSTEM$GET_TAG needs a tag, an object and its domain.")
    kind = DOMAINS.get(texts[2].upper())
    if kind is None:
        raise invalid_request(f"Invalid object domain '{texts[2]}'.")
    tag = resolve(_name(texts[0]), context, "SYSTEM$GET_TAG")
    account.require(TAG, tag)
    name = _object(account, context, kind, _name(texts[1]))
    if name is None:
        raise does_not_exist(texts[2].capitalize(), texts[1])
    above = {TABLE: ((TABLE, 3), (SCHEMA, 2), (DATABASE, 1)), SCHEMA: ((SCHEMA, 2), (DATABASE, 1))}
    for of, parts in above.get(kind, ((kind, len(name)),)):
        value = _value(account, of, name[:parts], tag)
        if value is not None:
            return value
    return None


def _name(given: str) -> Name:
    stream = Stream(given)
    name = stream.name(3)
    stream.end()
    return name


def _value(account: Account, kind: str, name: Name, tag: Name) -> str | None:
    """A tag of an object that was dropped and created again is not there any more."""
    reference = account.store.get(REFERENCE, (kind, *name, *tag))
    stored = account.store.get(kind, name)
    if reference is None or (stored is not None and stored.created > reference.created):
        return None
    return str(reference.properties["VALUE"])
