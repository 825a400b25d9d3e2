"""``/iam/v2/api-keys``, and who signed a request.

A key is good for the one API that its resource names. Its secret is returned once; a hash of it is
kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import string
import time
from typing import Any, NamedTuple

from pydantic import Field

from topicberg_local.emulators.confluent import clusters
from topicberg_local.emulators.confluent.account import (
    BOOTSTRAP_USER,
    CLUSTER,
    KEY,
    REGISTRY,
    SERVICE_ACCOUNT,
    Account,
)
from topicberg_local.emulators.confluent.errors import (
    gone,
    invalid,
    not_found,
    unauthorized,
    unsupported,
)
from topicberg_local.emulators.confluent.operation import (
    Body,
    Call,
    Caller,
    HttpResponse,
    KeyKind,
    Operation,
    Page,
    ScopedReference,
)
from topicberg_local.emulators.store import Stored

VERSION = "iam/v2"
PATH = "/iam/v2/api-keys"
_KEY_ALPHABET = string.ascii_uppercase + string.digits


class TypedReference(ScopedReference):
    api_version: str = Field(default="", min_length=1)
    kind: str = Field(default="", min_length=1)


class NewSpec(Body):
    owner: TypedReference
    display_name: str = ""
    description: str = ""
    resource: TypedReference | None = None
    resources: list[TypedReference] = Field(default=[])


class NewKey(Body):
    spec: NewSpec


class ListQuery(Page):
    owner: str = Field(default="", alias="spec.owner")
    resource: str = Field(default="", alias="spec.resource")


class Bootstrap(NamedTuple):
    """The Cloud key that is there from the start."""

    key: str
    secret: str


def authenticate(
    account: Account, bootstrap: Bootstrap, header: str, kind: KeyKind, resource: str | None
) -> Caller:
    """The owner of the key in an ``Authorization`` header.

    :param kind: what the API wants
    :param resource: the one Kafka cluster that the key must be for
    :raises Refusal: 401: no such key, a wrong secret, another kind of key, or one that has been
        made so recently that the API does not know it yet
    """
    name, secret = _basic(header)
    if hmac.compare_digest(name, bootstrap.key) and hmac.compare_digest(secret, bootstrap.secret):
        stored_kind, caller = KeyKind.CLOUD, Caller(name, BOOTSTRAP_USER, None)
    else:
        stored = account.store.get(KEY, (name,))
        if (
            stored is None
            or not hmac.compare_digest(stored.properties["hash"], _hash(secret))
            or time.time() < stored.created + account.delays.api_key
        ):
            raise unauthorized("invalid API key: unknown, or its secret is wrong")
        properties = stored.properties
        stored_kind = KeyKind(properties["kind"])
        caller = Caller(name, properties["owner"], properties["resource"])
    if stored_kind is not kind:
        raise unauthorized(
            f"invalid API key: make sure you're using a {kind.value} API Key and not a"
            f" {stored_kind.value} API Key"
        )
    if kind is KeyKind.KAFKA and caller.resource != resource:
        raise unauthorized(f"invalid API key: it is for {caller.resource}, not for {resource}")
    return caller


def opens(account: Account, name: str, secret: str, resource: str) -> bool:
    """Whether a key is one of this resource."""
    stored = account.store.get(KEY, (name,))
    return (
        stored is not None
        and stored.properties["resource"] == resource
        and hmac.compare_digest(stored.properties["hash"], _hash(secret))
    )


def of_kafka(account: Account, name: str, secret: str) -> Caller | None:
    """Who logs in to Kafka with a key; None: no key of a cluster, or not one that is valid yet."""
    stored = account.store.get(KEY, (name,))
    if (
        stored is None
        or KeyKind(stored.properties["kind"]) is not KeyKind.KAFKA
        or not hmac.compare_digest(stored.properties["hash"], _hash(secret))
        or time.time() < stored.created + account.delays.api_key
    ):
        return None
    return Caller(name, stored.properties["owner"], stored.properties["resource"])


def _basic(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            name, colon, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if colon:
            return name, secret
    raise unauthorized("An API key and its secret are required, as HTTP Basic credentials.")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Resource(NamedTuple):
    """What a key is for, as it is stored and answered."""

    kind: KeyKind
    name: str
    reference: dict[str, str]


def _resource(account: Account, given: TypedReference) -> Resource:
    """:raises Refusal: it does not exist, or is called another kind than it is"""
    name = given.id
    if name.startswith("lkc-"):
        _refuse_mislabelled(given, "Cluster", "cmk/v2")
        cluster = account.require(CLUSTER, (name,), not_found(f"Kafka cluster {name}"))
        environment = cluster.properties["environment"]
        clusters.require(account, environment, name)
        described = clusters.reference(account, environment, name)
        version, kind = "cmk/v2", KeyKind.KAFKA
    elif name.startswith("lsrc-"):
        _refuse_mislabelled(given, "Cluster", "srcm/v3", "srcm/v2")
        missing = not_found(f"Schema Registry cluster {name}")
        environment = account.require(REGISTRY, (name,), missing).properties["environment"]
        described = account.reference(
            name,
            f"/srcm/v3/clusters/{name}",
            f"environment={environment}",
            f"schema-registry={name}",
        )
        version, kind = "srcm/v3", KeyKind.SCHEMA_REGISTRY
    elif name.lower() == "tableflow":
        _refuse_mislabelled(given, "Tableflow", "tableflow/v1", needed=True)
        described = account.reference("tableflow", "/tableflow/v1", "tableflow")
        described |= {"api_version": "tableflow/v1", "kind": "Tableflow"}
        return Resource(KeyKind.TABLEFLOW, "tableflow", described)
    else:
        raise unsupported(f"API keys for {name}")
    return Resource(kind, name, {**described, "api_version": version, "kind": "Cluster"})


def _refuse_mislabelled(
    given: TypedReference, kind: str, *versions: str, needed: bool = False
) -> None:
    kind_ok = given.kind == kind or (not given.kind and not needed)
    version_ok = given.api_version in versions or (not given.api_version and not needed)
    if not kind_ok or not version_ok:
        raise invalid(
            f"{given.id} is of kind {kind} and api_version {versions[0]}, not"
            f" '{given.kind}' and '{given.api_version}'.",
            "/spec/resource",
        )


def _owner(account: Account, given: TypedReference) -> dict[str, str]:
    """:raises Refusal: there is no such owner, or it is of another kind"""
    title, path = "ServiceAccount", "service-account"
    if given.id == BOOTSTRAP_USER:
        title, path = "User", "user"
    else:
        account.require(SERVICE_ACCOUNT, (given.id,), not_found(f"Owner {given.id}"))
    if given.kind not in ("", title) or given.api_version not in ("", VERSION):
        raise invalid(f"{given.id} is a {title} of {VERSION}.", "/spec/owner")
    described = account.reference(given.id, f"/iam/v2/{path}s/{given.id}", f"{path}={given.id}")
    return {**described, "api_version": VERSION, "kind": title}


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    spec = dict(stored.properties["spec"])
    return call.account.document(VERSION, "ApiKey", stored, PATH, "api-key", spec=spec)


def _require(call: Call) -> Stored:
    name = call.path["id"]
    return call.account.require(KEY, (name,), gone(f"API key {name}"))


def _create(call: Call) -> HttpResponse:
    """The one response that has the secret."""
    spec: NewSpec = call.body.spec
    account = call.account
    if spec.resources:
        raise unsupported("API keys for several resources")
    owner = _owner(account, spec.owner)
    fields: dict[str, Any] = {
        "display_name": spec.display_name,
        "description": spec.description,
        "owner": owner,
    }
    kind, name = KeyKind.CLOUD, None
    if spec.resource is not None:
        kind, name, fields["resource"] = _resource(account, spec.resource)
    secret = secrets.token_urlsafe(48)
    properties = {
        "kind": kind.value,
        "hash": _hash(secret),
        "owner": owner["id"],
        "resource": name,
        "spec": fields,
    }
    key = "".join(secrets.choice(_KEY_ALPHABET) for _ in range(16))
    stored = Stored(KEY, (key,), properties)
    account.store.put(stored)
    document = _document(call, stored)
    document["spec"]["secret"] = secret
    return HttpResponse(document, location=f"{PATH}/{key}")


def _list(call: Call) -> HttpResponse:
    query: ListQuery = call.query
    keys = call.account.find(
        KEY,
        lambda key: (
            query.owner in ("", key["owner"]) and query.resource in ("", key["resource"] or "")
        ),
    )
    keys = [key for key in keys if call.account.delays.lists(key)]
    return call.page(keys, VERSION, "ApiKey", _document)


def _get(call: Call) -> HttpResponse:
    return HttpResponse(_document(call, _require(call)))


def _delete(call: Call) -> HttpResponse:
    call.account.store.delete(KEY, [_require(call).name])
    return HttpResponse()


OPERATIONS = [
    Operation("POST", PATH, _create, 202, body=NewKey, rated=False),
    Operation("GET", PATH, _list, query=ListQuery, rated=False),
    Operation("GET", PATH + "/{id}", _get, rated=False),
    Operation("DELETE", PATH + "/{id}", _delete, 204, rated=False),
]
