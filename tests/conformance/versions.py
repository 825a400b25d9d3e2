"""What the suite needs of a schema, whatever its format."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from shapes import Shape, Value


@dataclass(frozen=True)
class Decoded:
    """A record.

    :param canonical: its bytes are what a producer writes of the value: nothing is left over,
        nothing is there twice
    """

    value: Value
    canonical: bool = True


@dataclass(frozen=True)
class Version:
    """A version of a schema.

    :param kind: AVRO, JSON or PROTOBUF
    :param shape: None: no table can have its records
    :param identity: the name by which a schema of another subject counts as one of this topic's
    :param encode: a random record without the wire format's five bytes; the number says how
        likely a value is one that no column has
    :param decode: raises :class:`shapes.Malformed`
    """

    text: str
    kind: str
    shape: Shape | None
    identity: str | None
    encode: Callable[[random.Random, float], bytes]
    decode: Callable[[bytes], Decoded]
    source: Any = None
    """What the family made the text of."""
    references: tuple[tuple[str, str], ...] = ()
    """Names and texts of the schemas that it refers to, each after those that it needs."""
    message: str | None = None
    """Protobuf only: the message of the file; None: the first one."""


def some_keys(rng: random.Random, shape: Shape) -> list[dict[str, Any]]:
    """Different keys of the first version of a key's schema."""
    found = []
    for number in range(rng.randint(2, 6)):
        text = "k" * 300 if number == 1 else rng.choice(("", "a", "b", "\u00e9"))
        values = {"string": text, "boolean": bool(number % 2)}
        fields = shape.children.items()
        found.append({name: values.get(one.kind, number % 3) for name, one in fields})
    return found


class Family(Protocol):
    """Random schemas of one format that belong to one subject."""

    def first(self) -> Version: ...

    def next(self, version: Version, *, wild: bool) -> Version | None:
        """A later version; None: this attempt came to nothing.

        :param wild: also one that no reader of the format follows
        """
        ...

    def repaired(self, version: Version) -> Version:
        """A version that every table of ``version`` can follow, with another text."""
        ...

    def foreign(self, version: Version) -> list[Version]:
        """Schemas of other subjects, some of them with the identity of this one's."""
        ...

    def key(self, version: Version) -> Version:
        """A record schema for keys, perhaps with a field that the values have as well."""
        ...

    def next_key(self, version: Version) -> Version:
        """A later version of a key's schema, by which equal keys stay equal."""
        ...

    def spelled(self, version: Version, key: dict[str, Any]) -> bytes:
        """A key of a version, in one of its spellings, without the wire format's five bytes.

        :param key: values by the names of the first version; what the version has beside them
            gets its default
        """
        ...
