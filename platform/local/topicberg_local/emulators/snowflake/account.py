"""The account: its objects, its data, and the rules that all kinds of objects share."""

from __future__ import annotations

import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from topicberg_local.emulators.snowflake import errors
from topicberg_local.emulators.snowflake.engine import Engine
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sources import Sources
from topicberg_local.emulators.snowflake.sql import Name, Statement, display
from topicberg_local.emulators.store import Store, Stored

VOLUME = "EXTERNAL VOLUME"
INTEGRATION = "CATALOG INTEGRATION"
TABLE = "ICEBERG TABLE"
DATABASE = "DATABASE"
SCHEMA = "SCHEMA"
USER = "USER"
ROLE = "ROLE"
WAREHOUSE = "WAREHOUSE"
NETWORK_POLICY = "NETWORK POLICY"
TAG = "TAG"
AUTHENTICATION_POLICY = "AUTHENTICATION POLICY"
ACCOUNT = "ACCOUNT"
GRANT = "GRANT"
FUTURE = "FUTURE "
"""Beginning of what a privilege is on that is granted for a database's objects to come."""
ENDPOINT = "PRIVATELINK ENDPOINT"
OWNER = "OWNER"
"""Property of every object: the role that created it."""
DONE = "Statement executed successfully."
NOTHING_DROPPED = "Drop statement executed successfully."
"""Answers that name no object."""
IAM_USER_ARN = "arn:aws:iam::000000000000:user/snowflake-emulator"
"""Who Snowflake is to AWS: the principal of the trust policies of the roles that it assumes."""


@dataclass
class Context:
    """What a session has chosen, for names that are not qualified."""

    user: str
    role: str
    is_admin: bool
    warehouse: str | None = None
    database: str | None = None
    schema: str | None = None
    has_secondary_roles: bool = True
    """Whether all roles of the user count; not for the stack's own user, who has every role."""


