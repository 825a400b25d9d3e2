"""boto3's clients, which check the responses: see :mod:`topicberg.clients.answers`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from topicberg.clients.answers import MISREAD, checked, unusable
from topicberg.errors import raised_in

if TYPE_CHECKING:
    import boto3
    from botocore.model import OperationModel


class _CheckedClient:
    """A base class of boto3's clients."""

    def _make_api_call(self, operation: str, parameters: Mapping[str, Any]) -> Any:
        from botocore.parsers import ResponseParserError

        called = f"{self.meta.service_model.service_id} {operation}"  # type: ignore[attr-defined]
        try:
            answer = super()._make_api_call(operation, parameters)  # type: ignore[misc]
        except ResponseParserError as error:
            raise unusable(called, "a response that AWS's client can read") from error
        except MISREAD as error:
            if not raised_in(error.__traceback__, "botocore.parsers"):
                raise
            raise unusable(called, "an object") from error
        return checked(answer, called)


def aws_session(**how: Any) -> boto3.Session:
    """Return a session whose clients check the responses; ``how``: as of ``boto3.Session``."""
    import boto3  # it takes a fifth of a second, so not when definitions are loaded
    import botocore.session

    own = botocore.session.get_session()
    own.register_component("data_loader", _models())
    session = boto3.Session(botocore_session=own, **how)
    session.events.register(
        "creating-client-class", lambda base_classes, **_: base_classes.insert(0, _CheckedClient)
    )
    session.events.register("after-call", _known)
    return session


@cache
def _models() -> Any:
    """Return one loader of AWS's models: reading them is most of what a client costs."""
    import botocore.session
    from botocore.loaders import Loader

    class Models(Loader):
        @property
        def search_paths(self) -> list[str]:
            """A copy: each session of boto3 appends the same folder."""
            return list(super().search_paths)

    path = botocore.session.get_session().get_config_variable("data_path")
    return Models(extra_search_paths=path.split(os.pathsep) if path else None)


def every(client: Any, operation: str, field: str, **parameters: Any) -> Iterator[Any]:
    """Yield the elements of a list in the responses to an operation, over all of its pages."""
    for page in client.get_paginator(operation).paginate(**parameters):
        yield from page[field]


def _known(http_response: Any, parsed: Any, model: OperationModel, **_: Any) -> None:
    """Refuse unknown fields: AWS omits empty fields, but returns none that its model lacks."""
    if (
        http_response.status_code >= 300
        or model.service_model.metadata["protocol"] != "json"
        or model.output_shape is None
        or not model.output_shape.members
        or set(parsed or ()) - {"ResponseMetadata"}
    ):
        return
    if http_response.content.strip() not in (b"", b"{}"):
        called = f"{model.service_model.service_id} {model.name}"
        raise unusable(called, f"one of {', '.join(model.output_shape.members)}")
