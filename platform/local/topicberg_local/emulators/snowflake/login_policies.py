"""From where and how users may log in: network policies and authentication policies.

Network policies have lists of IPv4 addresses: of a user or of the account, whose policy counts for
users without one. Not of an integration, and without network rules.

Authentication policies have methods and clients. A policy of the user counts, else that of the
account for its service users, else that of the account. Key pairs are ``KEYPAIR``; all clients here
are ``DRIVERS``.

https://docs.snowflake.com/en/sql-reference/sql/create-authentication-policy,
https://docs.snowflake.com/en/user-guide/authentication-policies,
https://docs.snowflake.com/en/sql-reference/sql/create-network-policy,
https://docs.snowflake.com/en/sql-reference/sql/alter-network-policy,
https://docs.snowflake.com/en/sql-reference/sql/alter-account,
https://docs.snowflake.com/en/sql-reference/sql/show-parameters and
https://docs.snowflake.com/en/user-guide/network-policies
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

from topicberg_local.emulators.snowflake.account import (
    ACCOUNT,
    AUTHENTICATION_POLICY,
    CREATED,
    DONE,
    NETWORK_POLICY,
    USER,
    Account,
    Context,
    remove,
    resolve,
    show,
    value_of,
)
from topicberg_local.emulators.snowflake.errors import attached_policy, invalid_value, unsupported
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Spec,
    Statement,
    Stream,
    alters,
    creates,
    listed,
    text,
)
from topicberg_local.emulators.store import Stored

PARAMETER = "NETWORK_POLICY"
"""Of a user, or of the account."""


def _addresses(stream: Stream, name: str) -> list[str]:
    addresses: list[str] = listed(text, or_none=True)(stream, name)
    for address in addresses:
        try:
            IPv4Network(address, strict=False)
        except ValueError:
            raise invalid_value(address, name) from None
        if name == "BLOCKED_IP_LIST" and address == "0.0.0.0/0":
            raise invalid_value(address, name)
    return addresses


def _rules(stream: Stream, name: str) -> Any:
    raise unsupported(name)


_NETWORK = Spec(
    "NETWORK_POLICY",
    {
        "ALLOWED_IP_LIST": _addresses,
        "BLOCKED_IP_LIST": _addresses,
        "ALLOWED_NETWORK_RULE_LIST": _rules,
        "BLOCKED_NETWORK_RULE_LIST": _rules,
        "COMMENT": text,
    },
)

POLICY_KIND = Kind(
    NETWORK_POLICY,
    create=creates(_NETWORK),
    alter=alters(_NETWORK, refused=("ADD", "REMOVE", "RENAME", "UNSET")),
    describe=True,
    plural="NETWORK POLICIES",
)


def drop_network_policy(account: Account, _context: Context, statement: Statement) -> Rows:
    def check(policy: Stored) -> None:
        (name,) = policy.name
        if account.store.all(USER, lambda user: user.properties.get(PARAMETER) == name):
            raise attached_policy(name, "a user")
        if account.require(ACCOUNT, ()).properties.get(PARAMETER) == name:
            raise attached_policy(name, "the account")

    return remove(account, statement, check)


def show_network_policies(account: Account, _context: Context, statement: Statement) -> Rows:
    if statement.like is not None:
        raise unsupported("filters of SHOW NETWORK POLICIES, which Snowflake does not have")
    columns = {
        **CREATED,
        "name": lambda policy: policy.name[0],
        "comment": value_of("COMMENT"),
        "entries_in_allowed_ip_list": lambda policy: len(value_of("ALLOWED_IP_LIST", [])(policy)),
        "entries_in_blocked_ip_list": lambda policy: len(value_of("BLOCKED_IP_LIST", [])(policy)),
        "entries_in_allowed_network_rules": 0,
        "entries_in_blocked_network_rules": 0,
    }
    return show(statement, account.store.all(NETWORK_POLICY), columns)


def describe_network_policy(account: Account, _context: Context, statement: Statement) -> Rows:
    policy = account.require(NETWORK_POLICY, statement.name)
    rows = [
        (name, ",".join(policy.properties[name]))
        for name in ("ALLOWED_IP_LIST", "BLOCKED_IP_LIST")
        if policy.properties.get(name)
    ]
    return Rows.of(("name", "value"), rows)


def parse_alter_account(stream: Stream) -> Statement | None:
    """``ALTER ACCOUNT {SET NETWORK_POLICY = name | UNSET NETWORK_POLICY}``; nothing else of it."""
    if not stream.take("ALTER", "ACCOUNT"):
        return None
    statement = Statement("ALTER", ACCOUNT, action=stream.choice("ALTER", ("SET", "UNSET")))
    if not stream.take(PARAMETER):
        raise unsupported(f"ALTER ACCOUNT … {statement.action} {stream.peek().text}")
    if statement.action == "SET":
        stream.expect("=")
        statement.properties = {PARAMETER: stream.identifier()}
    return statement


def alter_account(account: Account, _context: Context, statement: Statement) -> Rows:
    policy = statement.properties.get(PARAMETER)
    with account.store.lock:
        if policy is not None:
            account.require(NETWORK_POLICY, (policy,))
        stored = account.require(ACCOUNT, ())
        stored.properties[PARAMETER] = policy
        account.store.put(stored)
    return Rows.status(DONE)


def parse_show_parameters(stream: Stream) -> Statement | None:
    """``SHOW PARAMETERS LIKE 'network_policy' {IN | FOR} {ACCOUNT | USER name}``; no other one."""
    if not stream.take("SHOW", "PARAMETERS"):
        return None
    statement = Statement("SHOW", "PARAMETER")
    if not stream.take("LIKE") or stream.string().upper() != PARAMETER:
        raise unsupported("SHOW PARAMETERS of other parameters than network_policy")
    if not stream.take("IN"):
        stream.expect("FOR")
    if stream.take("USER"):
        statement.name = stream.name()
    elif not stream.take("ACCOUNT"):
        raise unsupported(f"SHOW PARAMETERS IN {stream.peek().text}")
    return statement


def show_parameter(account: Account, _context: Context, statement: Statement) -> Rows:
    """A user has the account's policy if it has none of its own; the level says whose it is."""
    user = account.require(USER, statement.name) if statement.name else None
    value = user.properties.get(PARAMETER) if user else None
    inherited = account.require(ACCOUNT, ()).properties.get(PARAMETER)
    level = "USER" if value else "ACCOUNT" if inherited else ""
    description = "Network policy assigned for the given target."
    row = (PARAMETER, value or inherited or "", "", level, description, "STRING")
    return Rows.of(("key", "value", "default", "level", "description", "type"), [row])


