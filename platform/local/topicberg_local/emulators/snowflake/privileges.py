"""Who may do what: roles and what they inherit, owners of objects, and privileges on them.

Checked are statements that create, change, drop, grant and use the account's objects, and queries
of Iceberg tables. A user's other roles count as well, unless the session says USE SECONDARY ROLES
NONE, but not for creating objects; for the stack's own user only the primary role counts.

https://docs.snowflake.com/en/sql-reference/sql/use-secondary-roles

https://docs.snowflake.com/en/user-guide/security-access-control-overview,
https://docs.snowflake.com/en/user-guide/security-access-control-privileges and, of the privileges
on the volume and the integration of an Iceberg table, its CREATE, ALTER and DROP, and
https://docs.snowflake.com/en/release-notes/bcr-bundles/2026_04/bcr-2247, and in catalog-linked
databases https://docs.snowflake.com/en/release-notes/bcr-bundles/2025_07/bcr-2114
"""

from __future__ import annotations

from collections.abc import Iterable

from topicberg_local.emulators.snowflake import errors
from topicberg_local.emulators.snowflake.account import (
    ACCOUNT,
    AUTHENTICATION_POLICY,
    DATABASE,
    GRANT,
    INTEGRATION,
    NETWORK_POLICY,
    OWNER,
    ROLE,
    SCHEMA,
    TABLE,
    TAG,
    USER,
    VOLUME,
    WAREHOUSE,
    Account,
    Context,
    grants,
    resolve,
)
from topicberg_local.emulators.snowflake.sql import Name, Statement, display

PUBLIC = "PUBLIC"
SYSTEM_ROLES = ("ACCOUNTADMIN", "ORGADMIN", PUBLIC, "SECURITYADMIN", "SYSADMIN", "USERADMIN")
_INHERITS = (
    ("ACCOUNTADMIN", "SYSADMIN"),
    ("ACCOUNTADMIN", "SECURITYADMIN"),
    ("SECURITYADMIN", "USERADMIN"),
)
_CREATORS = {
    VOLUME: "ACCOUNTADMIN",
    INTEGRATION: "ACCOUNTADMIN",
    DATABASE: "SYSADMIN",
    WAREHOUSE: "SYSADMIN",
    USER: "USERADMIN",
    ROLE: "USERADMIN",
    NETWORK_POLICY: "SECURITYADMIN",
    ACCOUNT: "SECURITYADMIN",
}
"""Kind of object in the account → the system role that has the privilege to create it; of the
account itself, to change it.
"""
_USED = (("EXTERNAL_VOLUME", VOLUME), ("CATALOG", INTEGRATION))
"""Properties of tables and databases that name other objects, and of what kind those are."""
_NAMES = {INTEGRATION: "INTEGRATION"}
"""Kind of object → how GRANT … ON and the error texts call it, if not the same."""
_USAGE = "USAGE"


def inherited(account: Account, roles: Iterable[str]) -> set[str]:
    """Return roles, and those whose privileges they have: what is granted to them, and PUBLIC."""
    below = [
        (grant.properties["GRANTEE"], grant.properties["OBJECT"][0])
        for grant in grants(account, ON=ROLE, TO=ROLE)
    ]
    all_roles: set[str] = set()
    new = {*roles, PUBLIC}
    while new:
        all_roles |= new
        new = {role for grantee, role in (*below, *_INHERITS) if grantee in all_roles} - all_roles
    return all_roles


def _roles_of(account: Account, user: str) -> set[str]:
    """Return the roles that are granted to a user directly."""
    granted = grants(account, ON=ROLE, TO=USER, GRANTEE=user)
    return {grant.properties["OBJECT"][0] for grant in granted}


def holds(account: Account, user: str, is_admin: bool, role: str) -> bool:
    """Whether a user may take a role; ``is_admin``: the stack's own user, who is ACCOUNTADMIN."""
    of_admin = {"ACCOUNTADMIN", "ORGADMIN"} if is_admin else set[str]()
    return role in inherited(account, _roles_of(account, user) | of_admin)


