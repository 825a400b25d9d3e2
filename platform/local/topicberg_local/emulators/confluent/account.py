"""The organization: its objects on disk, their names, and how long things take."""

from __future__ import annotations

import secrets
import string
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from topicberg.endpoints import Endpoints, local_endpoints
from topicberg.settings import Settings
from topicberg_local.emulators.confluent.errors import Refusal, conflict
from topicberg_local.emulators.store import Name, Store, Stored

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

ORGANIZATION = "organization"
ENVIRONMENT = "environment"
CLUSTER = "cluster"
REGISTRY = "registry"
SUBJECT = "subject"
SERVICE_ACCOUNT = "service account"
KEY = "key"
ROLE_BINDING = "role binding"
INTEGRATION = "integration"
CONNECTOR = "connector"
TOPIC = "topic"
ACL = "access list"
TABLE = "tableflow topic"
CATALOG = "catalog"
DELAYS = "delays"
T = TypeVar("T")
BOOTSTRAP_USER = "u-local1"
_ID_ALPHABET = string.ascii_lowercase + string.digits


class Delays(BaseModel):
    """Seconds until something takes effect, as it does in the cloud (there it is minutes)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_key: float = Field(default=1.0, ge=0, description="until a new key is accepted")
    role_binding: float = Field(default=0.5, ge=0, description="until a new binding is honoured")
    cluster: float = Field(default=1.5, ge=0, description="PROVISIONING of a Kafka cluster")
    schema_registry: float = Field(default=1.0, ge=0, description="PROVISIONING, after the cluster")
    deletion: float = Field(default=0.5, ge=0, description="a deleted cluster is still shown")
    connector: float = Field(default=1.0, ge=0, description="PROVISIONING, at least")
    tableflow: float = Field(default=1.0, ge=0, description="PENDING, at least")
    listing: float = Field(default=0.5, ge=0, description="until lists show a key or a cluster")

    def lists(self, stored: Stored) -> bool:
        """Whether a list shows it: lists lag behind what a look by its id finds."""
        return time.time() >= stored.created + self.listing


class Account:
    """Everything of the one organization that the emulator has.

    :param url: where the emulator is reached: the base of every API
    :param kafka: ``host:port`` for Kafka's clients with an API key
    """

    def __init__(
        self, folder: Path, config: Settings, url: str, kafka: str = "127.0.0.1:1"
    ) -> None:
        self.store = Store(folder / "account.db")
        self.config, self.url, self.kafka = config, url, kafka
        self.changing = threading.Lock()
        """Held by one request that changes something: checks and their change are one step."""
        self._clients: dict[str, tuple[str | None, Any]] = {}
        self._clients_lock = threading.Lock()
        if not self.store.all(ORGANIZATION):
            self.store.put(Stored(ORGANIZATION, (str(uuid.uuid4()),)))
        self.organization = self.store.all(ORGANIZATION)[0].name[0]

    @property
    def delays(self) -> Delays:
        stored = self.store.get(DELAYS, ())
        return Delays.model_validate(stored.properties) if stored else Delays()

    @delays.setter
    def delays(self, delays: Delays) -> None:
        self.store.put(Stored(DELAYS, (), delays.model_dump()))

    def endpoints(self) -> Endpoints:
        """Where the real broker, registry and so on are; raises StackError: they are not up yet."""
        return local_endpoints(self.config)

    def _client(self, name: str, address: str | None, make: Callable[[], T]) -> T:
        """Return a client, which takes long to make: it is kept as long as the address stays."""
        with self._clients_lock:
            if name not in self._clients or self._clients[name][0] != address:
                self._clients[name] = (address, make())
            client: T = self._clients[name][1]
            return client

    def kafka_admin(self) -> AdminClient:
        """:raises StackError: the stack has not come up yet"""
        endpoints = self.endpoints()
        return self._client("kafka", endpoints.kafka_bootstrap, endpoints.kafka_admin)

    def aws(self, service: str) -> Any:
        """A boto3 client of the local AWS; raises StackError: the stack has not come up yet."""
        endpoints = self.endpoints()
        return self._client(service, endpoints.aws, partial(endpoints.boto3, service, self.config))

    def catalog(self) -> Catalog:
        """:raises StackError: the stack has not come up yet"""
        endpoints = self.endpoints()
        connect = partial(endpoints.catalog, self.config)
        return self._client("iceberg", endpoints.iceberg_rest, connect)

    def crn(self, *parts: str) -> str:
        """Confluent resource name: ``crn("environment=env-1", …)``."""
        return "/".join((f"crn://confluent.cloud/organization={self.organization}", *parts))

    def find(self, kind: str, **properties: Any) -> list[Stored]:
        """Objects that have these properties."""
        return self.store.all(kind, lambda stored: properties.items() <= stored.properties.items())

    def require(self, kind: str, name: Name, missing: Refusal, **properties: str) -> Stored:
        """:raises Refusal: there is no such object with these properties"""
        stored = self.store.get(kind, name)
        if stored is None or not properties.items() <= stored.properties.items():
            raise missing
        return stored

    def add(self, kind: str, prefix: str, properties: dict[str, Any]) -> Stored:
        """Store a new object, with an id that begins with the prefix."""
        stored = Stored(kind, (self.new_id(kind, prefix),), properties)
        self.store.put(stored)
        return stored

    def change(self, stored: Stored, changes: dict[str, Any]) -> Stored:
        """Store the object with other properties, and the time of now as that of its update."""
        properties = {**stored.properties, **changes, "updated": time.time()}
        changed = Stored(stored.kind, stored.name, properties, stored.created)
        self.store.put(changed)
        return changed

    def delete(self, kind: str, **properties: Any) -> None:
        """Delete the objects that have these properties."""
        self.store.delete(kind, [stored.name for stored in self.find(kind, **properties)])

    def refuse_taken(self, kind: str, path: str, name: str, text: str, but: str = "") -> None:
        """
        :param path: of the API of these objects
        :param but: id of the object that may have it
        :raises Refusal: another object has this ``display_name``
        """
        for other in self.find(kind, display_name=name):
            if other.name[0] != but:
                raise conflict(text, f"{self.url}{path}/{other.name[0]}")

    def close(self) -> None:
        self.store.close()

    def document(
        self, version: str, kind: str, stored: Stored, path: str, *crn: str, **body: Any
    ) -> dict[str, Any]:
        """An object as the control plane's APIs show it.

        :param path: of all objects of the kind
        :param crn: names the object in the organization, but for its own id at the end
        """
        name = stored.name[-1]
        parts = (*crn[:-1], f"{crn[-1]}={name}") if crn else ()
        metadata = {
            "self": f"{self.url}{path}/{name}",
            "resource_name": self.crn(*parts),
            "created_at": timestamp(stored.created),
            "updated_at": timestamp(stored.properties.get("updated", stored.created)),
        }
        return {"api_version": version, "kind": kind, "id": name, "metadata": metadata, **body}

    def reference(self, name: str, path: str, *crn: str) -> dict[str, str]:
        """How an answer names another object."""
        return {"id": name, "related": self.url + path, "resource_name": self.crn(*crn)}

    def new_id(self, kind: str, prefix: str) -> str:
        """An id that no object of the kind has."""
        taken = {stored.name[-1] for stored in self.store.all(kind)}
        while True:
            identity = f"{prefix}-{random_text(_ID_ALPHABET, 6)}"
            if identity not in taken:
                return identity


def random_text(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
