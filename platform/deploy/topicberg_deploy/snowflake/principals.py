"""The service user with its key pairs, its roles, and what they may do."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from topicberg.catalogs.snowflake.names import quote, text
from topicberg.clients import rsa
from topicberg.clients.answers import VendorAnswer
from topicberg.clients.secrets import Version
from topicberg.errors import TopicbergError
from topicberg_deploy.confluent.keys import StoredKeys
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, MissingError, Resource
from topicberg_deploy.snowflake.session import SqlObject, find, run
from topicberg_deploy.snowflake_account import refusal_hint

OWNER = "SECURITYADMIN"
GRANTOR = "ACCOUNTADMIN"
KEYS = "snowflake/user_keys"
LOGIN_SECONDS = 300.0
_SLOTS = {1: "RSA_PUBLIC_KEY", 2: "RSA_PUBLIC_KEY_2"}


@dataclass(frozen=True)
class UserKeys(StoredKeys):
    """The secret with the user's key pairs."""

    user: str = ""

    kind = "RSA key pairs"

    def find(self, context: DeployContext) -> Live | None:
        versions = context.secrets.versions(self.name)
        if not versions:
            return Live("", {"key": None}) if context.secrets.exists(self.name) else None
        newest = versions[-1]
        values = context.read_secret(self.name, newest.id)
        facts = {"versions": versions} | ({} if values is None else {"values": values})
        return Live(newest.label, {"key": "there"}, facts)

    def desired(self, context: DeployContext) -> Fields:
        return {"key": "there"}

    def create(self, context: DeployContext) -> None:
        """A secret of Terraform's has the pair of slot 1, which its readers go on using."""
        pair = rsa.generate()
        stored = context.secrets.read(self.name) or {}
        current = stored if is_public_key(rsa.public_key(stored, 1)) else {}
        values = {
            **current,
            "snowflake_account_identifier": context.snowflake.identifier,
            "snowflake_service_user": self.user,
            "secrets_path": self.name,
        }
        values = rsa.with_pair(values, 2 if current else 1, pair)
        version = context.secrets.add(self.name, values, rsa.label(pair.public))
        context.secrets.publish(self.name, version)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        self.create(context)


def _public_keys(context: DeployContext) -> dict[str, str | None]:
    """Return the user's property → the public key that the secret has for it.

    :raises MissingError: the secret is not ours yet, e.g. Terraform's, or was not looked at
    """
    facts = context.need(KEYS).facts
    values: dict[str, str] | None = facts.get("values")
    if values is None:
        if facts.get("versions"):  # a plan may not read it
            return {}
        raise MissingError(KEYS)
    return {slot: rsa.public_key(values, number) for number, slot in _SLOTS.items()}


@dataclass(frozen=True)
class User(SqlObject):
    """A user of TYPE SERVICE, who logs in by key pair only.

    :param properties: what it is given besides its keys
    """

    properties: dict[str, str] = field(default_factory=dict, hash=False)

    kind = "Snowflake user"
    of = "USER"
    owner = OWNER

    def read(self, context: DeployContext) -> VendorAnswer | None:
        return self.described(context)

    def as_live(self, context: DeployContext, shown: VendorAnswer) -> Live:
        prints = {slot: shown[f"{slot}_FP"] for slot in _SLOTS.values()}
        versions: list[Version] = context.need(KEYS).facts.get("versions", [])
        published = "published" if versions and versions[-1].current else "not published"
        fields = {
            **{name: shown[name] for name in self.properties},
            **{slot: None if print_ in ("", "null") else print_ for slot, print_ in prints.items()},
            "secret": published,
        }
        return Live(self.name, fields)

    def desired(self, context: DeployContext) -> Fields:
        slots = _public_keys(context).items()
        prints = {slot: rsa.fingerprint(key) if key else None for slot, key in slots}
        return {**self.properties, "secret": "published", **prints}

    def definition(self, context: DeployContext) -> str:
        slots = {slot: key for slot, key in _public_keys(context).items() if key}
        given = [f"{name} = {text(value)}" for name, value in (self.properties | slots).items()]
        return " ".join([*given, "TYPE = SERVICE"])

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        for name, value in {**_public_keys(context), **self.properties}.items():
            if name in changes:
                change = f"SET {name} = {text(value)}" if value else f"UNSET {name}"
                run(context, f"ALTER USER {quote(self.name)} {change}", OWNER)

    def settle(self, context: DeployContext, live: Live) -> None:
        """The active key lets the user in; only then it is published."""
        facts = context.need(KEYS).facts
        private = rsa.private_key(facts["values"])
        if problem := context.poll_problem(
            lambda: context.snowflake.login_problem(self.name, private), LOGIN_SECONDS
        ):
            raise TopicbergError(
                f"{self.title} cannot log in with its newest key: {problem}",
                hint=refusal_hint(problem, self.name)
                or "allow this machine in the network policy, then run the command again",
            )
        if not facts["versions"][-1].current:
            name = context.names.snowflake_secret
            context.secrets.publish(name, facts["versions"][-1].id)
            fresh = {**facts, "versions": context.secrets.versions(name)}
            context.live[KEYS] = replace(context.need(KEYS), facts=fresh)


