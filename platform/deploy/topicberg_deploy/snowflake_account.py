"""The Snowflake account of a deployment: the admin's session, and tests of logins."""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topicberg.catalogs.snowflake.names import quote
from topicberg.catalogs.snowflake.session import TIMEOUTS, ask, logging_in, records
from topicberg.clients import trace
from topicberg.clients.answers import VendorAnswer
from topicberg.clients.secrets import Secrets
from topicberg.dagster.snowflake import snowflake_resource
from topicberg.endpoints import load_endpoints
from topicberg.errors import TopicbergError
from topicberg.errors.meaning import means
from topicberg.errors.table import BROKEN
from topicberg.settings import Settings
from topicberg_deploy.settings import DeploySettings

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

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


class SnowflakeAccount:
    """Logins to the account: the admin's, by key pair or by the local stack's password, and others
    that are tried.
    """

    def __init__(
        self,
        config: Settings,
        deploy: DeploySettings,
        secrets: Callable[[], Secrets],
        check_lease: Callable[[], None],
    ) -> None:
        """:param check_lease: called before each statement that may change something"""
        self._config, self._deploy = config, deploy
        self._secrets, self._check_lease = secrets, check_lease
        self._session: SnowflakeSession | None = None
        self._lock = threading.RLock()

    @contextmanager
    def session(self) -> Iterator[SnowflakeSession]:
        """The admin's session; one thread at a time uses it, and a broken one is opened again."""
        with self._lock:
            if self._session is None:
                self._session = self._open()
            try:
                yield self._session
            except Exception as error:
                if means(error, BROKEN):
                    self._session = None
                raise

    def _open(self) -> SnowflakeSession:
        """:raises TopicbergError: the admin's secret is incomplete, or has no usable key"""
        who, deploy = self.admin(), self._deploy
        try:
            connection = self.connect(warehouse=deploy.snowflake_warehouse, **who)
        except (ValueError, TypeError):  # of the library that reads the key; may quote it
            raise TopicbergError(
                f"secret {deploy.admin_user_secrets_root_path}: the active private key of "
                "Snowflake's admin user cannot be read",
                hint="store the base64 of its PEM file, without a password; "
                "`topicberg deploy bootstrap-snowflake` creates such a secret",
            ) from None
        role = deploy.snowflake_role or self._config.snowflake_owner_role
        return SnowflakeSession(connection, check_lease=self._check_lease, only_role=role)

    def admin(self) -> dict[str, Any]:
        """How the admin user logs in.

        :raises TopicbergError: its secret is missing or incomplete
        """
        path = self._deploy.admin_user_secrets_root_path
        if not path:
            endpoint = load_endpoints(self._config).snowflake
            return {"user": endpoint.user, **endpoint.login()}
        secret = self._secrets().read(path)
        if secret is None:
            raise TopicbergError(
                f"Secrets Manager has no secret {path} of JSON",
                hint="set Snowflake's admin user: see docs/cloud.md",
            )
        slot = 1 if str(secret.get("active_key_number")) == "1" else 2
        private = f"snowflake_rsa_private_key_{slot}_pem"
        if missing := [name for name in (*_ADMIN_KEYS, private) if not secret.get(name)]:
            raise TopicbergError(f"secret {path} lacks {', '.join(missing)}")
        return {"user": secret["admin_service_user"], "private_key": secret[private]}

    @property
    def identifier(self) -> str:
        """The account's identifier, ``organization-account``."""
        path = self._deploy.admin_user_secrets_root_path
        if not path:
            return load_endpoints(self._config).snowflake.account
        return (self._secrets().read(path) or {}).get("snowflake_account_identifier", "")

    def connect(self, *, warehouse: str | None = None, **who: Any) -> SnowflakeConnection:
        """:param who: user, login and, if it is not the user's default, role"""
        arguments = address(self._config, self._deploy.snowflake_address())
        if warehouse:
            arguments["warehouse"] = warehouse
        resource = snowflake_resource()(
            account=self.identifier,
            additional_snowflake_connection_args={**arguments, **TIMEOUTS},
            **who,
        )
        # The resource's context manager would close what this keeps for the whole command.
        with logging_in():
            connection: SnowflakeConnection = resource.get_connection().__enter__()
        return connection

    def login_problem(self, user: str, private_key: bytes) -> str:
        """Return why the user is not let in with this key (PEM); empty: it is.

        The role is PUBLIC, which every user has: Snowflake refuses a login whose default role is
        not granted, and roles are granted to a user that exists.
        """
        from snowflake.connector.errors import Error

        key = base64.b64encode(private_key).decode()
        try:
            self.connect(user=user, role="PUBLIC", private_key=key).close()
        except Error as error:
            logger.info("%s cannot log in yet: %s", user, error.msg)
            return str(error.msg)
        return ""

    def take_roles(self) -> None:
        """Take each of the roles that own the platform's objects.

        :raises TopicbergError: what keeps the admin user from some of them
        """
        from snowflake.connector.errors import ProgrammingError

        problems = []
        with self.session() as session:
            for role in (session.only_role,) if session.only_role else ROLES:
                try:
                    session.take(role)
                except ProgrammingError as error:
                    problems.append(f"role {role}: {' '.join(str(error.msg).split())}")
        if problems:
            raise TopicbergError("; ".join(problems))


def address(config: Settings, stated: dict[str, Any]) -> dict[str, Any]:
    """Return where to connect: what the settings state, else the local stack; empty: the cloud."""
    if config.deployment == "local" and not stated:
        local = load_endpoints(config).snowflake
        return {"host": local.host, "port": local.port, "protocol": local.protocol}
    return stated


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
