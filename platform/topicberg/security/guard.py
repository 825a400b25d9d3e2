"""A guard for HTTP servers on a user's machine: it refuses web pages and other users.

A server that listens on 127.0.0.1 can be reached by every page in the user's browser and by every
user of the machine. The guard accepts a request only if

- its ``Host`` is a name of this server: after DNS rebinding it is the attacker's;
- it does not come from another page: the browser sets ``Origin`` and ``Sec-Fetch-Site``, and no
  page can change them. Links to a page are accepted, because they change nothing;
- a change is a ``POST`` (or ``PUT``, …) with JSON, which no page can send to another origin without
  a preflight request, if the server requires that;
- the client is a process of the same user, if the server requires that.

Sources: Fetch Standard, "CORS-safelisted request-header" and "``Origin`` header"; W3C, Fetch
Metadata Request Headers; RFC 9110, 7.2 (``Host``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

Address = tuple[str, int]
"""IP address and port."""
IsOwn = Callable[[Address, Address], bool]
"""Whether the client of a connection, by its two ends, is a process of this user, or of root."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?(?::(?P<port>\d+))?")
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
PROTECTION = {
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every response: no other page may frame it, load it, or keep a reference to it."""


@dataclass(frozen=True)
class Request:
    """The parts of a request that the guard checks. Names of headers are in lower case."""

    method: str
    headers: Mapping[str, list[str]]
    client: Address | None = None
    server: Address | None = None

    def header(self, name: str) -> str | None:
        """Return the value of a header; several values are joined, which no rule accepts."""
        values = self.headers.get(name)
        return ", ".join(values).strip().lower() if values else None


@dataclass(frozen=True)
class Guard:
    """The rules of one server.

    :param hosts: names, without ports, by which clients reach the server
    :param is_own: refuse the clients of which it says no
    :param json_only: requests that may change something must have JSON as their content type
    :param any_address: accept every IP address as ``Host`` too: no rebound name is one
    """

    hosts: frozenset[str] = LOOPBACK
    is_own: IsOwn | None = None
    json_only: bool = False
    any_address: bool = False

    def refusal(self, request: Request) -> str | None:
        """Return why a request must be refused, or None if it is accepted."""
        host = _HOST.fullmatch(request.header("host") or "")
        if host is None or not (host["name"] in self.hosts or self._is_address(host["name"])):
            return "this server is not known by that Host"
        origin = request.header("origin")
        if origin is not None and not _is_same(origin, host):
            return "the request comes from a page of another origin"
        site = request.header("sec-fetch-site")
        if site not in (None, "same-origin", "none") and not _follows_link(request):
            return "the request comes from a page of another origin"
        if self.json_only and request.method not in _READS:
            media_type = (request.header("content-type") or "").partition(";")[0].strip()
            if media_type != "application/json":
                return "a request that changes something must have Content-Type: application/json"
        if self.is_own is not None:
            client, server = request.client, request.server
            if client is None or server is None or not self.is_own(client, server):
                return "the client is a process of another user"
        return None

    def _is_address(self, name: str) -> bool:
        if not self.any_address:
            return False
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _is_same(origin: str, host: re.Match[str]) -> bool:
    """Return whether an ``Origin`` is the server itself.

    A proxy may have terminated TLS, so any scheme is accepted.
    """
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in _PORTS or parts.path or parts.query or parts.fragment:
        return False
    default = _PORTS[parts.scheme]
    name = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc
    return name == host["name"] and (port or default) == int(host["port"] or default)


def _follows_link(request: Request) -> bool:
    return (
        request.method == "GET"
        and request.header("sec-fetch-mode") == "navigate"
        and request.header("sec-fetch-dest") == "document"
    )
