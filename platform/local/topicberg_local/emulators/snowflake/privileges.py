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
from typing import Any

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
    resolve,
)
from topicberg_local.emulators.snowflake.errors import (
    does_not_exist,
    insufficient_privileges,
    no_warehouse,
)
from topicberg_local.emulators.snowflake.sql import Name, Statement, display

PUBLIC = "PUBLIC"
SYSTEM_ROLES = ("ACCOUNTADMIN", "ORGADMIN", PUBLIC, "SECURITYADMIN", "SYSADMIN", "USERADMIN")
_INHERITS = {"ACCOUNTADMIN": ("SYSADMIN", "SECURITYADMIN"), "SECURITYADMIN": ("USERADMIN",)}
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
_GRANTOR = "SECURITYADMIN"
"""Has MANAGE GRANTS."""
_NAMES = {INTEGRATION: "INTEGRATION"}
"""Kind of object → how GRANT … ON and the error texts call it, if not the same."""
_USAGE = "USAGE"


def inherited(account: Account, roles: Iterable[str]) -> set[str]:
    """Return the roles whose privileges these roles have: themselves, what is granted to them, and
    PUBLIC.
    """
    grants = [g.properties for g in account.store.all(GRANT) if g.properties["ON"] == ROLE]
    all_roles: set[str] = set()
    new = {*roles, PUBLIC}
    while new:
        all_roles |= new
        new = {g["OBJECT"][0] for g in grants if g["TO"] == ROLE and g["GRANTEE"] in all_roles}
        new |= {below for role in all_roles for below in _INHERITS.get(role, ())}
        new -= all_roles
    return all_roles


def holds(account: Account, user: str, is_admin: bool, role: str) -> bool:
    """Whether a user may take a role: it is granted to it, directly or through another role.

    :param is_admin: the stack's own user, to whom ACCOUNTADMIN is granted
    """
    grants = [g.properties for g in account.store.all(GRANT) if g.properties["ON"] == ROLE]
    given = {g["OBJECT"][0] for g in grants if g["TO"] == USER and g["GRANTEE"] == user}
    return role in inherited(account, {*given, "ACCOUNTADMIN", "ORGADMIN"} if is_admin else given)


def check(account: Account, context: Context, statement: Statement) -> None:
    """:raises ProgrammingError: the session's role may not do it"""
    session = _Session(account, context)
    verb, kind = statement.verb, statement.kind
    if verb == "CREATE":
        session.may_create(statement)
    elif verb in ("ALTER", "DROP"):
        name = _full(statement, context)
        if session.is_there(kind, name):
            session.must_own(kind, name)
            if kind == TABLE:
                session.may_use_what_it_uses(name)
    elif verb == "SET AUTHENTICATION POLICY" and session.is_there(kind, statement.name):
        session.must_own(kind, statement.name)
    elif kind == GRANT and verb in ("GRANT", "REVOKE"):
        session.may_grant(statement)
    elif verb == "USE" and kind in (WAREHOUSE, DATABASE, SCHEMA):
        name = _full(statement, context)
        if session.is_there(kind, name) and not session.may(_USAGE, kind, name):
            raise does_not_exist(kind.capitalize(), display(name))


def check_read(account: Account, context: Context, name: Name) -> None:
    """:raises ProgrammingError: the session's role may not query this Iceberg table"""
    session = _Session(account, context)
    session.may_reach(name)
    if not (session.may("SELECT", TABLE, name) or session.may("SELECT", "TABLE", name)):
        raise does_not_exist("Object", display(name))
    if account.linked(name[0]) is not None:
        session.owner_may_use_what_it_uses(name[0])
    if not may_use_warehouse(account, context, context.warehouse):
        raise no_warehouse()


def may_use_warehouse(account: Account, context: Context, warehouse: str | None) -> bool:
    """Whether there is such a warehouse, and the session's role may use it."""
    session = _Session(account, context)
    name = (warehouse or "",)
    return session.is_there(WAREHOUSE, name) and session.may(_USAGE, WAREHOUSE, name)


def is_there(account: Account, context: Context, kind: str, name: Name) -> bool:
    """Whether there is such an object, whoever owns it."""
    return _Session(account, context).is_there(kind, name)


def may_tag(account: Account, context: Context, kind: str, name: Name, tag: Name) -> None:
    """Whether it has APPLY TAG of the account, or APPLY on the tag and owns the object.

    https://docs.snowflake.com/en/user-guide/object-tagging/work

    :raises ProgrammingError: it may not set the tag on the object
    """
    _Session(account, context).may_tag(kind, name, tag)


def must_own(account: Account, context: Context, kind: str, name: Name) -> None:
    """:raises ProgrammingError: the session's role does not own the object"""
    _Session(account, context).must_own(kind, name)


