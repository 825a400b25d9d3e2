"""Requests and responses, checked against botocore's own description of a service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.model import OperationModel, ServiceModel, Shape, StructureShape
from botocore.validate import ParamValidator


@dataclass(eq=False)  # an exception must be hashable
class Refusal(Exception):
    """An answer that is an AWS error: HTTP status, AWS's error code, message."""

    status: HTTPStatus
    code: str
    message: str


_OF_JAVA = {
    r"\uD800\uDC00-\uDBFF\uDFFF": r"\U00010000-\U0010FFFF",
    r"\p{L}": r"\w",
    r"\p{N}": r"\d",
    r"\p{Z}": r"\s",
}
"""Parts of patterns that Python does not know → as it has them."""


@cache
def service(name: str) -> ServiceModel:
    """Return botocore's description of a service, e.g. ``emr-serverless``."""
    model: ServiceModel = botocore.session.get_session().get_service_model(name)
    return model


def routes(model: ServiceModel) -> list[tuple[OperationModel, str, str]]:
    """Return the operations of a REST API, each with its method and a pattern of its path."""

    def pattern(path: str) -> str:
        part = ".+" if path.startswith("/tags/") else "[^/]+"  # an ARN has slashes
        return re.sub(r"\{(\w+)\}", rf"(?P<\1>{part})", path)

    operations = map(model.operation_model, model.operation_names)
    return [(one, one.http["method"], pattern(one.http["requestUri"])) for one in operations]


def serve(
    target: object, operation: OperationModel, given: dict[str, Any], invalid: str, why: str
) -> dict[str, Any]:
    """Answer a request by the method of the operation's name, e.g. ``_create_work_group``.

    :param given: the request's parameters, which become the method's arguments
    :param invalid: the service's error code of a request that its description does not allow
    :param why: why an operation without a method is not served
    :raises Refusal: the request is not valid, or not supported
    """
    act = getattr(target, f"_{xform_name(operation.name)}", None)
    if act is None:
        message = f"the local AWS emulator has no {operation.name}: {why}"
        raise Refusal(HTTPStatus.NOT_IMPLEMENTED, "UnsupportedOperation", message)
    if problem := check(given, operation.input_shape):
        raise Refusal(HTTPStatus.BAD_REQUEST, invalid, problem)
    response: dict[str, Any] = act(**given) or {}
    problem = check(response, operation.output_shape)
    assert not problem, problem  # noqa: S101  a mistake of the emulator
    return response


def check(value: Any, shape: Shape | None) -> str:
    """Return what is wrong with parameters: types, required and unknown names, limits, patterns."""
    if shape is None:
        return ""
    report = ParamValidator().validate(value, shape)
    return "; ".join(filter(None, [report.generate_report(), *_limits(value, shape)]))


def _limits(value: Any, shape: Shape) -> Iterator[str]:
    if isinstance(shape, StructureShape):
        for name in value.keys() - shape.members.keys():
            yield f"{shape.name} has no {name}"
        for name in value.keys() & shape.members.keys():
            yield from _limits(value[name], shape.members[name])
    elif shape.type_name == "list":
        for each in value:
            yield from _limits(each, shape.member)  # type: ignore[attr-defined]
    elif shape.type_name == "map":
        for key, each in value.items():
            yield from _limits(key, shape.key)  # type: ignore[attr-defined]
            yield from _limits(each, shape.value)  # type: ignore[attr-defined]
    elif isinstance(value, str):
        pattern, most = shape.metadata.get("pattern", ""), shape.metadata.get("max")
        for part, ours in _OF_JAVA.items():
            pattern = pattern.replace(part, ours)
        values = shape.metadata.get("enum")
        if pattern and not re.fullmatch(pattern, value):
            yield f"{shape.name}: {value!r} does not match {pattern}"
        if most and len(value) > most:
            yield f"{shape.name}: longer than {most}"
        if values and value not in values:
            yield f"{shape.name}: {value!r} is none of {', '.join(values)}"
    elif shape.type_name in ("integer", "long") and value > shape.metadata.get("max", value):
        yield f"{shape.name}: {value} is more than {shape.metadata['max']}"
