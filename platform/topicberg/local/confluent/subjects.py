"""The Schema Registry's own API, at the root: the real local registry, behind keys.

Confluent's registry is at an address of its own, with a key of its own; so is this one, only that
its address is the stand-in's.
"""

from __future__ import annotations

from urllib.parse import quote

import requests

from topicberg.errors import TopicbergError
from topicberg.local.confluent.errors import Shape
from topicberg.local.confluent.operation import Call, KeyKind, Operation
from topicberg.local.confluent.wire import Answer

TIMEOUT_SECONDS = 30
_ROOTS = ("subjects", "schemas", "config", "mode", "compatibility", "contexts")


def _forward(call: Call) -> Answer:
    """:raises TopicbergError: the registry does not answer"""
    registry = call.account.endpoints().schema_registry
    path = call.url.removeprefix(call.account.url)
    try:
        answer = requests.request(
            call.method,
            registry + quote(path, safe="/:"),
            params=list(call.parameters),
            data=call.content or None,
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
            timeout=TIMEOUT_SECONDS,
        )
    except requests.RequestException as error:
        raise TopicbergError(f"the schema registry does not answer: {error}") from None
    return Answer(answer.content, answer.status_code, media_type=answer.headers.get("Content-Type"))


OPERATIONS = [
    Operation(
        method,
        path,
        _forward,
        key=KeyKind.SCHEMA_REGISTRY,
        shape=Shape.REGISTRY,
        rated=False,
        any_query=True,
    )
    for root in _ROOTS
    for path in (f"/{root}", f"/{root}/{{rest}}")
    for method in ("GET", "POST", "PUT", "DELETE")
]
