"""One operation of an API: where it is, who may call it, what it takes, and what it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from topicberg_local.emulators.confluent.account import Account
from topicberg_local.emulators.confluent.errors import Shape
from topicberg_local.emulators.confluent.wire import HttpResponse, Page, Query, listing
from topicberg_local.emulators.store import Stored

if TYPE_CHECKING:
    from topicberg_local.emulators.confluent.generators import Generators
    from topicberg_local.emulators.confluent.materialization import Tables

_PARAMETER = re.compile(r"{(\w+)}")


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
    ) -> HttpResponse:
        """The asked page of a list."""
        page: Page = self.query
        show = partial(document, self)
        return listing(objects, page, self.url, self.parameters, api_version, kind, show)


@dataclass(frozen=True)
class Operation:
    """``path``: a parameter takes one part of it, ``rest`` all the rest.

    ``success``: the status of an answer that says none. ``rated``: answers tell the limits.

    ``invalid_is_400``: the API knows no 422.
    """

    method: str
    path: str
    handler: Callable[[Call], HttpResponse]
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
        parts = _PARAMETER.split(self.path)
        return re.compile(
            "".join(
                f"(?P<{part}>{'.+' if part == 'rest' else '[^/]+'})"
                if number % 2
                else re.escape(part)
                for number, part in enumerate(parts)
            )
        )
