"""Whether a service answers: one small request in its own protocol, with a deadline.

A process that is stopped (SIGSTOP), or hangs, keeps its port: the kernel accepts connections for
it. Only an answer says that it lives. The requests carry no secret: a refusal to log in is an
answer as well. They cost the service and this process about a millisecond.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from urllib.parse import urlsplit

SECONDS = 5.0  # The deadline of a request.

Check = Callable[[float], str | None]
"""Gets the deadline in seconds; returns why the service does not answer, or None."""


def answers_http(url: str) -> Check:
    """Return a check of a server of HTTP: any response is an answer, except a failure (5xx)."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection

    def check(seconds: float) -> str | None:
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
        try:
            connection.request("GET", parts.path or "/")
            response = connection.getresponse()
            body = response.read(1000).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return reason(error, seconds)
        finally:
            connection.close()
        if response.status >= 500:
            return f"HTTP status {response.status}: {body.strip()[:300] or response.reason}"
        return None

    return check


def reason(error: Exception, seconds: float) -> str:
    """Return why a request has no answer before its deadline, in seconds."""
    match error:
        case TimeoutError():
            return f"no answer within {seconds:.0f} s"
        case ConnectionRefusedError():
            return "nothing listens on its port"
    return str(error) or type(error).__name__
