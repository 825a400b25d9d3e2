"""The service user with its key pairs, its roles, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topicberg.catalogs.snowflake import quote, text
from topicberg.deploy import rsa
from topicberg.deploy.resource import Changes, Fields, Live, MissingError, Resource
from topicberg.deploy.snowflake.session import account, login_problem
from topicberg.deploy.wait import PatienceError, until
from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    from topicberg.clients.secrets import Version
    from topicberg.deploy.context import DeployContext

OWNER = "SECURITYADMIN"
GRANTOR = "ACCOUNTADMIN"
KEYS = "snowflake/user_keys"
LOGIN_SECONDS = 300.0
_SLOTS = {1: "RSA_PUBLIC_KEY", 2: "RSA_PUBLIC_KEY_2"}


@dataclass(frozen=True)
class UserKeys(Resource):
    """The secret with the user's key pairs."""

    user: str = ""

    kind = "RSA key pairs"

    def find(self, context: DeployContext) -> Live | None:
        versions = context.secrets.versions(self.name)
        if not versions:
            return Live("", {"key": None}) if context.secrets.exists(self.name) else None
        newest = versions[-1]
        values = context.secrets.read(self.name, newest.id) or {}
        facts = {"versions": versions, "values": values}
        return Live(newest.label, {"key": "there"}, facts)

    def desired(self, context: DeployContext) -> Fields:
        return {"key": "there"}

    def create(self, context: DeployContext) -> None:
        """A secret of Terraform's has the pair of slot 1, which its readers go on using."""
        pair = rsa.generate()
        held = context.secrets.read(self.name) or {}
        kept = held if rsa.is_public_key(rsa.public_key(held, 1)) else {}
        values = {
            **kept,
            "snowflake_account_identifier": account(context),
            "snowflake_service_user": self.user,
            "secrets_path": self.name,
        }
        values = rsa.with_pair(values, 2 if kept else 1, pair)
        version = context.secrets.add(self.name, values, rsa.label(pair.public))
        context.secrets.publish(self.name, version)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        self.create(context)

    def delete(self, context: DeployContext, live: Live) -> None:
        context.secrets.delete(self.name, purge=context.purge_secrets)


def _values(context: DeployContext) -> dict[str, str]:
    """Return the secret with the key pairs.

    :raises MissingError: it is not ours yet, e.g. Terraform's, or was not looked at
    """
    values: dict[str, str] | None = context.need(KEYS).facts.get("values")
    if values is None:
        raise MissingError(KEYS)
    return values


@dataclass(frozen=True)
class User(Resource):
    """A user of TYPE SERVICE, who logs in by key pair only.

    :param properties: what it is given besides its keys
    """

    properties: dict[str, str] = field(default_factory=dict, hash=False)

    kind = "Snowflake user"

    def find(self, context: DeployContext) -> Live | None:
        with context.snowflake() as session:
            rows = session.find(f"DESC USER {quote(self.name)}", OWNER)
        if rows is None:
            return None
        values = {row["property"]: row["value"] for row in rows}
        fields: Fields = {name: values.get(name) for name in self.properties}
        for slot in _SLOTS.values():
            print_ = values.get(f"{slot}_FP")
            fields[slot] = None if print_ in (None, "", "null") else print_
        versions: list[Version] = context.need(KEYS).facts.get("versions", [])
        fields["secret"] = "published" if versions and versions[-1].current else "not published"
        return Live(self.name, fields)

    def desired(self, context: DeployContext) -> Fields:
        values = _values(context)
        wanted: Fields = {**self.properties, "secret": "published"}
        for number, slot in _SLOTS.items():
            public = rsa.public_key(values, number)
            wanted[slot] = rsa.fingerprint(public) if public else None
        return wanted

    def create(self, context: DeployContext) -> None:
        values = _values(context)
        given = {"TYPE": "SERVICE"}
        parts = [f"{name} = {text(value)}" for name, value in self.properties.items()]
        parts += [f"{name} = {value}" for name, value in given.items()]
        for number, slot in _SLOTS.items():
            public = rsa.public_key(values, number)
            if public:
                parts.append(f"{slot} = {text(public)}")
        with context.snowflake() as session:
            session.run(f"CREATE USER IF NOT EXISTS {quote(self.name)} {' '.join(parts)}", OWNER)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        values = _values(context)
        with context.snowflake() as session:
            for number, slot in _SLOTS.items():
                if slot in changes:
                    public = rsa.public_key(values, number)
                    change = f"SET {slot} = {text(public)}" if public else f"UNSET {slot}"
                    session.run(f"ALTER USER {quote(self.name)} {change}", OWNER)
            for name, value in self.properties.items():
                if name in changes:
                    change = f"SET {name} = {text(value)}"
                    session.run(f"ALTER USER {quote(self.name)} {change}", OWNER)

    def settle(self, context: DeployContext, live: Live) -> None:
        """The active key lets the user in; only then it is published."""
        facts = context.need(KEYS).facts
        private = rsa.private_key(facts["values"])
        problem = ""

        def let_in() -> bool:
            nonlocal problem
            problem = login_problem(context, self.name, private)
            return not problem

        what = f"{self.title} can log in with its newest key"
        try:
            until(let_in, what, LOGIN_SECONDS, sleep=context.sleep)
        except PatienceError as error:
            raise TopicbergError(
                f"{self.title} cannot log in with its newest key: {problem}",
                hint="allow this machine in the network policy, then run the command again",
            ) from error
        if not facts["versions"][-1].current:
            name = context.names.snowflake_secret
            context.secrets.publish(name, facts["versions"][-1].id)
            fresh = {**facts, "versions": context.secrets.versions(name)}
            context.remember(KEYS, Live(context.need(KEYS).id, context.need(KEYS).fields, fresh))

    def delete(self, context: DeployContext, live: Live) -> None:
        with context.snowflake() as session:
            session.run(f"DROP USER IF EXISTS {quote(self.name)}", OWNER)


