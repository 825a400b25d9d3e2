"""API keys that rotate: each kind has one secret, whose versions are its keys.

A key's own secret is only in the response that creates it, so it is stored before anything else is
done with it. A key that no version knows was created by a run that was killed in that moment, or
whose response was lost: no client can use it, and it is deleted when it is older than
:data:`YOUNG`. Its display name says in which AWS account and region its secret is: deployments of
one prefix and organization may have theirs in several.
Lists lag behind, and have only the keys that who deploys may see: what this process created is
remembered, and a key that a version knows but the list does not is looked up by its id, and tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import SecretStr

from topicberg.clients.confluent import CredentialsError, GoneError
from topicberg.clients.secrets import ApiKey, Version
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg_deploy.context import CLUSTER, READER, REGISTRY
from topicberg_deploy.costs import PRICES, Cost
from topicberg_deploy.polling import FIRST_SECONDS
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, MissingError, Resource

KeyKind = Literal["kafka", "schema_registry", "tableflow"]
SYNC_SECONDS = 20 * 60.0
"""How long a new key may take until it is known everywhere."""
YOUNG = timedelta(minutes=10)
"""How far lists of keys and of versions may lag: no key of this age is taken for an orphan."""
CONSECUTIVE = 2
"""Answers in a row that a new key must get: the API has several servers."""
SPREAD_SECONDS = 60.0
"""Between the answers to a new key of a cluster. Confluent's Terraform provider waits as long
(`utils_wait.go`: a Kafka key takes about two minutes until all brokers know it;
`resource_api_key.go` sleeps a minute after it has created a key of Schema Registry)."""


@dataclass(frozen=True)
class StoredKeys(Resource):
    """:param name: of the secret whose versions are the keys"""

    def lasting_id(self, live: Live) -> str:
        """Return the name of its secret: what is in there rotates."""
        return self.name

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        return Cost(PRICES["secret"], "a secret")

    def delete(self, context: DeployContext, live: Live) -> None:
        context.secrets.delete(self.name, purge=context.purge_secrets)


@dataclass(frozen=True)
class RotatingKey(StoredKeys):
    """
    :param account: key of the service account that owns it
    :param of: what it is a key of
    """

    account: str = field(kw_only=True)
    of: KeyKind = field(kw_only=True)

    kind = "API key"

    def find(self, context: DeployContext) -> Live | None:
        stored = context.secrets.versions(self.name)
        alive = self.alive(context, stored)
        versions = [version for version in stored if version.label in alive]
        if not versions:
            is_there = alive or context.secrets.exists(self.name)
            return Live("", {"key": None, "values": None}) if is_there else None
        newest = versions[-1]
        values = context.read_secret(self.name, newest.id)
        key, public = _open(self.of, values or {})
        if values is None:  # a plan uses a key that may only read
            key, public = self._reader(context), self._public(context)
        facts = {"versions": versions} | ({"key": key} if key else {})
        published = "published" if newest.current else "not published"
        return Live(newest.label, {"key": published, "values": public}, facts)

    def _reader(self, context: DeployContext) -> ApiKey:
        """Return the reader's key of this kind, or raise TopicbergError."""
        name = context.names.confluent_secret(f"{READER}/{self.of}")
        key, _ = _open(self.of, context.read_secret(name) or {})
        if key is None:
            raise TopicbergError(
                f"{self.title}: this login may not read secret {self.name}, and there is no "
                f"{name}, whose key may only read",
                hint="run `topicberg deploy create`, which creates that key",
            )
        return key

    def desired(self, context: DeployContext) -> Fields:
        return {"key": "published", "values": self._public(context)}

    def orphans(self, context: DeployContext, live: Live) -> list[str]:
        labels = {version.label for version in live.facts.get("versions", [])}
        oldest = datetime.now(UTC) - YOUNG
        made = self.alive(context).items()
        return sorted(key for key, when in made if key not in labels and when < oldest)

    def alive(self, context: DeployContext, stored: Sequence[Version] = ()) -> dict[str, datetime]:
        """Our keys of this kind that exist → when they were created.

        :param stored: versions of the secret; their keys exist even if the list lacks them
        """
        owner = context.live.get(self.account)
        if owner is None:
            return {}
        listed = {
            api_key["id"]: datetime.fromisoformat(api_key["metadata"]["created_at"])
            for api_key in context.confluent.cloud.pages(
                "/iam/v2/api-keys", **{"spec.owner": owner.id}
            )
            if (api_key["spec"].get("owner") or {}).get("id", owner.id) == owner.id
            and api_key["spec"].get("display_name") == self._display_name(context)
        }
        unlisted = {
            version.label: version.created
            for version in stored
            if version.label not in listed
            and (is_shown(context, version.label) or self._stored_works(context, version))
        }
        return {**unlisted, **context.made[self.key], **listed}

    def create(self, context: DeployContext) -> None:
        self.add(context)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        for orphan in self.orphans(context, live):
            self.revoke(context, orphan)
        if "key" not in live.facts:
            self.add(context)
        elif "values" in changes:
            values = _values(self.of, live.facts["key"], self._public(context))
            context.secrets.publish(self.name, context.secrets.add(self.name, values, live.id))

    def settle(self, context: DeployContext, live: Live) -> None:
        """The newest key works everywhere, and is the one that consumers read."""
        newest: Version = live.facts["versions"][-1]
        key = context.confluent.active_key(self.key)
        young = newest.created > datetime.now(UTC) - YOUNG
        spread = young and self.of != "tableflow" and context.config.deployment == "cloud"

        def works() -> bool:
            for answer in range(CONSECUTIVE):
                if answer:
                    context.sleep(SPREAD_SECONDS if spread else FIRST_SECONDS)
                if not self._works(context, key):
                    return False
            return True

        context.poll(works, f"{self.title} {key.id} works", SYNC_SECONDS)
        if not newest.current:
            context.secrets.publish(self.name, newest.id)

    def delete(self, context: DeployContext, live: Live) -> None:
        for key in self.alive(context, context.secrets.versions(self.name)):
            self.revoke(context, key)
        super().delete(context, live)

    def add(self, context: DeployContext) -> ApiKey:
        """A new key, stored but not published."""
        made = context.confluent.cloud.create("/iam/v2/api-keys", {"spec": self._spec(context)})
        key = ApiKey(made["id"], SecretStr(made["spec"]["secret"]))
        context.made[self.key][key.id] = datetime.now(UTC)
        context.secrets.add(self.name, _values(self.of, key, self._public(context)), key.id)
        return key

    def revoke(self, context: DeployContext, key: str) -> None:
        """:raises GoneError: Confluent refuses, and still has the key"""
        try:
            context.confluent.cloud.delete(f"/iam/v2/api-keys/{key}")
        except GoneError:
            if is_shown(context, key):
                raise
        context.made[self.key].pop(key, None)
        if context.secrets.exists(self.name):
            context.secrets.forget(self.name, key)

    def _stored_works(self, context: DeployContext, version: Version) -> bool:
        """Whether a stored key works that Confluent does not show, or who plans may not read it."""
        values = context.read_secret(self.name, version.id)
        key, _ = _open(self.of, values or {})
        if key is None:
            return values is None
        with suppress(MissingError):
            return self._works(context, key)
        return False

    def _works(self, context: DeployContext, key: ApiKey) -> bool:
        """
        :raises ApiError: it is not the key that is refused
        :raises MissingError: what it is a key of was not seen
        """
        try:
            if self.of == "kafka":
                context.confluent.kafka_as(key).get(f"/kafka/v3/clusters/{context.cluster}/topics")
            elif self.of == "schema_registry":
                context.confluent.registry_as(key).listed("/subjects")
            else:
                context.confluent.cloud_as(key).get("/tableflow/v1/regions")
        except (CredentialsError, GoneError):
            return False
        return True

    def _spec(self, context: DeployContext) -> dict[str, Any]:
        """With the fields that Confluent's own Terraform provider sends, and no others."""
        if self.of == "tableflow":
            of = {"id": "tableflow", "kind": "Tableflow", "api_version": "tableflow/v1"}
        else:
            cluster = CLUSTER if self.of == "kafka" else REGISTRY
            of = {"id": context.need(cluster).id, "kind": "Cluster"}
        return {
            "display_name": self._display_name(context),
            "description": "created by topicberg",
            "owner": {"id": context.need(self.account).id, "kind": "ServiceAccount"},
            "resource": of,
        }

    def _display_name(self, context: DeployContext) -> str:
        place = f"{context.aws.account} {context.config.aws_region}"
        return f"{context.names.prefix} {self.key.removeprefix('key/')} {place} (topicberg)"

    def _public(self, context: DeployContext) -> dict[str, str]:
        """What consumers find beside the key."""
        if self.of == "kafka":
            of_cluster = context.need(CLUSTER).facts["bootstrap"]
            bootstrap = context.deploy.kafka_bootstrap_servers or of_cluster
            if not bootstrap:
                raise MissingError(CLUSTER)
            return {"bootstrap.servers": bootstrap}
        if self.of == "schema_registry":
            return {
                "schema.registry.basic.auth.credentials.source": "USER_INFO",
                "schema.registry.url": context.confluent.registry_url,
            }
        return {"environment.id": context.environment, "kafka.cluster.id": context.cluster}


