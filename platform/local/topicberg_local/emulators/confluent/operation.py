"""One operation of an API: where it is, who may call it, what it takes, and what it does.

Bodies are strict: no unknown field, no read-only one, no conversion. A field that may be left out
has a default, but never takes ``null`` unless the API says so. Lists are cut into pages.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_origin
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field

from topicberg_local.emulators.confluent.account import Account
from topicberg_local.emulators.confluent.errors import Shape, bad_request
from topicberg_local.emulators.store import Stored

if TYPE_CHECKING:
    from topicberg_local.emulators.confluent.generators import Generators
    from topicberg_local.emulators.confluent.materialization import Tables

T = TypeVar("T")
Identifier = Annotated[str, Field(min_length=1, max_length=255)]


def distinct(items: list[T]) -> list[T]:
    """:raises ValueError: an item is there twice"""
    if len(set(items)) != len(items):
        raise ValueError("each item once")
    return items


class Body(BaseModel):
    """A JSON object in a request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


class SpecBody(Body, Generic[T]):
    """A body that is one object, ``spec``."""

    spec: T


class Reference(Body):
    """Another object; what else the APIs tell of it is read-only."""

    id: Identifier


class ScopedReference(Reference):
    """An object of an environment."""

    environment: Identifier = ""


class Query(BaseModel):
    """The query of a request; a parameter that would be ignored is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, items: Sequence[tuple[str, str]]) -> Query:
        """:raises ValidationError: unknown, missing or wrong parameters"""
        lists = {
            field.alias or name
            for name, field in cls.model_fields.items()
            if get_origin(field.annotation) is list
        }
        values: dict[str, Any] = dict(items)
        values |= {name: [v for key, v in items if key == name] for name in lists & values.keys()}
        return cls.model_validate(values)


class Page(Query):
    """Which part of a list."""

    page_size: int = Field(default=10, ge=1, le=100)
    page_token: str = Field(default="", max_length=255)


class InEnvironment(Query):
    environment: str = Field(min_length=1)


class InCluster(InEnvironment):
    kafka_cluster: str = Field(alias="spec.kafka_cluster", min_length=1)


class PageInEnvironment(Page, InEnvironment):
    """A page of what is in an environment."""


class PageInCluster(Page, InCluster):
    """A page of what is in a cluster."""


@dataclass(frozen=True)
class HttpResponse:
    """A success. ``document``: None: no body; bytes: of ``media_type``, as they are; else JSON.

    ``status``: None: the operation's own.
    """

    document: Any = None
    status: int | None = None
    location: str | None = None
    media_type: str | None = None


def listing(
    objects: Sequence[Stored],
    page: Page,
    url: str,
    query: Sequence[tuple[str, str]],
    api_version: str,
    kind: str,
    document: Callable[[Stored], dict[str, Any]],
) -> dict[str, Any]:
    """One page of a list, the oldest object first.

    A page continues after the last object of the one before: what is created or deleted meanwhile
    neither repeats nor skips another object.

    :param url: of the list, without its query
    """
    ordered = sorted(objects, key=_position)
    if page.page_token:
        after = _read(page.page_token)
        ordered = [stored for stored in ordered if _position(stored) > after]
    shown = ordered[: page.page_size]
    metadata: dict[str, Any] = {"first": url, "total_size": len(objects)}
    if len(ordered) > len(shown):
        rest = [(name, value) for name, value in query if name != "page_token"]
        token = base64.urlsafe_b64encode(json.dumps(_position(shown[-1])).encode()).decode()
        metadata["next"] = f"{url}?{urlencode([*rest, ('page_token', token)])}"
    data = [document(stored) for stored in shown]
    return {"api_version": api_version, "kind": f"{kind}List", "metadata": metadata, "data": data}


def _position(stored: Stored) -> tuple[float, str]:
    return stored.created, "/".join(stored.name)


def _read(token: str) -> tuple[float, str]:
    try:
        created, name = json.loads(base64.urlsafe_b64decode(token))
        return float(created), str(name)
    except (ValueError, TypeError):
        raise bad_request("The page_token is none of ours.", parameter="page_token") from None


class KeyKind(Enum):
    """The kinds of API keys; each opens its own APIs and no other."""

    CLOUD = "Cloud"
    KAFKA = "Kafka"
    SCHEMA_REGISTRY = "Schema Registry"
    TABLEFLOW = "Tableflow"


@dataclass(frozen=True)
class Caller:
    """Who signed a request: the key, and the user or service account that it belongs to."""

    key: str
    principal: str
    resource: str | None


@dataclass(frozen=True)
class Call:
    """A request that has been let in and understood."""

    account: Account
    generators: Generators
    tables: Tables
    caller: Caller
    method: str
    url: str
    """Of the request, without its query."""
    path: dict[str, str] = field(default_factory=dict)
    parameters: Sequence[tuple[str, str]] = ()
    query: Any = None
    body: Any = None
    content: bytes = b""

    def page(
        self,
        objects: Sequence[Stored],
        api_version: str,
        kind: str,
        document: Callable[[Call, Stored], dict[str, Any]],
    ) -> dict[str, Any]:
        """The asked page of a list."""
        show = partial(document, self)
        return listing(objects, self.query, self.url, self.parameters, api_version, kind, show)


@dataclass(frozen=True)
class Operation:
    """``path``: a parameter takes one part of it, ``rest`` all the rest.

    ``handler``: returns an :class:`HttpResponse`, or its document. ``success``: the status of an
    answer that says none. ``rated``: answers tell the limits. ``invalid_is_400``: the API knows no
    422.
    """

    method: str
    path: str
    handler: Callable[[Call], Any]
    success: int = 200
    query: type[Query] = Query
    body: Any = None
    """A :class:`Body`, or anything else that pydantic can validate; None: there is none."""
    key: KeyKind = KeyKind.CLOUD
    shape: Shape = Shape.CLOUD
    rated: bool = True
    invalid_is_400: bool = False
    any_query: bool = False
    """The handler reads the query itself."""

    def match(self, path: str) -> dict[str, str] | None:
        """The parameters in a path; None if it is not this operation's."""
        match = self._pattern.fullmatch(path)
        return match.groupdict() if match else None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern = re.escape(self.path).replace(r"\{rest\}", "(?P<rest>.+)")
        return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", pattern))
