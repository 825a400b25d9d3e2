"""Models that hold secrets, which are redacted as soon as a model is created.

They are not in :mod:`topicberg.security.redaction`: every command imports that module, for its
errors, and pydantic takes longer to import than the command line itself.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, SecretStr

from topicberg.security.redaction import remember

_IDENTIFIERS = ("s3_access_key", "aws_access_key")
"""Fields that name a key and do not hold its secret."""


class HoldsSecrets(BaseModel):
    """A model whose secrets are redacted from every message of this process."""

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        remember(
            value.get_secret_value()
            for name, value in self
            if isinstance(value, SecretStr) and name not in _IDENTIFIERS
        )