@dataclass(frozen=True)
class NetworkPolicy(Resource):
    """The addresses from which the service user may log in."""

    allowed: tuple[str, ...] = ()

    kind = "Snowflake network policy"

    def find(self, context: DeployContext) -> Live | None:
        with context.snowflake() as session:
            rows = session.run("SHOW NETWORK POLICIES", OWNER)
            if not any(row["name"] == self.name for row in rows):
                return None
            rows = session.run(f"DESC NETWORK POLICY {quote(self.name)}", OWNER)
        values = {row["name"]: row["value"] for row in rows}
        return Live(self.name, {"allowed": _sorted(values.get("ALLOWED_IP_LIST", "").split(","))})

    def desired(self, context: DeployContext) -> Fields:
        return {"allowed": _sorted(self.allowed)}

    def _list(self) -> str:
        return f"ALLOWED_IP_LIST = ({', '.join(text(one) for one in self.allowed)})"

    def create(self, context: DeployContext) -> None:
        with context.snowflake() as session:
            session.run(
                f"CREATE NETWORK POLICY IF NOT EXISTS {quote(self.name)} {self._list()}", OWNER
            )

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        with context.snowflake() as session:
            session.run(f"ALTER NETWORK POLICY {quote(self.name)} SET {self._list()}", OWNER)

    def delete(self, context: DeployContext, live: Live) -> None:
        with context.snowflake() as session:
            session.run(f"DROP NETWORK POLICY IF EXISTS {quote(self.name)}", OWNER)


def _sorted(networks: Iterable[str]) -> str:
    return ",".join(sorted(network.strip() for network in networks))


@dataclass(frozen=True)
class UserPolicy(Resource):
    """The network policy of the service user, which is set when everything else of it works.

    It is there if the user itself has this policy. The parameter also has a value if an operator
    set another policy, or one of the account, which are not ours.

    https://docs.snowflake.com/en/sql-reference/sql/show-parameters
    """

    user: str = ""
    policy: str = ""

    kind = "network policy of user"

    def find(self, context: DeployContext) -> Live | None:
        with context.snowflake() as session:
            rows = session.find(
                f"SHOW PARAMETERS LIKE 'network_policy' IN USER {quote(self.user)}", OWNER
            )
        ours = any((row["level"], row["value"]) == ("USER", self.policy) for row in rows or [])
        return Live(self.name) if ours else None

    def create(self, context: DeployContext) -> None:
        with context.snowflake() as session:
            change = f"SET NETWORK_POLICY = {quote(self.policy)}"
            session.run(f"ALTER USER {quote(self.user)} {change}", OWNER)

    def settle(self, context: DeployContext, live: Live) -> None:
        """Check that this machine may still log in as the user, as the next rotation has to."""
        private = rsa.private_key(context.need(KEYS).facts["values"])
        if problem := login_problem(context, self.user, private):
            raise TopicbergError(
                f"user {self.user} cannot log in with the network policy {self.policy}: {problem}",
                hint="add the address of this machine to TOPICBERG_SNOWFLAKE_ALLOWED_IPS",
            )

    def delete(self, context: DeployContext, live: Live) -> None:
        with context.snowflake() as session:
            session.run(f"ALTER USER IF EXISTS {quote(self.user)} UNSET NETWORK_POLICY", OWNER)


