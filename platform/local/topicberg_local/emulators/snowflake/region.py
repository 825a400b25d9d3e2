"""The region of the account."""

from __future__ import annotations

import os


def region() -> str:
    return os.environ.get("AWS_REGION", "us-east-1")
