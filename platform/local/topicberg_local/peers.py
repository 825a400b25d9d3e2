"""The user at the other end of a connection on this machine.

Linux knows the user id that owns each TCP socket of the network namespace. A client cannot choose
it, so this needs no secret. Linux is asked for one socket by its addresses, in 0.01 ms; where it
does not answer, all sockets are read from ``/proc/net/tcp``, which takes 4.7 ms: Linux goes through
all places of its tables to write it.

Source: sock_diag(7), proc(5); Linux, ``include/uapi/linux/inet_diag.h`` and
``net/ipv4/tcp_ipv4.c`` (``get_tcp4_sock``).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Set
from functools import cache
from pathlib import Path

from topicberg.security.guard import Address, IsOwn

NO_ADDRESS = "0.0.0.0", 0  # noqa: S104  of the other end of a socket that listens
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR = 4, 20, 2
_NLM_F_REQUEST, _ANY = 1, 0xFFFFFFFF
_HEADER, _REQUEST, _SOCKET = (struct.Struct(one) for one in ("=IHHII", "=BBBBI", "=BBBB48xIIIII"))


def find(local: Address, remote: Address) -> tuple[int, int, int] | None:
    """Return state, user id and inode of a socket; None: there is none.

    :param local: of a socket that listens: any address at which it does
    :raises OSError: Linux does not answer such questions here
    """
    try:
        family, ends = _packed(local, remote)
    except (OSError, struct.error):  # these are no addresses
        return None
    query = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY)
    body = query + ends + struct.pack("=III", 0, _ANY, _ANY)
    request = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as channel:
        channel.send(request + body)
        response = channel.recv(8192)
    if _HEADER.unpack_from(response)[1] == _NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", response, _HEADER.size)
        if code == -errno.ENOENT:
            return None
        raise OSError(-code, os.strerror(-code))
    _, state, _, _, _, _, _, uid, inode = _SOCKET.unpack_from(response, _HEADER.size)
    return state, uid, inode


@cache
def has_sock_diag() -> bool:
    """Return whether Linux answers: it does not if its module ``tcp_diag`` is missing."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            listener = find(server.getsockname(), NO_ADDRESS)
            return listener is not None and listener[2] == os.fstat(server.fileno()).st_ino
    except (OSError, AttributeError):  # AttributeError: the system is not Linux
        return False


def _packed(local: Address, remote: Address) -> tuple[int, bytes]:
    """Return the family and both addresses; those of IPv4 in IPv6 are found as IPv4."""
    hosts = [address[0].removeprefix("::ffff:") for address in (local, remote)]
    family = socket.AF_INET if all("." in host for host in hosts) else socket.AF_INET6
    packed = (socket.inet_pton(family, host).ljust(16, b"\0") for host in hosts)
    return family, struct.pack("!HH", local[1], remote[1]) + b"".join(packed)


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
    """Return the user id that owns the client's socket; None: no such connection is open here."""
    if has_sock_diag():
        client_socket = find(client, server)
    else:
        client_socket = _listed(
            _ESTABLISHED, {(_v4(client), _v4(server)), (_v6(client), _v6(server))}
        )
    if client_socket is None:
        return None
    state, uid, inode = client_socket
    return uid if state == _ESTABLISHED and inode != _NO_PROCESS else None


def _listed(wanted: int, ends: Set[tuple[str, str]]) -> tuple[int, int, int] | None:
    """Return state, user id and inode of a socket that has one of these ends and is in a state."""
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
    if has_sock_diag():
        listener = find(("127.0.0.1", port), NO_ADDRESS)
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
    """Format an address as the kernel does, in the machine's byte order; empty: it cannot."""
    try:
        packed = socket.inet_pton(family, host)
    except OSError:
        return ""
    words = "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
    return f"{words}:{port:04X}"
