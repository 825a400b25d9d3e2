"""The words of the reasons why a record is malformed."""

from __future__ import annotations

import json
from typing import Any

from pyiceberg import types as T

MAX_LENGTH = 80  # Characters of a value in a message.
_NESTED: dict[type, str] = {T.StructType: "struct", T.ListType: "list", T.MapType: "map"}


class MalformedError(Exception):
    """A record is malformed; the message is the reason."""


def shown(value: Any) -> str:
    """Return a value for a message: text in quotes, bytes in hex, long ones shortened."""
    if isinstance(value, str):
        return shortened(json.dumps(value[: MAX_LENGTH + 1], ensure_ascii=False))
    if isinstance(value, bytes):
        return shortened(f"0x{value[:MAX_LENGTH].hex()}")
    return shortened(str(value))


def not_text(side: str, raw: bytes) -> str | None:
    """Return why a key or a value is not text; None: it is."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return f"the {side} is not text in UTF-8"
    return None


def byte(position: int) -> str:
    """Return a position for a message: bytes are counted from 0, behind the schema id."""
    return f"byte {position}"


def field_at(path: str, kind: object) -> str:
    """Return the place of a value, and its type or a name: ``field price (decimal(4,2))``."""
    return f"field {path} ({type_name(kind)})"


def place_at(path: str) -> str:
    """Return the place of a value of any type: ``field price``; without a path, the record."""
    return f"field {path}" if path else "the record"


def type_name(kind: object) -> str:
    """Return the name of a column's type for a message: ``decimal(4,2)``, ``struct``."""
    return _NESTED.get(type(kind)) or str(kind).replace(", ", ",")


def shortened(text: str, most: int = MAX_LENGTH) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def quoted(message: str, most: int = 200) -> str:
    """Return the message of another program in one line, shortened."""
    return shortened(" ".join(message.split()), most)