def check(account: Account, context: Context, statement: Statement) -> None:
    """:raises ProgrammingError: the session's role may not do it"""
    role = SessionRole(account, context)
    verb, kind = statement.verb, statement.kind
    if verb == "CREATE":
        role.may_create(statement)
    elif verb in ("ALTER", "DROP", "SET AUTHENTICATION POLICY"):
        name = _full(kind, statement.name, context)
        if account.is_there(kind, name):
            role.must_own(kind, name)
            if kind == TABLE:
                role.may_use_what_it_uses(name)
    elif kind == GRANT and verb in ("GRANT", "REVOKE"):
        role.may_grant(statement)
    elif verb == "USE" and kind in (WAREHOUSE, DATABASE, SCHEMA):
        name = _full(kind, statement.name, context)
        if account.is_there(kind, name) and not role.may(_USAGE, kind, name):
            raise errors.does_not_exist(kind.capitalize(), display(name))


def check_read(account: Account, context: Context, name: Name) -> None:
    """:raises ProgrammingError: the session's role may not query this Iceberg table"""
    role = SessionRole(account, context)
    role.may_reach(name)
    if not (role.may("SELECT", TABLE, name) or role.may("SELECT", "TABLE", name)):
        raise errors.does_not_exist("Object", display(name))
    if account.linked(name[0]) is not None:
        role.owner_may_use_what_it_uses(name[0])
    if not may_use_warehouse(account, context, context.warehouse):
        raise errors.no_warehouse()


def may_use_warehouse(account: Account, context: Context, warehouse: str | None) -> bool:
    """Whether there is such a warehouse, and the session's role may use it."""
    name, role = (warehouse or "",), SessionRole(account, context)
    return account.is_there(WAREHOUSE, name) and role.may(_USAGE, WAREHOUSE, name)


