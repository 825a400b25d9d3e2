"""The user at the other end of a connection on this machine.

Linux knows the user id that owns each TCP socket of the network namespace. A client cannot choose
it, so this needs no secret.

Source: proc(5), ``/proc/net/tcp``; Linux, ``net/ipv4/tcp_ipv4.c`` (``get_tcp4_sock``).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Set
from pathlib import Path

from topicberg.security.guard import Address, IsOwn
from topicberg_local import sock_diag
from topicberg_local.sock_diag import NO_ADDRESS

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Where Linux lists all sockets, for those kernels that are not asked for one. The second file
includes IPv4 connections of clients whose sockets support both."""
_ESTABLISHED, _LISTEN = 1, 10
"""In every other state the process may have closed the socket, which is then listed as root's."""
_NO_PROCESS = 0
"""The inode of a socket that its process has closed or not yet accepted: it is listed as root's."""

_LISTENING = ("127.0.0.1", "0.0.0.0", "::")  # noqa: S104  where a server may listen


def is_supported() -> bool:
    """Return whether this operating system reports the owner of a socket."""
    return _TABLES[0].exists()


def owner(client: Address, server: Address) -> int | None:
    """Return the user id that owns the client's socket of a connection.

    :returns: None if no such connection is open on this machine
    """
    if sock_diag.is_supported():
        client_socket = sock_diag.find(client, server)
    else:
        client_socket = _listed(
            _ESTABLISHED, {(_v4(client), _v4(server)), (_v6(client), _v6(server))}
        )
    if client_socket is None:
        return None
    state, uid, inode = client_socket
    return uid if state == _ESTABLISHED and inode != _NO_PROCESS else None


def _listed(wanted: int, ends: Set[tuple[str, str]]) -> tuple[int, int, int] | None:
    """Return state, user id and inode of a socket that is in a state.

    :param ends: pairs of local and remote address, of which it has one
    """
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, state, _, _, _, uid, _, inode, *_ = line.split()
            if (local, remote) in ends and int(state, 16) == wanted:
                return int(state, 16), int(uid), int(inode)
    return None


def is_own(client: Address, server: Address) -> bool:
    """Return whether the client is a process of this process's user, or of root."""
    return owner(client, server) in (os.geteuid(), 0)


def own_client() -> IsOwn | None:
    """Return :func:`is_own`; None: this operating system does not report the owner of a socket."""
    return is_own if is_supported() else None


def is_own_socket(accepted: socket.socket) -> bool:
    """Return whether the client of an accepted connection is a process of this user, or of root.

    Another process may get the port of a client that has left; so the connection must be open
    after the table was read.
    """
    if not is_own(accepted.getpeername(), accepted.getsockname()):
        return False
    state = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state == _ESTABLISHED


def is_own_server(port: int) -> bool:
    """Return whether what listens on a port of this machine is of this user, or of root."""
    if sock_diag.is_supported():
        listener = sock_diag.find(("127.0.0.1", port), NO_ADDRESS)
    else:
        ends = {(_v4((host, port)), _v4(NO_ADDRESS)) for host in _LISTENING}
        ends |= {(_v6((host, port)), _v6(("::", 0))) for host in _LISTENING}
        listener = _listed(_LISTEN, ends)
    return listener is not None and listener[0] == _LISTEN and listener[1] in (os.geteuid(), 0)


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
