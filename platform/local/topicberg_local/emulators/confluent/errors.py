"""Refusals, in the four shapes in which Confluent Cloud's APIs answer an error.

https://docs.confluent.io/cloud/current/api.html#section/Errors for the control plane; Kafka REST,
Schema Registry and Connect have shapes of their own, and a few operations borrow another's.
"""

from __future__ import annotations

import html
import json
import uuid
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails


class Shape(Enum):
    """Which API's errors an operation answers with."""

    CLOUD = auto()
    ROLES = auto()
    """As CLOUD, but a binding that is not there is Kafka's shape."""
    PROVIDER = auto()
    """As CLOUD, but an integration that is not there is Kafka's shape."""
    KAFKA = auto()
    REGISTRY = auto()
    CONNECT = auto()


@dataclass
class Refusal(Exception):
    """An answer that is an error.

    ``number``: ``error_code`` of the APIs that number their errors; by default the status.
    ``pointer``: the field of the body, as ``/spec/display_name``; ``parameter``: of the query.
    """

    status: HTTPStatus
    detail: str
    code: str = ""
    number: int | None = None
    pointer: str | None = None
    parameter: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def bad_request(detail: str, *, parameter: str | None = None) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, detail, "bad_request", parameter=parameter)


def invalid(detail: str, pointer: str) -> Refusal:
    """A body that is well formed and cannot be."""
    return Refusal(
        HTTPStatus.UNPROCESSABLE_ENTITY, detail, "invalid_configuration", pointer=pointer
    )


def not_found(subject: str) -> Refusal:
    return Refusal(HTTPStatus.NOT_FOUND, f"{subject} was not found.", "resource_not_found")


def gone(subject: str) -> Refusal:
    """403 is what the APIs of clusters and keys say of a thing that is not, or no longer, there."""
    return Refusal(HTTPStatus.FORBIDDEN, f"Forbidden Access to {subject}", "forbidden")


def conflict(detail: str, location: str = "") -> Refusal:
    """:param location: URL of the object that is in the way"""
    headers = {"Location": location} if location else {}
    return Refusal(HTTPStatus.CONFLICT, detail, "resource_conflict", headers=headers)


def unsupported(feature: str) -> Refusal:
    """What Confluent Cloud has and the emulator has not."""
    return Refusal(
        HTTPStatus.NOT_IMPLEMENTED,
        f"not supported by the local Confluent emulator: {feature}",
        "not_implemented",
    )


def unauthorized(detail: str) -> Refusal:
    return Refusal(
        HTTPStatus.UNAUTHORIZED,
        detail,
        "unauthorized",
        number=40101,
        headers={"WWW-Authenticate": 'Basic realm="Confluent Cloud"'},
    )


def wrong_field(error: ValidationError) -> Refusal:
    """The first complaint about a body: which field is missing, unknown or read-only."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return bad_request("The body is not valid JSON.")
    # pydantic names the member of a union by its class, which is not a field of the body.
    pointer = "".join(f"/{part}" for part in first["loc"] if not str(part)[:1].isupper())
    reason = _reason(first, "is not a field that can be set: unknown, or read-only")
    return invalid(f"The property '{pointer or '/'}': {reason}", pointer)


def wrong_parameter(error: ValidationError) -> Refusal:
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0])
    reason = _reason(first, "is not a parameter of this operation")
    return bad_request(f"The parameter '{name}': {reason}", parameter=name)


def _reason(complaint: ErrorDetails, unknown: str) -> str:
    reasons = {"extra_forbidden": unknown, "missing": "is required"}
    return reasons.get(complaint["type"], complaint["msg"].removeprefix("Value error, "))


def render(refusal: Refusal, shape: Shape, method: str) -> tuple[str, str | None]:
    """Return the body and the content type; none for 429, which the control plane sends so."""
    status = refusal.status
    too_many = status is HTTPStatus.TOO_MANY_REQUESTS
    if shape is Shape.KAFKA and (too_many or status is HTTPStatus.UNAUTHORIZED):
        title = f"{status.value} {status.phrase}"
        text = (
            f"<html><head><title>Error {title}</title></head><body>"
            f"<h2>HTTP ERROR {title}</h2>{html.escape(refusal.detail)}</body></html>"
        )
        return text, "text/html;charset=iso-8859-1"
    if too_many:
        return "", None
    numbered = {
        Shape.PROVIDER: (HTTPStatus.NOT_FOUND,),
        Shape.CONNECT: (HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR),
        Shape.ROLES: (HTTPStatus.FORBIDDEN,),
    }
    content: dict[str, Any] = {"errors": [_cloud(refusal)]}
    if shape in (Shape.KAFKA, Shape.REGISTRY) or status in numbered.get(shape, ()):
        content = {"error_code": refusal.number or status.value, "message": refusal.detail}
    elif shape is Shape.CONNECT:
        plain = {"code": status.value, "message": refusal.detail}
        is_plain = status is HTTPStatus.BAD_REQUEST and method == "POST"
        content = plain if is_plain else {"error": plain}
    return json.dumps(content), "application/json"


def _cloud(refusal: Refusal) -> dict[str, Any]:
    named = {"pointer": refusal.pointer, "parameter": refusal.parameter}
    source = {key: value for key, value in named.items() if value is not None}
    return {
        "id": uuid.uuid4().hex,
        "status": str(refusal.status.value),
        "code": refusal.code,
        "title": refusal.status.phrase,
        "detail": refusal.detail,
        **({"source": source} if source else {}),
    }
