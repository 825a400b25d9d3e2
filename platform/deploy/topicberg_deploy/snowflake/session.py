"""Sessions: the admin's, by key pair or by the local stack's password, and a test of a login; and
the objects that a session creates by their names.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from topicberg.catalogs.snowflake.names import like, quote
from topicberg.catalogs.snowflake.session import NOT_THERE, TIMEOUTS, ask, logging_in, records
from topicberg.clients import trace
from topicberg.clients.answers import VendorAnswer
from topicberg.dagster.snowflake import snowflake_resource
from topicberg.endpoints import load_endpoints
from topicberg.errors import TopicbergError
from topicberg_deploy.resource import Changes, Live, Resource

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

    from topicberg_deploy.context import DeployContext

logger = logging.getLogger(__name__)

ROLES = ("ACCOUNTADMIN", "SECURITYADMIN", "SYSADMIN")
KEY_PAIR_ONLY = "AUTHENTICATION_METHODS = ('KEYPAIR') CLIENT_TYPES = ('DRIVERS')"
"""What an authentication policy has to allow, and needs not allow more.

https://docs.snowflake.com/en/sql-reference/sql/create-authentication-policy
"""
_READS = ("SHOW ", "DESC ", "DESCRIBE ", "SELECT ")
_ADMIN_KEYS = ("snowflake_account_identifier", "admin_service_user", "active_key_number")


@dataclass
class SnowflakeSession:
    """One connection, which takes the role that a statement asks for."""

    connection: SnowflakeConnection
    role: str = ""
    check_lease: Callable[[], None] = lambda: None
    only_role: str | None = None
    """The role that is taken for every statement; None: that of the statement."""

    def run(self, statement: str, role: str) -> list[VendorAnswer]:
        """The rows of a statement, columns in lower case."""
        self.take(role)
        if not statement.lstrip().upper().startswith(_READS):
            self.check_lease()
        began = time.monotonic()
        try:
            return records(self.connection, statement)
        finally:
            trace.snowflake(statement, role, began)

    def take(self, role: str) -> None:
        role = self.only_role or role
        if role != self.role:
            ask(self.connection, f"USE ROLE {role}")
            self.role = role


def run(context: DeployContext, statement: str, role: str) -> list[VendorAnswer]:
    """:meth:`SnowflakeSession.run` for one statement of the admin's session."""
    with context.snowflake() as session:
        return session.run(statement, role)


def find(context: DeployContext, statement: str, role: str) -> list[VendorAnswer] | None:
    """The same; None when what it names does not exist."""
    from snowflake.connector.errors import ProgrammingError

    try:
        return run(context, statement, role)
    except ProgrammingError as error:
        if error.errno in NOT_THERE:
            return None
        raise


def show(
    context: DeployContext, objects: str, name: str, role: str, within: str = ""
) -> VendorAnswer | None:
    """Return the row that SHOW has of the object with this name; None: there is none."""
    rows = find(context, f"SHOW {objects} LIKE {like(name)}{within}", role)
    return next((row for row in rows or [] if row["name"] == name), None)


@dataclass(frozen=True)
class SqlObject(Resource):
    """An object that SQL finds by its name; subclasses say what follows the name."""

    of: ClassVar[str]
    """What SQL calls it, e.g. ``EXTERNAL VOLUME``."""
    owner: ClassVar[str]
    """The role that creates, changes and drops it."""

    def described(self, context: DeployContext) -> VendorAnswer | None:
        """Return what DESC says of the object: property in upper case → value; None: there is none.

        The documents name the properties in lower case, accounts in upper case. Values are in the
        column ``property_value``; of a user, accounts call it ``value``.

        https://docs.snowflake.com/en/sql-reference/sql/desc-user
        https://docs.snowflake.com/en/sql-reference/sql/desc-external-volume
        """
        rows = find(context, f"DESC {self.of} {quote(self.name)}", self.owner)
        if rows is None:
            return None
        values = {
            str(row["property"]).upper(): row.first("property_value", "value") for row in rows
        }
        return VendorAnswer(values, f"Snowflake (DESC {self.of} {self.name})", is_certain=True)

    def shown(self, context: DeployContext) -> VendorAnswer | None:
        return show(context, f"{self.of}S", self.name, self.owner)

    def definition(self, context: DeployContext) -> str:
        """Return the properties, as CREATE and ALTER … SET take them."""
        raise NotImplementedError

    def create(self, context: DeployContext) -> None:
        begin = f"CREATE {self.of} {quote(self.name)}"
        run(context, f"{begin} {self.definition(context)}", self.owner)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        begin = f"ALTER {self.of} {quote(self.name)}"
        run(context, f"{begin} SET {self.definition(context)}", self.owner)

    def delete(self, context: DeployContext, live: Live) -> None:
        run(context, f"DROP {self.of} IF EXISTS {quote(self.name)}", self.owner)


