"""How the keys of an upsert table are compared: a table property, which its commits change.

The summary of each batch says which keys it took as equal. If the newest batch of a table took
others, or compared bytes, then the next batch rebuilds the index and deletes the rows whose keys
newer rows have.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ValidationError

KEYS = "topicberg.keys"
"""Table property: see :class:`KeyState`."""


class KeyState(BaseModel):
    """How decoded keys are compared, and since when."""

    columns: list[str]
    """The fields of the newest key schema."""
    rebuilt_at_ms: int | None = None
    """When the index was rebuilt because other keys became equal; None: never."""
    rows_removed: int = 0
    """Rows that were deleted then: a newer row had their key."""

    @classmethod
    def load(cls, properties: Mapping[str, str]) -> KeyState | None:
        """Return it from the properties of a table, or None."""
        try:
            return cls.model_validate_json(properties[KEYS])
        except (KeyError, ValidationError):  # ValidationError: written manually
            return None