@dataclass(frozen=True)
class NetworkPolicy(SqlObject):
    """The addresses from which the service user may log in."""

    allowed: tuple[str, ...] = ()

    kind = "Snowflake network policy"
    of = "NETWORK POLICY"
    owner = OWNER

    def find(self, context: DeployContext) -> Live | None:
        rows = run(context, "SHOW NETWORK POLICIES", OWNER)
        if all(row["name"] != self.name for row in rows):
            return None
        rows = run(context, f"DESC NETWORK POLICY {quote(self.name)}", OWNER)
        values = {str(row["name"]).upper(): row["value"] for row in rows}
        return Live(self.name, {"allowed": _sorted(values.get("ALLOWED_IP_LIST", "").split(","))})

    def desired(self, context: DeployContext) -> Fields:
        return {"allowed": _sorted(self.allowed)}

    def definition(self, context: DeployContext) -> str:
        return f"ALLOWED_IP_LIST = ({', '.join(map(text, self.allowed))})"


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
    is_part = True

    def find(self, context: DeployContext) -> Live | None:
        show = f"SHOW PARAMETERS LIKE 'network_policy' IN USER {quote(self.user)}"
        rows = find(context, show, OWNER) or []
        ours = any((row["level"], row["value"]) == ("USER", self.policy) for row in rows)
        return Live(self.name) if ours else None

    def create(self, context: DeployContext) -> None:
        change = f"SET NETWORK_POLICY = {quote(self.policy)}"
        run(context, f"ALTER USER {quote(self.user)} {change}", OWNER)

    def settle(self, context: DeployContext, live: Live) -> None:
        """Check that this machine may still log in as the user, as the next rotation has to."""
        private = rsa.private_key(context.need(KEYS).facts["values"])
        if problem := context.snowflake.login_problem(self.user, private):
            raise TopicbergError(
                f"user {self.user} cannot log in with the network policy {self.policy}: {problem}",
                hint="add the address of this machine to TOPICBERG_SNOWFLAKE_ALLOWED_IPS",
            )

    def delete(self, context: DeployContext, live: Live) -> None:
        run(context, f"ALTER USER IF EXISTS {quote(self.user)} UNSET NETWORK_POLICY", OWNER)


@dataclass(frozen=True)
class SnowflakeRole(SqlObject):
    comment: str = ""

    kind = "Snowflake role"
    of = "ROLE"
    owner = OWNER

    def as_live(self, context: DeployContext, shown: VendorAnswer) -> Live:
        return Live(self.name, {"comment": shown["comment"]})

    def desired(self, context: DeployContext) -> Fields:
        return {"comment": self.comment}

    def definition(self, context: DeployContext) -> str:
        return f"COMMENT = {text(self.comment)}"


@dataclass(frozen=True)
class RoleGrant(Resource):
    """A role that the user or another role has.

    :param to: ``USER`` or ``ROLE``
    """

    role: str = ""
    to: str = "USER"
    grantee: str = ""

    kind = "grant of role"
    is_part = True

    def find(self, context: DeployContext) -> Live | None:
        rows = find(context, f"SHOW GRANTS OF ROLE {quote(self.role)}", OWNER) or []
        grantees = {(row["granted_to"], row["grantee_name"].strip('"')) for row in rows}
        is_granted = (self.to, self.grantee) in grantees
        return Live(f"{self.role} → {self.grantee}") if is_granted else None

    def create(self, context: DeployContext) -> None:
        run(context, f"GRANT ROLE {quote(self.role)} TO {self.to} {quote(self.grantee)}", OWNER)

    def delete(self, context: DeployContext, live: Live) -> None:
        run(context, f"REVOKE ROLE {quote(self.role)} FROM {self.to} {quote(self.grantee)}", OWNER)


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
    is_part = True

    def find(self, context: DeployContext) -> Live | None:
        rows = find(context, f"SHOW GRANTS TO ROLE {quote(self.role)}", GRANTOR) or []
        granted = {(row["privilege"], row["name"].replace('"', "")) for row in rows}
        name = ".".join(self._path(context))
        live = Live(f"{self.privilege} ON {self.on} {name}")
        return live if (self.privilege, name) in granted else None

    def create(self, context: DeployContext) -> None:
        run(context, f"GRANT {self._right(context)} TO ROLE {quote(self.role)}", GRANTOR)

    def delete(self, context: DeployContext, live: Live) -> None:
        run(context, f"REVOKE {self._right(context)} FROM ROLE {quote(self.role)}", GRANTOR)

    def _path(self, context: DeployContext) -> tuple[str, ...]:
        return tuple(
            context.seen.snowflake_namespace if part == OF_TOPICS else part for part in self.target
        )

    def _right(self, context: DeployContext) -> str:
        return f"{self.privilege} ON {self.on} {quote(*self._path(context))}"


@dataclass(frozen=True)
class FutureGrant(Grant):
    """One privilege of a role on all objects of a kind that a database gets. Snowflake drops and
    discovers a linked table again when the catalog has another one of its name, and the privileges
    on it are gone.

    It takes MANAGE GRANTS: https://docs.snowflake.com/en/sql-reference/sql/grant-privilege
    """

    kind = "future grant"

    def find(self, context: DeployContext) -> Live | None:
        rows = find(context, f"SHOW FUTURE GRANTS TO ROLE {quote(self.role)}", GRANTOR) or []
        granted = {
            (row["privilege"], row["name"].replace('"', "").partition(".")[0])
            for row in rows
            if row["grant_on"].replace("_", " ") in (self.on, self.on.rpartition(" ")[2])
        }
        return Live(self._right(context)) if (self.privilege, *self.target) in granted else None

    def _right(self, context: DeployContext) -> str:
        return f"{self.privilege} ON FUTURE {self.on}S IN DATABASE {quote(*self.target)}"


def is_public_key(value: str | None) -> bool:
    """Return whether a secret's field is a key, not empty or a placeholder."""
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        load_der_public_key(base64.b64decode(value or "", validate=True))
    except ValueError:
        return False
    return True
