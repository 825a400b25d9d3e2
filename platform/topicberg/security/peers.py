"""The user at the other end of a connection on this machine.

Linux lists every TCP socket of the network namespace with the user id that owns it. A client cannot
choose what is listed there, so this needs no secret.

Source: proc(5), ``/proc/net/tcp``; Linux, ``net/ipv4/tcp_ipv4.c`` (``get_tcp4_sock``).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The second file includes IPv4 connections of clients whose sockets support both."""
_ESTABLISHED, _LISTEN = "01", "0A"
"""In every other state the process may have closed the socket, which is then listed as root's."""
_NO_PROCESS = "0"
"""The inode of a socket that its process has closed or not yet accepted: it is listed as root's."""

_LISTENING = ("127.0.0.1", "0.0.0.0", "::")  # noqa: S104  where a server may listen

Address = tuple[str, int]
"""IP address and port."""


def is_supported() -> bool:
    """Return whether this operating system reports the owner of a socket."""
    return _TABLES[0].exists()


def owner(client: Address, server: Address) -> int | None:
    """Return the user id that owns the client's socket of a connection.

    :returns: None if no such connection is open on this machine
    """
    pairs = {(_v4(client), _v4(server)), (_v6(client), _v6(server))}
    for local, remote, state, uid, inode in _sockets():
        if state == _ESTABLISHED and inode != _NO_PROCESS and (local, remote) in pairs:
            return int(uid)
    return None


def _sockets() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield local and remote address, state, user id and inode of each TCP socket."""
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, state, _, _, _, uid, _, inode, *_ = line.split()
            yield local, remote, state, uid, inode


def is_own(client: Address, server: Address) -> bool:
    """Return whether the client is a process of this process's user, or of root."""
    return owner(client, server) in (os.geteuid(), 0)


def is_own_socket(accepted: socket.socket) -> bool:
    """Return whether the client of an accepted connection is a process of this user, or of root.

    Another process may get the port of a client that has left; so the connection must be open
    after the table was read.
    """
    if not is_own(accepted.getpeername(), accepted.getsockname()):
        return False
    state = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state == int(_ESTABLISHED, 16)


def is_own_server(port: int) -> bool:
    """Return whether what listens on a port of this machine is of this user, or of root."""
    places = {form((address, port)) for address in _LISTENING for form in (_v4, _v6)}
    for local, _, state, uid, _ in _sockets():
        if state == _LISTEN and local in places:
            return int(uid) in (os.geteuid(), 0)
    return False


def _v4(address: Address) -> str:
    return _formatted(socket.AF_INET, *address)


def _v6(address: Address) -> str:
    host, port = address
    return _formatted(socket.AF_INET6, host if ":" in host else f"::ffff:{host}", port)


def _formatted(family: int, host: str, port: int) -> str:
    """Format an address as the kernel does: words of 32 bits in the machine's own byte order.

    Empty: it is not of this family.
    """
    try:
        packed = socket.inet_pton(family, host)
    except OSError:
        return ""
    words = "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
    return f"{words}:{port:04X}"