class _Session:
    """A role, with all that it inherits."""

    def __init__(self, account: Account, context: Context) -> None:
        self._account = account
        self._context = context
        self._primary = self._roles = inherited(account, {context.role})
        if context.has_secondary_roles and not context.is_admin:
            grants = (grant.properties for grant in account.store.all(GRANT))
            given = {g["OBJECT"][0] for g in grants if _is_role_of(g, context.user)}
            self._roles = inherited(account, {context.role, *given})

    def is_there(self, kind: str, name: Name) -> bool:
        if kind == DATABASE:
            return name[0] in self._account.engine.databases()
        if kind == SCHEMA:
            return self._account.engine.has_schema(name[0], name[1])
        return self._account.store.get(kind, name) is not None

    def owner(self, kind: str, name: Name) -> str:
        """Return who owns it. What is older than owners is whose that makes such objects."""
        stored = self._account.store.get(kind, name)
        if stored is not None and OWNER in stored.properties:
            return str(stored.properties[OWNER])
        return self.owner(DATABASE, name[:1]) if kind == SCHEMA else _CREATORS.get(kind, "SYSADMIN")

    def may(self, privilege: str, kind: str, name: Name) -> bool:
        """Whether it owns the object, or was granted this on it."""
        return self.owner(kind, name) in self._roles or self._granted(privilege, kind, name)

    def _granted(
        self, privilege: str, kind: str, name: Name, roles: Iterable[str] | None = None
    ) -> bool:
        on = _NAMES.get(kind, kind)
        return any(
            self._account.store.get(GRANT, (ROLE, role, given, on, *name)) is not None
            for role in roles or self._roles
            for given in (privilege, "ALL")
        )

    def must_own(self, kind: str, name: Name) -> None:
        if self.owner(kind, name) not in self._roles:
            raise _refused(kind, name)

    def may_create(self, statement: Statement) -> None:
        kind, name = statement.kind, _full(statement, self._context)
        self._roles = self._primary
        if kind in _CREATORS:
            privilege = f"CREATE {_NAMES.get(kind, kind)}"
            if _CREATORS[kind] not in self._roles and not self._granted(privilege, "ACCOUNT", ()):
                raise insufficient_privileges("account", "EMULATOR")
        elif kind == SCHEMA and self.is_there(DATABASE, name[:1]):
            self._demand("CREATE SCHEMA", DATABASE, name[:1])
        elif kind == AUTHENTICATION_POLICY and self.is_there(SCHEMA, name[:2]):
            self._demand(f"CREATE {kind}", SCHEMA, name[:2])
        elif kind == TAG and self.is_there(SCHEMA, name[:2]):
            self._demand("CREATE TAG", SCHEMA, name[:2])
        elif kind == TABLE and self.is_there(SCHEMA, name[:2]):
            self.may_reach(name)
            self._demand(f"CREATE {TABLE}", SCHEMA, name[:2])
            database = self._account.store.get(DATABASE, name[:1])
            given = {**(database.properties if database else {}), **statement.properties}
            for option, used in (("EXTERNAL_VOLUME", VOLUME), ("CATALOG", INTEGRATION)):
                if option in given and self.is_there(used, (given[option],)):
                    self._demand(_USAGE, used, (given[option],))
        if statement.or_replace and self.is_there(kind, name):
            self.must_own(kind, name)

    def may_tag(self, kind: str, name: Name, tag: Name) -> None:
        for of, parts in ((DATABASE, 1), (SCHEMA, 2)):
            if not self.may(_USAGE, of, tag[:parts]):
                raise does_not_exist("Tag", display(tag))
        if "ACCOUNTADMIN" in self._roles or self._granted("APPLY TAG", "ACCOUNT", ()):
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
                raise does_not_exist(kind.capitalize(), display(name))

    def may_use_what_it_uses(self, table: Name) -> None:
        """An Iceberg table is changed with its volume and integration, by the role and, of the
        volume, by the table's owner; in a catalog-linked database by the database's owner.
        """
        properties = self._account.require(TABLE, table).properties
        self.may_reach(table)
        if self._account.linked(table[0]) is not None:
            self.owner_may_use_what_it_uses(table[0])
            return
        for kind, name in (
            (VOLUME, (properties["EXTERNAL_VOLUME"],)),
            (INTEGRATION, (properties["CATALOG"],)),
        ):
            self._demand(_USAGE, kind, name)
        volume = (properties["EXTERNAL_VOLUME"],)
        roles = inherited(self._account, {self.owner(TABLE, table)})
        if self.owner(VOLUME, volume) not in roles and not self._granted(
            _USAGE, VOLUME, volume, roles
        ):
            raise _refused(VOLUME, volume)

    def owner_may_use_what_it_uses(self, database: str) -> None:
        """
        https://docs.snowflake.com/en/release-notes/bcr-bundles/2025_07/bcr-2114
        """
        properties = self._account.require(DATABASE, (database,)).properties
        roles = inherited(self._account, {self.owner(DATABASE, (database,))})
        for kind, option in ((VOLUME, "EXTERNAL_VOLUME"), (INTEGRATION, "CATALOG")):
            name = (str(properties.get(option)),)
            if properties.get(option) is not None and not (
                self.owner(kind, name) in roles or self._granted(_USAGE, kind, name, roles)
            ):
                raise _refused(kind, name)

    def may_grant(self, statement: Statement) -> None:
        """Whether it owns what is granted, or has MANAGE GRANTS."""
        if _GRANTOR in self._roles or self._granted("MANAGE GRANTS", "ACCOUNT", ()):
            return
        if statement.name:
            kind, name = ROLE, statement.name
        else:
            on, name = statement.properties["ON"], statement.properties["OBJECT"]
            kind = INTEGRATION if on == "INTEGRATION" else on
            if kind in (SCHEMA, TABLE):
                name = _qualified(kind, name, self._context)
        if kind == "ACCOUNT" or self.owner(kind, name) not in self._roles:
            raise _refused(kind, name)


def _is_role_of(grant: dict[str, Any], user: str) -> bool:
    return (grant["ON"], grant["TO"], grant["GRANTEE"]) == (ROLE, USER, user)


def _full(statement: Statement, context: Context) -> Name:
    return _qualified(statement.kind, statement.name, context)


def _qualified(kind: str, name: Name, context: Context) -> Name:
    if kind in (TABLE, TAG, AUTHENTICATION_POLICY):
        return resolve(name, context, f"statement on {kind}")
    if kind == SCHEMA:
        return resolve((*name, ""), context, f"statement on {kind}")[:2]
    return name


def _refused(kind: str, name: Name) -> Exception:
    called = "table" if kind == TABLE else _NAMES.get(kind, kind).lower()
    return insufficient_privileges(called, display(name[-1:]))
