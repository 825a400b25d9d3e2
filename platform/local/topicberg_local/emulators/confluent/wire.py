"""What the bodies and queries of all the APIs are made of, and how lists are cut into pages.

Bodies are strict: no unknown field, no read-only one, no conversion. A field that may be left out
has a default, but never takes ``null`` unless the API says so.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_origin
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field

from topicberg_local.emulators.confluent.errors import bad_request
from topicberg_local.emulators.store import Stored

T = TypeVar("T")
MAX_PAGE = 100
Identifier = Annotated[str, Field(min_length=1, max_length=255)]


def distinct(items: list[T]) -> list[T]:
    """:raises ValueError: an item is there twice"""
    if len(set(items)) != len(items):
        raise ValueError("each item once")
    return items


class Body(BaseModel):
    """A JSON object in a request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


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
        values: dict[str, Any] = {}
        for name, value in items:
            if name in lists:
                values.setdefault(name, []).append(value)
            else:
                values[name] = value
        return cls.model_validate(values)


class Page(Query):
    """Which part of a list."""

    page_size: int = Field(default=10, ge=1, le=MAX_PAGE)
    page_token: str = Field(default="", max_length=255)


class InEnvironment(Query):
    environment: str = Field(min_length=1)


class PageInEnvironment(Page):
    environment: str = Field(min_length=1)


class InCluster(InEnvironment):
    kafka_cluster: str = Field(alias="spec.kafka_cluster", min_length=1)


class PageInCluster(PageInEnvironment):
    kafka_cluster: str = Field(alias="spec.kafka_cluster", min_length=1)


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
) -> HttpResponse:
    """One page of a list, the oldest object first.

    A page goes on after the last object of the one before: what is created or deleted meanwhile
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
        token = _write(_position(shown[-1]))
        metadata["next"] = f"{url}?{urlencode([*rest, ('page_token', token)])}"
    return HttpResponse(
        {
            "api_version": api_version,
            "kind": f"{kind}List",
            "metadata": metadata,
            "data": [document(stored) for stored in shown],
        }
    )


def _position(stored: Stored) -> tuple[float, str]:
    return (stored.created, "/".join(stored.name))


def _write(position: tuple[float, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def _read(token: str) -> tuple[float, str]:
    try:
        created, name = json.loads(base64.urlsafe_b64decode(token))
        return (float(created), str(name))
    except (ValueError, TypeError):
        raise bad_request("The page_token is none of ours.", parameter="page_token") from None
