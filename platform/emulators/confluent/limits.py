"""How many requests a key may make."""

from __future__ import annotations

import time
from http import HTTPStatus

from emulators.confluent.errors import Refusal

RATE_LIMIT = 2000
"""Requests of one key in :data:`RATE_SECONDS`; one more is answered with 429."""
RATE_SECONDS = 60


class Rate:
    """Counts the requests of each key in the running window."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[int, int]] = {}

    def count(self, key: str) -> dict[str, str]:
        """The headers that tell how much is left; ``Reset`` is in seconds from now.

        :raises Refusal: nothing is left
        """
        now = int(time.time())
        window = now // RATE_SECONDS
        began, used = self._windows.get(key, (window, 0))
        used = used + 1 if began == window else 1
        self._windows[key] = (window, used)
        reset = str((window + 1) * RATE_SECONDS - now)
        headers = {
            "X-RateLimit-Limit": str(RATE_LIMIT),
            "X-RateLimit-Remaining": str(max(0, RATE_LIMIT - used)),
            "X-RateLimit-Reset": reset,
        }
        if used > RATE_LIMIT:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                "Rate Limit Exceeded",
                headers={**headers, "Retry-After": reset},
            )
        return headers
