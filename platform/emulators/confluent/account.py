"""The organization: its objects on disk, their names, and how long things take."""

from __future__ import annotations

import secrets
import string
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from emulators.store import Store, Stored
from topicberg.endpoints import Endpoints, local_endpoints
from topicberg.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from pyiceberg.catalog import Catalog

ORGANIZATION = "organization"
ENVIRONMENT = "environment"
CLUSTER = "cluster"
REGISTRY = "registry"
SUBJECT = "subject"
SERVICE_ACCOUNT = "service account"
USER = "user"
KEY = "key"
ROLE_BINDING = "role binding"
INTEGRATION = "integration"
CONNECTOR = "connector"
TOPIC = "topic"
ACL = "access list"
TABLE = "tableflow topic"
CATALOG = "catalog"
DELAYS = "delays"

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
    """

    def __init__(self, folder: Path, config: Settings, url: str) -> None:
        self.store = Store(folder / "account.db")
        self.config = config
        self.url = url
        self.changing = threading.Lock()
        """Held by one request that changes something: checks and their change are one step."""
        self._admin: tuple[str, AdminClient] | None = None
        self._catalog: tuple[str, Catalog] | None = None
        self._aws: dict[tuple[str, str], Any] = {}
        self._clients_lock = threading.Lock()
        with self.store.lock:
            if not self.store.all(ORGANIZATION):
                self.store.put(Stored(ORGANIZATION, (str(uuid.uuid4()),)))
                self.store.put(Stored(USER, (BOOTSTRAP_USER,)))
        self.organization = self.store.all(ORGANIZATION)[0].name[0]

    @property
    def delays(self) -> Delays:
        stored = self.store.get(DELAYS, ())
        return Delays.model_validate(stored.properties) if stored else Delays()

    @delays.setter
    def delays(self, delays: Delays) -> None:
        self.store.put(Stored(DELAYS, (), delays.model_dump()))

    def endpoints(self) -> Endpoints:
        """Where the real broker, registry, object store and so on are.

        :raises StackError: the stack has not come up yet
        """
        return local_endpoints(self.config)

    def kafka_admin(self) -> AdminClient:
        """The broker; the client is kept as long as the address stays.

        :raises StackError: the stack has not come up yet
        """
        endpoints = self.endpoints()
        with self._clients_lock:
            if self._admin is None or self._admin[0] != endpoints.kafka_bootstrap:
                self._admin = (endpoints.kafka_bootstrap, endpoints.kafka_admin())
            return self._admin[1]

    def aws(self, service: str) -> Any:
        """A boto3 client of the local AWS; kept, for one takes long to make.

        :raises StackError: the stack has not come up yet
        """
        endpoints = self.endpoints()
        with self._clients_lock:
            key = (service, endpoints.aws or "")
            if key not in self._aws:
                self._aws[key] = endpoints.boto3(service, self.config)
            return self._aws[key]

    def catalog(self) -> Catalog:
        """The Iceberg catalog; the client is kept as long as the address stays.

        :raises StackError: the stack has not come up yet
        """
        endpoints = self.endpoints()
        with self._clients_lock:
            if self._catalog is None or self._catalog[0] != endpoints.iceberg_rest:
                self._catalog = (endpoints.iceberg_rest, endpoints.catalog(self.config))
            return self._catalog[1]

    def crn(self, *parts: str) -> str:
        """Confluent resource name: ``crn("environment=env-1", …)``."""
        return "/".join((f"crn://confluent.cloud/organization={self.organization}", *parts))

    def find(self, kind: str, where: Callable[[dict[str, Any]], bool]) -> list[Stored]:
        """Objects whose properties pass."""
        return self.store.all(kind, lambda stored: where(stored.properties))

    def close(self) -> None:
        self.store.close()

    def metadata(self, stored: Stored, path: str, *crn: str) -> dict[str, str]:
        """``metadata`` of an answer."""
        return {
            "self": self.url + path,
            "resource_name": self.crn(*crn),
            "created_at": timestamp(stored.created),
            "updated_at": timestamp(stored.properties.get("updated", stored.created)),
        }

    def reference(self, name: str, path: str, *crn: str) -> dict[str, str]:
        """How an answer names another object."""
        return {"id": name, "related": self.url + path, "resource_name": self.crn(*crn)}

    def new_id(self, kind: str, prefix: str) -> str:
        """An id that no object of the kind has."""
        taken = {stored.name[-1] for stored in self.store.all(kind)}
        while True:
            found = f"{prefix}-{''.join(secrets.choice(_ID_ALPHABET) for _ in range(6))}"
            if found not in taken:
                return found


def changed(stored: Stored, changes: dict[str, Any]) -> Stored:
    """The object with other properties, and the time of now as that of its update."""
    properties = {**stored.properties, **changes, "updated": time.time()}
    return Stored(stored.kind, stored.name, properties, stored.created)


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
