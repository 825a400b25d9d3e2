"""Authentication policies: by which methods, and with which clients, users may log in.

A policy of the user counts, else that of the account for its service users, else that of the
account. Key pairs are ``KEYPAIR``; all clients here are ``DRIVERS``.

https://docs.snowflake.com/en/sql-reference/sql/create-authentication-policy,
https://docs.snowflake.com/en/sql-reference/sql/alter-account and
https://docs.snowflake.com/en/user-guide/authentication-policies
"""

from __future__ import annotations

from topicberg_local.emulators.snowflake.account import (
    ACCOUNT,
    AUTHENTICATION_POLICY,
    DONE,
    USER,
    Account,
    Context,
    create,
    resolve,
)
from topicberg_local.emulators.snowflake.errors import invalid_value
from topicberg_local.emulators.snowflake.grammar import Statement
from topicberg_local.emulators.snowflake.options import Spec, listed, text
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.tokens import Stream
from topicberg_local.emulators.store import Stored

SET = "SET AUTHENTICATION POLICY"
"""Verb of a statement; without a policy, it is taken away."""
OF_SERVICES = "AUTHENTICATION_POLICY_OF_SERVICES"
OF_ALL = "AUTHENTICATION_POLICY"
"""Properties of the account, and the second one of a user."""
_ALLOWED = {
    "AUTHENTICATION_METHODS": (
        "ALL",
        "SAML",
        "PASSWORD",
        "OAUTH",
        "KEYPAIR",
        "PROGRAMMATIC_ACCESS_TOKEN",
        "WORKLOAD_IDENTITY",
    ),
    "CLIENT_TYPES": ("ALL", "SNOWFLAKE_UI", "DRIVERS", "SNOWFLAKE_CLI", "SNOWSQL"),
}


def _values(stream: Stream, name: str) -> list[str]:
    words = [value.upper() for value in listed(text)(stream, name)]
    for value in words:
        if value not in _ALLOWED[name]:
            raise invalid_value(value, name)
    return words


_SPEC = Spec("AUTHENTICATION_POLICY", {**dict.fromkeys(_ALLOWED, _values), "COMMENT": text})


def parse(stream: Stream) -> Statement | None:
    """CREATE, and ALTER of an account or a user; None: another statement."""
    words = AUTHENTICATION_POLICY.split()
    if stream.take("CREATE", *words):
        statement = Statement("CREATE", AUTHENTICATION_POLICY)
        statement.if_not_exists = stream.take("IF", "NOT", "EXISTS")
        statement.name = stream.name(3)
        statement.properties = _SPEC.read(stream)
        stream.end()
        return statement
    start = stream.find(words[0])
    if not stream.at("ALTER") or not start or stream.peek(start + 1).value != words[1]:
        return None
    stream.expect("ALTER")
    kind = ACCOUNT if stream.take("ACCOUNT") else USER
    if kind == USER:
        stream.expect("USER")
    statement = Statement(SET, kind, name=stream.name() if kind == USER else ())
    sets = stream.choice("ALTER", ("SET", "UNSET")) == "SET"
    stream.expect(*words)
    policy = stream.name(3) if sets else None
    is_of_services = kind == ACCOUNT and stream.take("FOR", "ALL", "SERVICE", "USERS")
    statement.properties = {OF_SERVICES if is_of_services else OF_ALL: policy}
    stream.end()
    return statement


def create_policy(account: Account, context: Context, statement: Statement) -> Rows:
    name = resolve(statement.name, context, "CREATE AUTHENTICATION POLICY")
    account.require_database(name[0])
    account.require_schema(name[:2])
    return create(account, context, statement, name, lambda _: statement.properties)


def set_policy(account: Account, context: Context, statement: Statement) -> Rows:
    ((which, given),) = statement.properties.items()
    policy = resolve(given, context, SET) if given else None
    with account.store.lock:
        if policy is not None:
            account.require(AUTHENTICATION_POLICY, policy)
        target = account.require(statement.kind, statement.name)
        target.properties[which] = policy
        account.store.put(target)
    return Rows.status(DONE)


def rejects(account: Account, user: Stored, method: str) -> bool:
    """Return whether the policy that counts for the user refuses this method or our clients."""
    of_user, of_account = user.properties, account.require(ACCOUNT, ()).properties
    is_service = of_user.get("TYPE") == "SERVICE"
    name = (
        of_user.get(OF_ALL)
        or (of_account.get(OF_SERVICES) if is_service else None)
        or of_account.get(OF_ALL)
    )
    policy = account.store.get(AUTHENTICATION_POLICY, tuple(name)) if name else None
    if policy is None:
        return False
    wanted = {"AUTHENTICATION_METHODS": method, "CLIENT_TYPES": "DRIVERS"}
    return any(
        not {"ALL", value} & set(policy.properties.get(option, ["ALL"]))
        for option, value in wanted.items()
    )