@dataclass(frozen=True)
class Role(Resource):
    comment: str = ""

    kind = "Snowflake role"

    def find(self, context: DeployContext) -> Live | None:
        with context.snowflake() as session:
            rows = session.run(f"SHOW ROLES LIKE {text(_pattern(self.name))}", OWNER)
        found = next((row for row in rows if row["name"] == self.name), None)
        return Live(self.name, {"comment": found["comment"]}) if found else None

    def desired(self, context: DeployContext) -> Fields:
        return {"comment": self.comment}

    def create(self, context: DeployContext) -> None:
        comment = f"COMMENT = {text(self.comment)}"
        with context.snowflake() as session:
            session.run(f"CREATE ROLE IF NOT EXISTS {quote(self.name)} {comment}", OWNER)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        comment = f"SET COMMENT = {text(self.comment)}"
        with context.snowflake() as session:
            session.run(f"ALTER ROLE {quote(self.name)} {comment}", OWNER)

    def delete(self, context: DeployContext, live: Live) -> None:
        with context.snowflake() as session:
            session.run(f"DROP ROLE IF EXISTS {quote(self.name)}", OWNER)


def _pattern(name: str) -> str:
    """Return a name as a LIKE pattern that matches only it."""
    return name.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")


@dataclass(frozen=True)
class RoleGrant(Resource):
    """A role that the user or another role has.

    :param to: ``USER`` or ``ROLE``
    """

    role: str = ""
    to: str = "USER"
    grantee: str = ""

    kind = "grant of role"

    def find(self, context: DeployContext) -> Live | None:
        with context.snowflake() as session:
            rows = session.find(f"SHOW GRANTS OF ROLE {quote(self.role)}", OWNER)
        granted = any(
            (row["granted_to"], row["grantee_name"].strip('"')) == (self.to, self.grantee)
            for row in rows or []
        )
        return Live(f"{self.role} → {self.grantee}") if granted else None

    def create(self, context: DeployContext) -> None:
        self._run(context, f"GRANT ROLE {quote(self.role)} TO {self.to} {quote(self.grantee)}")

    def delete(self, context: DeployContext, live: Live) -> None:
        self._run(context, f"REVOKE ROLE {quote(self.role)} FROM {self.to} {quote(self.grantee)}")

    def _run(self, context: DeployContext, statement: str) -> None:
        with context.snowflake() as session:
            session.run(statement, OWNER)


OF_TOPICS = "(topics)"
"""Part of the name of what a privilege is on: the namespace of the topics' tables."""


@dataclass(frozen=True)
class Grant(Resource):
    """One privilege of a role on one object.

    :param on: its kind, e.g. ``EXTERNAL VOLUME``
    :param target: its name, in parts; :data:`OF_TOPICS` stands for a namespace
    """

    role: str = ""
    privilege: str = "USAGE"
    on: str = ""
    target: tuple[str, ...] = ()

    kind = "grant"

    def find(self, context: DeployContext) -> Live | None:
        with context.snowflake() as session:
            rows = session.find(f"SHOW GRANTS TO ROLE {quote(self.role)}", GRANTOR)
        name = ".".join(self._path(context))
        for row in rows or []:
            if row["privilege"] == self.privilege and row["name"].replace('"', "") == name:
                return Live(f"{self.privilege} ON {self.on} {name}")
        return None

    def create(self, context: DeployContext) -> None:
        self._run(context, "GRANT", "TO")

    def delete(self, context: DeployContext, live: Live) -> None:
        self._run(context, "REVOKE", "FROM")

    def _path(self, context: DeployContext) -> tuple[str, ...]:
        if OF_TOPICS not in self.target:
            return self.target
        namespace = context.seen.snowflake_namespace
        return tuple(namespace if part == OF_TOPICS else part for part in self.target)

    def _run(self, context: DeployContext, verb: str, to: str) -> None:
        on = f"{self.privilege} ON {self.on} {quote(*self._path(context))}"
        with context.snowflake() as session:
            session.run(f"{verb} {on} {to} ROLE {quote(self.role)}", GRANTOR)
