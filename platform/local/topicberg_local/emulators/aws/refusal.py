"""An answer of the AWS emulator that is an error."""

from __future__ import annotations

from http import HTTPStatus


class Refusal(Exception):
    """An answer that is an AWS error: HTTP status, AWS's error code, message."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