def refuses(account: Account, of_user: str | None, address: str) -> bool:
    """Return whether a network policy does not let a client of this address log in.

    A policy without allowed addresses blocks only the blocked ones; those come first.

    :param of_user: the user's policy, which comes before the account's
    """
    policy = of_user or account.require(ACCOUNT, ()).properties.get(PARAMETER)
    stored_policy = account.store.get(NETWORK_POLICY, (policy,)) if policy else None
    if stored_policy is None:
        return False
    client = IPv4Address(address)

    def listed(name: str) -> bool:
        networks = stored_policy.properties.get(name, [])
        return any(client in IPv4Network(network, strict=False) for network in networks)

    if listed("BLOCKED_IP_LIST"):
        return True
    return bool(stored_policy.properties.get("ALLOWED_IP_LIST")) and not listed("ALLOWED_IP_LIST")


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


_AUTHENTICATION = Spec(
    "AUTHENTICATION_POLICY", {**dict.fromkeys(_ALLOWED, _values), "COMMENT": text}
)


def _create_authentication(stream: Stream, statement: Statement) -> None:
    if statement.or_replace:
        raise unsupported(f"CREATE OR REPLACE {AUTHENTICATION_POLICY}")
    statement.properties = _AUTHENTICATION.read(stream)


AUTHENTICATION_KIND = Kind(
    AUTHENTICATION_POLICY, parts=3, create=_create_authentication, drop=False
)


def parse_authentication_policy(stream: Stream) -> Statement | None:
    """ALTER of an account or a user; None: another statement."""
    words = AUTHENTICATION_POLICY.split()
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
    return statement


def set_authentication_policy(account: Account, context: Context, statement: Statement) -> Rows:
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