def is_shown(context: DeployContext, key: str) -> bool:
    """Whether there is such a key: of one that is deleted Confluent says 403 or 404."""
    with suppress(GoneError):
        context.confluent.cloud.get(f"/iam/v2/api-keys/{key}")
        return True
    return False


_NAMES: dict[KeyKind, tuple[str, str]] = {
    "kafka": ("sasl.username", "sasl.password"),
    "tableflow": ("api.key", "api.key.secret"),
}
_USER_INFO = "schema.registry.basic.auth.user.info"


def _values(of: KeyKind, key: ApiKey, public: dict[str, str]) -> dict[str, str]:
    """What the secret holds."""
    secret = key.secret.get_secret_value()
    if of == "schema_registry":
        return {**public, _USER_INFO: f"{key.id}:{secret}"}
    name, password = _NAMES[of]
    return {name: key.id, password: secret, **public}


def _open(of: KeyKind, values: dict[str, str]) -> tuple[ApiKey | None, dict[str, str]]:
    """The key in a secret, and what is beside it."""
    public = dict(values)
    if of == "schema_registry":
        name, _, secret = public.pop(_USER_INFO, "").partition(":")
    else:
        name, secret = (public.pop(field, "") for field in _NAMES[of])
    return (ApiKey(name, SecretStr(secret)) if name and secret else None), public