class Account:
    """Everything that sessions share.

    :param folder: holds all state
    :param sigv4_properties: how DESC CATALOG INTEGRATION begins the names of ``…_AWS_IAM_USER_ARN``
        and ``…_AWS_EXTERNAL_ID`` of a REST catalog with SIGV4. Snowflake's documents have both.
    :param documented_names: DESCRIBE names properties and columns as Snowflake's documents do,
        instead of as accounts have been seen to do
    """

    def __init__(
        self, folder: Path, sigv4_properties: str = "GLUE", *, documented_names: bool = False
    ) -> None:
        self.sigv4_properties = sigv4_properties
        self.documented_names = documented_names
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.metadata_folder = folder / "metadata"
        self.metadata_folder.mkdir(exist_ok=True)
        self.copies_forgotten_at = 0.0
        self.store = Store(folder / "account.db")
        self.engine = Engine(folder / "databases")
        self.sources = Sources()
        if self.store.get(ACCOUNT, ()) is None:  # a new account has a warehouse, as in a trial
            self.store.put(Stored(WAREHOUSE, ("COMPUTE_WH",)))
            self.store.put(Stored(ACCOUNT, ()))
        self._refreshing: defaultdict[Name, threading.Lock] = defaultdict(threading.Lock)

    def close(self) -> None:
        self.store.close()
        self.engine.duck_conn.close()

    def refreshing(self, name: Name) -> threading.Lock:
        """One refresh of a table at a time; the tables do not wait for each other."""
        with self.store.lock:
            return self._refreshing[name]

    def linked(self, database: str) -> Stored | None:
        """Return a catalog-linked database; None: there is no such one."""
        stored = self.store.get(DATABASE, (database,))
        return stored if stored is not None and "LINKED_CATALOG" in stored.properties else None

    def canonical(self, name: Name) -> Name:
        """Return the name of a schema or table as it is stored.

        In a database that is linked to a case-insensitive catalog it may be written in any case.
        https://docs.snowflake.com/en/user-guide/tables-iceberg-catalog-linked-database
        """
        database = self.linked(name[0]) if len(name) > 1 else None
        if not database or database.properties["CATALOG_CASE_SENSITIVITY"] != "CASE_INSENSITIVE":
            return name
        folded = [part.lower() for part in name[1:]]
        names = [table.name for table in self.store.all(TABLE, lambda t: t.name[0] == name[0])]
        names += [schema for schema in self.engine.schemas() if schema[0] == name[0]]
        return next((n for n in names if [part.lower() for part in n[1:]] == folded), name)

    def refuse_write(self, name: Name, statement: str) -> None:
        """
        :param statement: a statement that would have to be committed to the catalog
        :raises ProgrammingError: the name is of a catalog-linked database
        """
        if (database := self.linked(name[0]) if name else None) is None:
            return
        called = display(name[:1])
        if database.properties["LINKED_CATALOG"]["ALLOWED_WRITE_OPERATIONS"] == "NONE":
            raise errors.invalid_request(
                f"{statement} failed: catalog-linked database '{called}' is read-only "
                "(ALLOWED_WRITE_OPERATIONS = NONE)."
            )
        raise errors.unsupported(
            f"{statement} in catalog-linked database {called}, as a write to its catalog"
        )

    def refuse_used(self, stored: Stored) -> None:
        """:raises ProgrammingError: it is the volume or catalog of a table or a linked database"""
        used = {
            VOLUME: ("EXTERNAL_VOLUME", "External volume"),
            INTEGRATION: ("CATALOG", "Integration"),
        }
        option, called = used.get(stored.kind, ("", ""))
        databases = self.store.all(DATABASE, lambda d: "LINKED_CATALOG" in d.properties)
        users = [*self.store.all(TABLE), *databases]
        used_by = [display(u.name) for u in users if (u.properties.get(option),) == stored.name]
        if used_by:
            raise errors.in_use(called, display(stored.name), used_by)

    def endpoint_problem(self, host: str) -> str | None:
        """Return why a host cannot be reached privately; None: there is an endpoint for it."""
        if any(fnmatchcase(host, endpoint.name[0]) for endpoint in self.store.all(ENDPOINT)):
            return None
        return f"There is no private connectivity endpoint for the host {host}."

    def is_there(self, kind: str, name: Name) -> bool:
        """Whether there is such an object, whoever owns it."""
        if kind == DATABASE:
            return name[0] in self.engine.databases()
        if kind == SCHEMA:
            return self.engine.has_schema(*name[:2])
        return self.store.get(kind, name) is not None

    def demand(self, kind: str, name: Name) -> None:
        """:raises ProgrammingError: there is no such object"""
        if not self.is_there(kind, name):
            raise errors.does_not_exist(_title(kind), display(name))

    def new_name(self, statement: Statement, context: Context) -> Name:
        """Return the full name of a new object of a schema.

        :raises ProgrammingError: there is no such schema, or it is of a catalog-linked database
        """
        command = f"{statement.verb} {statement.kind}"
        name = resolve(statement.name, context, command)
        if statement.kind == TABLE:
            self.refuse_write(name, command)
        self.demand(DATABASE, name[:1])
        self.demand(SCHEMA, name[:2])
        return name

    def require(self, kind: str, name: Name) -> Stored:
        """:raises ProgrammingError: there is no such object"""
        if (stored := self.store.get(kind, name)) is None:
            raise errors.does_not_exist(_title(kind), display(name))
        return stored


def new_external_id() -> str:
    """Return an external id as Snowflake makes one, where the user gives none."""
    return f"LOCAL_SFCRole={uuid.uuid4().hex[:24]}="


def resolve(name: Name, context: Context, command: str) -> Name:
    """Database, schema and table of a name that may leave out the first two."""
    database, schema = context.database, context.schema
    if len(name) < 3 and database is None:
        raise errors.no_current("database", command)
    if len(name) < 2 and schema is None:
        raise errors.no_current("schema", command)
    return (*(database or "", schema or "")[: 3 - len(name)], *name)


def create(
    account: Account,
    context: Context,
    statement: Statement,
    name: Name,
    properties: Mapping[str, Any],
    *,
    check: Callable[[], object] = lambda: None,
    created: Callable[[], object] = lambda: None,
) -> Rows:
    """CREATE by the common rules: OR REPLACE, IF NOT EXISTS, or an error when it exists.

    :param check: refuses the properties of a new object
    :param created: is called when the object is stored
    """
    kind = _title(statement.kind)
    with account.store.lock:
        old = account.store.get(statement.kind, name)
        if old is not None and statement.if_not_exists:
            return Rows.status(f"{name[-1]} already exists, statement succeeded.")
        if old is not None and not statement.or_replace:
            raise errors.already_exists(display(name))
        check()
        if old is not None:
            account.refuse_used(old)
            forget_grants_on(account, statement.kind, name)
        account.store.put(Stored(statement.kind, name, {**properties, OWNER: context.role}))
        created()
    return Rows.status(f"{kind} {name[-1]} successfully created.")