def open_session(context: DeployContext) -> SnowflakeSession:
    """:raises TopicbergError: the admin's secret is missing or incomplete, or has no usable key"""
    who = admin(context)
    try:
        connection = _connect(context, warehouse=context.deploy.snowflake_warehouse, **who)
    except (ValueError, TypeError):  # of the library that reads the key; may quote it
        raise TopicbergError(
            f"secret {context.deploy.admin_user_secrets_root_path}: the active private key of "
            "Snowflake's admin user cannot be read",
            hint="store the base64 of its PEM file, without a password; "
            "`topicberg deploy bootstrap-snowflake` creates such a secret",
        ) from None
    role = context.deploy.snowflake_role or context.config.snowflake_owner_role
    return SnowflakeSession(connection, check_lease=context.check_lease, only_role=role)


def admin(context: DeployContext) -> dict[str, Any]:
    """How the admin user logs in.

    :raises TopicbergError: its secret is missing or incomplete
    """
    path = context.deploy.admin_user_secrets_root_path
    if not path:
        endpoint = load_endpoints(context.config).snowflake
        return {"user": endpoint.user, **endpoint.login()}
    secret = context.secrets.read(path)
    if secret is None:
        raise TopicbergError(
            f"Secrets Manager has no secret {path} of JSON",
            hint="set Snowflake's admin user: see docs/cloud.md",
        )
    number = secret.get("active_key_number", "")
    missing = [name for name in (*_ADMIN_KEYS, _private(number)) if not secret.get(name)]
    if missing:
        raise TopicbergError(f"secret {path} lacks {', '.join(missing)}")
    return {"user": secret["admin_service_user"], "private_key": secret[_private(number)]}


def _private(number: object) -> str:
    return f"snowflake_rsa_private_key_{1 if str(number) == '1' else 2}_pem"


def account(context: DeployContext) -> str:
    """The account's identifier, ``organization-account``."""
    path = context.deploy.admin_user_secrets_root_path
    if not path:
        return load_endpoints(context.config).snowflake.account
    return (context.secrets.read(path) or {}).get("snowflake_account_identifier", "")


def _connect(
    context: DeployContext, *, warehouse: str | None = None, **who: Any
) -> SnowflakeConnection:
    """:param who: user, login and, if it is not the user's default, role"""
    arguments = context.deploy.snowflake_address()
    if context.config.deployment == "local" and not arguments:
        local = load_endpoints(context.config).snowflake
        arguments = {"host": local.host, "port": local.port, "protocol": local.protocol}
    if warehouse:
        arguments["warehouse"] = warehouse
    resource = snowflake_resource()(
        account=account(context),
        additional_snowflake_connection_args={**arguments, **TIMEOUTS},
        **who,
    )
    # The resource's context manager would close what this keeps for the whole command.
    with logging_in():
        connection: SnowflakeConnection = resource.get_connection().__enter__()
    return connection


def login_problem(context: DeployContext, user: str, private_key: bytes) -> str:
    """Return why the user is not let in with this key (PEM); empty: it is.

    The role is PUBLIC, which every user has: Snowflake refuses a login whose default role is not
    granted, and roles are granted to a user that exists.
    """
    from snowflake.connector.errors import Error

    key = base64.b64encode(private_key).decode()
    try:
        _connect(context, user=user, role="PUBLIC", private_key=key).close()
    except Error as error:
        logger.info("%s cannot log in yet: %s", user, error.msg)
        return str(error.msg)
    return ""


def refusal_hint(problem: str, user: str) -> str | None:
    """Return what lets a user in whom an authentication policy refuses; None: it is another reason.

    Snowflake's error has a number that no document has, so it is found by its words.

    https://docs.snowflake.com/en/user-guide/authentication-policies
    """
    if "authentication policy" not in problem.lower():
        return None
    policy = "<database>.<schema>.TOPICBERG_KEY_PAIR"
    return (
        f"let {user} log in by key pair: `CREATE AUTHENTICATION POLICY {policy} {KEY_PAIR_ONLY}`, "
        f"then `ALTER USER {quote(user)} SET AUTHENTICATION POLICY {policy}`, and run the command "
        "again"
    )


def take_roles(context: DeployContext) -> None:
    """Take each of the roles that own the platform's objects.

    :raises TopicbergError: what keeps the admin user from some of them
    """
    from snowflake.connector.errors import ProgrammingError

    problems = []
    with context.snowflake() as session:
        for role in (session.only_role,) if session.only_role else ROLES:
            try:
                session.take(role)
            except ProgrammingError as error:
                problems.append(f"role {role}: {' '.join(str(error.msg).split())}")
    if problems:
        raise TopicbergError("; ".join(problems))
