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

from topicberg_local.emulators.confluent import clusters, errors
from topicberg_local.emulators.confluent.account import (
    BOOTSTRAP_USER,
    CLUSTER,
    KEY,
    REGISTRY,
    SERVICE_ACCOUNT,
    Account,
    random_text,
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
    SpecBody,
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
        key = _opened(account, name, secret)
        if key is None or time.time() < key.created + account.delays.api_key:
            raise errors.unauthorized("invalid API key: unknown, or its secret is wrong")
        stored_kind = KeyKind(key.properties["kind"])
        caller = Caller(name, key.properties["owner"], key.properties["resource"])
    if stored_kind is not kind:
        raise errors.unauthorized(
            f"invalid API key: make sure you're using a {kind.value} API Key and not a"
            f" {stored_kind.value} API Key"
        )
    if kind is KeyKind.KAFKA and caller.resource != resource:
        raise errors.unauthorized(
            f"invalid API key: it is for {caller.resource}, not for {resource}"
        )
    return caller


def _opened(account: Account, name: str, secret: str) -> Stored | None:
    """Return the key that has this name and secret."""
    stored = account.store.get(KEY, (name,))
    digest = stored.properties["hash"] if stored else ""
    return stored if hmac.compare_digest(digest, _hash(secret)) else None


def opens(account: Account, name: str, secret: str, resource: str) -> bool:
    """Whether a key is one of this resource."""
    key = _opened(account, name, secret)
    return key is not None and key.properties["resource"] == resource


def of_kafka(account: Account, name: str, secret: str) -> tuple[str, str] | None:
    """Cluster and owner of a valid key with which a client logs in to Kafka; None: it is none."""
    key = _opened(account, name, secret)
    if key is None or time.time() < key.created + account.delays.api_key:
        return None
    is_of_kafka = KeyKind(key.properties["kind"]) is KeyKind.KAFKA
    return (key.properties["resource"], key.properties["owner"]) if is_of_kafka else None


def _basic(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            name, colon, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if colon:
            return name, secret
    raise errors.unauthorized("An API key and its secret are required, as HTTP Basic credentials.")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _resource(account: Account, given: TypedReference) -> tuple[KeyKind, dict[str, str]]:
    """Kind of a key for a resource, and the resource as it is stored; raises Refusal."""
    name = given.id
    if name.startswith("lkc-"):
        typed = _typed(given, "Cluster", "cmk/v2", "")
        cluster = account.require(CLUSTER, (name,), errors.not_found(f"Kafka cluster {name}"))
        environment = cluster.properties["environment"]
        clusters.require(account, environment, name)
        return KeyKind.KAFKA, clusters.reference(account, environment, name) | typed
    if name.startswith("lsrc-"):
        typed = _typed(given, "Cluster", "srcm/v3", "srcm/v2", "")
        missing = errors.not_found(f"Schema Registry cluster {name}")
        environment = account.require(REGISTRY, (name,), missing).properties["environment"]
        reference = account.reference(
            name,
            f"/srcm/v3/clusters/{name}",
            f"environment={environment}",
            f"schema-registry={name}",
        )
        return KeyKind.SCHEMA_REGISTRY, reference | typed
    if name.lower() == "tableflow":
        typed = _typed(given, "Tableflow", "tableflow/v1")
        reference = account.reference("tableflow", "/tableflow/v1", "tableflow")
        return KeyKind.TABLEFLOW, reference | typed
    raise errors.unsupported(f"API keys for {name}")


def _typed(given: TypedReference, kind: str, *versions: str) -> dict[str, str]:
    """Return kind and version of a resource.

    :param versions: that may be given; with an empty one, the kind may be left out as well
    :raises Refusal: others are given
    """
    is_kind = given.kind == kind or (not given.kind and "" in versions)
    if not is_kind or given.api_version not in versions:
        raise errors.invalid(
            f"{given.id} is of kind {kind} and api_version {versions[0]}, not"
            f" '{given.kind}' and '{given.api_version}'.",
            "/spec/resource",
        )
    return {"api_version": versions[0], "kind": kind}


def _owner(account: Account, given: TypedReference) -> dict[str, str]:
    """:raises Refusal: there is no such owner, or it is of another kind"""
    title, path = "ServiceAccount", "service-account"
    if given.id == BOOTSTRAP_USER:
        title, path = "User", "user"
    else:
        account.require(SERVICE_ACCOUNT, (given.id,), errors.not_found(f"Owner {given.id}"))
    if given.kind not in ("", title) or given.api_version not in ("", VERSION):
        raise errors.invalid(f"{given.id} is a {title} of {VERSION}.", "/spec/owner")
    described = account.reference(given.id, f"/iam/v2/{path}s/{given.id}", f"{path}={given.id}")
    return {**described, "api_version": VERSION, "kind": title}


def _document(call: Call, stored: Stored) -> dict[str, Any]:
    spec = dict(stored.properties["spec"])
    return call.account.document(VERSION, "ApiKey", stored, PATH, "api-key", spec=spec)


def _require(call: Call) -> Stored:
    name = call.path["id"]
    return call.account.require(KEY, (name,), errors.gone(f"API key {name}"))


def _create(call: Call) -> HttpResponse:
    """The one response that has the secret."""
    account = call.account
    spec: NewSpec = call.body.spec
    if spec.resources:
        raise errors.unsupported("API keys for several resources")
    owner = _owner(account, spec.owner)
    fields: dict[str, Any] = {
        "display_name": spec.display_name,
        "description": spec.description,
        "owner": owner,
    }
    kind = KeyKind.CLOUD
    if spec.resource is not None:
        kind, fields["resource"] = _resource(account, spec.resource)
    secret, key = secrets.token_urlsafe(48), random_text(_KEY_ALPHABET, 16)
    properties = {
        "kind": kind.value,
        "hash": _hash(secret),
        "owner": owner["id"],
        "resource": fields["resource"]["id"] if spec.resource else None,
        "spec": fields,
    }
    stored = Stored(KEY, (key,), properties)
    account.store.put(stored)
    document = _document(call, stored)
    document["spec"]["secret"] = secret
    return HttpResponse(document, location=f"{PATH}/{key}")


def _list(call: Call) -> dict[str, Any]:
    query: ListQuery = call.query
    keys = [
        key
        for key in call.account.store.all(KEY, call.account.delays.lists)
        if query.owner in ("", key.properties["owner"])
        and query.resource in ("", key.properties["resource"] or "")
    ]
    return call.page(keys, VERSION, "ApiKey", _document)


def _delete(call: Call) -> None:
    call.account.store.delete(KEY, [_require(call).name])


OPERATIONS = [
    Operation("POST", PATH, _create, 202, body=SpecBody[NewSpec], rated=False),
    Operation("GET", PATH, _list, query=ListQuery, rated=False),
    Operation("GET", PATH + "/{id}", lambda call: _document(call, _require(call)), rated=False),
    Operation("DELETE", PATH + "/{id}", _delete, 204, rated=False),
]