def create_object(account: Account, context: Context, statement: Statement) -> Rows:
    """CREATE of a kind of object whose properties are only kept and shown."""
    is_of_schema = statement.kind in (TAG, AUTHENTICATION_POLICY)
    name = account.new_name(statement, context) if is_of_schema else statement.name
    return create(account, context, statement, name, statement.properties)


def alter(account: Account, statement: Statement, change: Callable[[Stored], None]) -> Rows:
    """ALTER by the common rules: IF EXISTS, or an error when it does not.

    :param change: changes the properties
    """
    with account.store.lock:
        if not statement.if_exists or account.store.get(statement.kind, statement.name) is not None:
            stored = account.require(statement.kind, statement.name)
            change(stored)
            account.store.put(stored)
    return Rows.status(DONE)


def set_properties(account: Account, _context: Context, statement: Statement) -> Rows:
    """ALTER … SET of a kind of object whose properties are only kept and shown."""
    return alter(account, statement, lambda stored: stored.properties.update(statement.properties))


def remove(
    account: Account, statement: Statement, check: Callable[[Stored], None] = lambda _: None
) -> Rows:
    """DROP by the common rules.

    :param check: refuses what is still in use, or hides it
    """
    with account.store.lock:
        if statement.if_exists and account.store.get(statement.kind, statement.name) is None:
            return Rows.status(NOTHING_DROPPED)
        stored = account.require(statement.kind, statement.name)
        account.refuse_used(stored)
        check(stored)
        drop(account, statement.kind, statement.name)
    return Rows.status(f"{statement.name[-1]} successfully dropped.")


def drop_object(account: Account, _context: Context, statement: Statement) -> Rows:
    """DROP of a kind of object on which nothing else depends."""
    return remove(account, statement)


def drop(account: Account, kind: str, *names: Name) -> None:
    """Delete objects, and the grants on them and to them."""
    with account.store.lock:
        for name in names:
            forget_grants_on(account, kind, name)
            granted = grants(account, TO=kind, GRANTEE=name[0])
            account.store.delete(GRANT, [grant.name for grant in granted])
        account.store.delete(kind, list(names))


def grants(account: Account, **properties: Any) -> list[Stored]:
    """Return the grants that have these properties."""
    return account.store.all(GRANT, lambda g: properties.items() <= g.properties.items())


def grant_future(account: Account, kind: str, name: Name) -> None:
    """Give the privileges on what its database will have to an object that is new there."""
    for future in grants(account, ON=f"{FUTURE}{kind}", OBJECT=[*name[:1]]):
        to, grantee, privilege = future.name[:3]
        properties = future.properties | {"ON": kind, "OBJECT": [*name]}
        account.store.put(Stored(GRANT, (to, grantee, privilege, kind, *name), properties))


def forget_grants_on(account: Account, kind: str, name: Name) -> None:
    future = [f"{FUTURE}{inside}" for inside in (SCHEMA, TABLE)]
    kinds = {INTEGRATION: ["INTEGRATION"], TABLE: [TABLE, "TABLE"], DATABASE: [DATABASE, *future]}
    for on in kinds.get(kind, [kind]):
        granted = grants(account, ON=on, OBJECT=[*name])
        account.store.delete(GRANT, [grant.name for grant in granted])


def _title(kind: str) -> str:
    return {INTEGRATION: "Integration", TABLE: "Table"}.get(kind, kind.capitalize())


def like(pattern: str) -> re.Pattern[str]:
    """A SQL pattern: ``%``, ``_`` and backslash; SHOW … LIKE ignores case."""
    marks = {"%": ".*", "_": ".", "\\": ""}
    parts = re.findall(r"\\?.", pattern, re.DOTALL)
    wanted = "".join(marks.get(part, re.escape(part[-1])) for part in parts)
    return re.compile(wanted, re.IGNORECASE | re.DOTALL)


def show(statement: Statement, objects: Iterable[Stored], columns: Mapping[str, Any]) -> Rows:
    """SHOW, with what its LIKE keeps; ``columns``: see :meth:`Rows.shown`."""
    pattern = like("%" if statement.like is None else statement.like)
    shown = [stored for stored in objects if pattern.fullmatch(stored.name[-1])]
    return Rows.shown(shown, columns)


CREATED = {"created_on": lambda stored: stored.created}
"""The first column of most SHOWs."""


def value_of(name: str, default: Any = "") -> Callable[[Stored], Any]:
    """Return what takes a property of an object."""
    return lambda stored: stored.properties.get(name, default)
