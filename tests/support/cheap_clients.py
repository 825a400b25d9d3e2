"""What clients of the vendors repeat for each client, done once in a session of tests.

A test that shows a deployment to "another process" creates every client again. Most of what that
costs follows from the descriptions of AWS's services and from the keys alone, which do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import botocore.client
import botocore.endpoint_provider
import botocore.hooks
import botocore.session
from cryptography.hazmat.primitives import serialization
from werkzeug.serving import WSGIRequestHandler

from topicberg.clients.aws import service_models


def install() -> None:
    """Before the clients' modules are imported."""
    session: Any = botocore.session
    hooks: Any = botocore.hooks
    creator: Any = botocore.client.ClientCreator
    provider: Any = botocore.endpoint_provider
    create_loader = session.create_loader
    session.create_loader = lambda path=None: create_loader(path) if path else service_models()
    hooks.accepts_kwargs = _by_function(hooks.accepts_kwargs)
    creator._create_methods = _by_service(creator._create_methods)
    provider.RuleSet = _by_identity(provider.RuleSet)
    for name in ("load_pem_private_key", "load_der_private_key"):
        setattr(serialization, name, lru_cache(maxsize=256)(getattr(serialization, name)))
    # A server of moto keeps a client's connection, as AWS does, and so its thread.
    WSGIRequestHandler.protocol_version = "HTTP/1.1"


def _by_function(accepts_kwargs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A method's signature is that of its function."""
    cached = lru_cache(maxsize=4096)(accepts_kwargs)
    return lambda function: cached(getattr(function, "__func__", function))


def _by_service(create: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The methods of a client get the client as argument."""
    known: dict[str, dict[str, Any]] = {}

    def methods(self: Any, model: Any) -> dict[str, Any]:
        if model.service_name not in known:
            known[model.service_name] = create(self, model)
        return dict(known[model.service_name])

    return methods


def _by_identity(rule_set: type) -> Callable[..., Any]:
    """A loader returns the same rules each time, and nothing changes them."""
    known: dict[tuple[int, int], tuple[Any, Any]] = {}

    def create(**data: Any) -> Any:
        key = (id(data["rules"]), id(data["partitions"]))
        if key not in known:
            known[key] = (rule_set(**data), data)  # with the data, whose ids stay theirs
        return known[key][0]

    return create
