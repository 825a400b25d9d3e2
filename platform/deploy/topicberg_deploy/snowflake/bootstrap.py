"""Snowflake's admin user for ``topicberg deploy``, which a person creates once in an account.

A person with ACCOUNTADMIN runs the statements, in Snowsight or through the command. The key pair is
created here, and its private half goes nowhere but into Secrets Manager.

Sources: Snowflake's SQL reference (``CREATE USER``, ``GRANT ROLE``) and "Key-pair authentication".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topicberg.catalogs.snowflake.names import quote, text
from topicberg.clients import rsa
from topicberg.clients.secrets import Secrets, active_slot
from topicberg.errors import TopicbergError
from topicberg_deploy.snowflake_account import KEY_PAIR_ONLY, ROLES

SECRET = "/snowflake_admin_service_user_credentials"  # noqa: S105  its name
PRIVILEGES = (
    "CREATE DATABASE",
    "CREATE WAREHOUSE",
    "CREATE EXTERNAL VOLUME",
    "CREATE INTEGRATION",
    "CREATE ROLE",
    "CREATE USER",
    "CREATE NETWORK POLICY",
)
"""What a role other than the system's needs of the account: it owns what it creates."""
_ACCOUNT, _USER = "snowflake_account_identifier", "admin_service_user"


@dataclass(frozen=True)
class Admin:
    """
    :param account: identifier, ``organization-account``
    :param public: the active public key, as ``RSA_PUBLIC_KEY`` takes it
    :param role: its only role, which is created; None: the system roles
    :param policy: full name of its authentication policy, which is created if it is missing: for
        accounts whose own policy refuses key pairs; None: it gets none
    """

    account: str
    user: str
    public: str
    role: str | None = None
    policy: str | None = None

    def statements(self) -> list[str]:
        """Return what creates the user; run again, they change nothing."""
        user, role, policy = quote(self.user), self.role, self.policy
        # https://docs.snowflake.com/en/user-guide/security-access-control-privileges
        creates_role = (
            f"CREATE ROLE IF NOT EXISTS {role} COMMENT = 'topicberg deploy'",
            f"GRANT {', '.join(PRIVILEGES)} ON ACCOUNT TO ROLE {role}",
        )
        # https://docs.snowflake.com/en/user-guide/authentication-policies
        lets_in = (
            f"CREATE AUTHENTICATION POLICY IF NOT EXISTS {policy} {KEY_PAIR_ONLY}",
            f"ALTER USER {user} SET AUTHENTICATION POLICY {policy}",
        )
        return [
            "USE ROLE ACCOUNTADMIN",
            *(creates_role if role else ()),
            f"CREATE USER IF NOT EXISTS {user} TYPE = SERVICE DEFAULT_ROLE = {role or 'SYSADMIN'} "
            "COMMENT = 'topicberg deploy'",
            f"ALTER USER {user} SET RSA_PUBLIC_KEY = {text(self.public)}",
            *(lets_in if policy else ()),
            *(f"GRANT ROLE {granted} TO USER {user}" for granted in ((role,) if role else ROLES)),
        ]


def ensure_secret(secrets: Secrets, path: str, account: str, user: str) -> Admin:
    """Return the admin user of the secret, which gets a new key pair if it does not exist.

    :raises TopicbergError: the secret is of another account or user, or has no key pair
    """
    stored = secrets.read(path)
    if stored is None:
        pair = rsa.generate()
        values = rsa.with_pair({_ACCOUNT: account, _USER: user}, 1, pair)
        secrets.publish(path, secrets.add(path, values, rsa.label(pair.public)))
        return Admin(account, user, pair.public)
    for name, value in {_ACCOUNT: account, _USER: user}.items():
        if stored.get(name, "").upper() != value.upper():
            raise TopicbergError(
                f"secret {path}: {name} is {stored.get(name) or 'missing'}, not {value}",
                hint="give another name with --secret, or delete the secret first",
            )
    public = rsa.public_key(stored, active_slot(stored)) or _public_of(path, stored)
    return Admin(account, user, "".join(public.split()))


def _public_of(path: str, keys: Mapping[str, str]) -> str:
    """The public half of the private key, where the secret has only that one."""
    try:
        return rsa.public_of(rsa.private_key(keys))
    except (KeyError, ValueError, TypeError):
        raise TopicbergError(
            f"secret {path} has no usable private key in slot {active_slot(keys)}",
            hint="delete the secret, and run the command again: it creates a key pair",
        ) from None