class SessionRole:
    """The role of a session, with all that it inherits."""

    def __init__(self, account: Account, context: Context) -> None:
        self._account, self._context = account, context
        self._primary = self._roles = inherited(account, {context.role})
        if context.has_secondary_roles and not context.is_admin:
            self._roles = inherited(account, {context.role, *_roles_of(account, context.user)})

    def owner(self, kind: str, name: Name) -> str:
        """Return who owns it. What is older than owners is whose that makes such objects."""
        stored = self._account.store.get(kind, name)
        if stored is not None and OWNER in stored.properties:
            return str(stored.properties[OWNER])
        return self.owner(DATABASE, name[:1]) if kind == SCHEMA else _CREATORS.get(kind, "SYSADMIN")

    def may(self, privilege: str, kind: str, name: Name) -> bool:
        """Whether it owns the object, or was granted this on it."""
        return self._may(self._roles, privilege, kind, name)

    def _may(self, roles: set[str], privilege: str, kind: str, name: Name) -> bool:
        return self.owner(kind, name) in roles or self._granted(privilege, kind, name, roles)

    def _granted(self, privilege: str, kind: str, name: Name, roles: set[str]) -> bool:
        on = _NAMES.get(kind, kind)
        return any(
            self._account.is_there(GRANT, (ROLE, role, given, on, *name))
            for role in roles
            for given in (privilege, "ALL")
        )

    def _has(self, privilege: str) -> bool:
        """Whether it was granted this on the account."""
        return self._granted(privilege, "ACCOUNT", (), self._roles)

    def must_own(self, kind: str, name: Name) -> None:
        """:raises ProgrammingError: it does not own the object"""
        if self.owner(kind, name) not in self._roles:
            raise _refused(kind, name)

    def may_create(self, statement: Statement) -> None:
        """:raises ProgrammingError: it may not"""
        kind, name = statement.kind, _full(statement.kind, statement.name, self._context)
        self._roles = self._primary
        within, parts = (DATABASE, 1) if kind == SCHEMA else (SCHEMA, 2)
        if kind in _CREATORS:
            may = _CREATORS[kind] in self._roles or self._has(f"CREATE {_NAMES.get(kind, kind)}")
            if not may:
                raise errors.insufficient_privileges("account", "EMULATOR")
        elif self._account.is_there(within, name[:parts]):
            if kind == TABLE:
                self.may_reach(name)
            self._demand(f"CREATE {kind}", within, name[:parts])
            if kind == TABLE:
                database = self._account.store.get(DATABASE, name[:1])
                given = {**(database.properties if database else {}), **statement.properties}
                for option, used in _USED:
                    if option in given and self._account.is_there(used, (given[option],)):
                        self._demand(_USAGE, used, (given[option],))
        if statement.or_replace and self._account.is_there(kind, name):
            self.must_own(kind, name)

    def may_tag(self, kind: str, name: Name, tag: Name) -> None:
        """Whether it has APPLY TAG of the account, or APPLY on the tag and owns the object.

        https://docs.snowflake.com/en/user-guide/object-tagging/work

        :raises ProgrammingError: it may not set the tag on the object
        """
        if not all(self.may(_USAGE, of, tag[:n]) for of, n in ((DATABASE, 1), (SCHEMA, 2))):
            raise errors.does_not_exist("Tag", display(tag))
        if "ACCOUNTADMIN" in self._roles or self._has("APPLY TAG"):
            return
        if not (self.may("APPLY", TAG, tag) and self.owner(kind, name) in self._roles):
            raise _refused(kind, name)

    def _demand(self, privilege: str, kind: str, name: Name) -> None:
        if not self.may(privilege, kind, name):
            raise _refused(kind, name)

    def may_reach(self, table: Name) -> None:
        """Whether it may use the table's database and schema."""
        for kind, name in ((DATABASE, table[:1]), (SCHEMA, table[:2])):
            if not self.may(_USAGE, kind, name):
                raise errors.does_not_exist(kind.capitalize(), display(name))

    def may_use_what_it_uses(self, table: Name) -> None:
        """An Iceberg table is changed with its volume and integration, by the role and, of the
        volume, by the table's owner; in a catalog-linked database by the database's owner.
        """
        properties = self._account.require(TABLE, table).properties
        self.may_reach(table)
        if self._account.linked(table[0]) is not None:
            self.owner_may_use_what_it_uses(table[0])
            return
        for option, kind in _USED:
            self._demand(_USAGE, kind, (properties[option],))
        volume = (properties["EXTERNAL_VOLUME"],)
        roles = inherited(self._account, {self.owner(TABLE, table)})
        if not self._may(roles, _USAGE, VOLUME, volume):
            raise _refused(VOLUME, volume)

    def owner_may_use_what_it_uses(self, database: str) -> None:
        """https://docs.snowflake.com/en/release-notes/bcr-bundles/2025_07/bcr-2114"""
        properties = self._account.require(DATABASE, (database,)).properties
        roles = inherited(self._account, {self.owner(DATABASE, (database,))})
        for option, kind in _USED:
            used = properties.get(option)
            if used is not None and not self._may(roles, _USAGE, kind, (used,)):
                raise _refused(kind, (used,))

    def may_grant(self, statement: Statement) -> None:
        """Whether it owns what is granted, or has MANAGE GRANTS."""
        if "SECURITYADMIN" in self._roles or self._has("MANAGE GRANTS"):
            return
        kind, name = ROLE, statement.name
        if not name:
            on, name = statement.properties["ON"], statement.properties["OBJECT"]
            kind = INTEGRATION if on == "INTEGRATION" else on
            name = _full(kind, name, self._context) if kind in (SCHEMA, TABLE) else name
        if kind == "ACCOUNT" or self.owner(kind, name) not in self._roles:
            raise _refused(kind, name)


def _full(kind: str, name: Name, context: Context) -> Name:
    if kind in (TABLE, TAG, AUTHENTICATION_POLICY):
        return resolve(name, context, f"statement on {kind}")
    if kind == SCHEMA:
        return resolve((*name, ""), context, f"statement on {kind}")[:2]
    return name


def _refused(kind: str, name: Name) -> Exception:
    called = "table" if kind == TABLE else _NAMES.get(kind, kind).lower()
    return errors.insufficient_privileges(called, display(name[-1:]))
