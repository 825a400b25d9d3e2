"""One TCP socket of this machine, asked of Linux by its addresses.

``/proc/net/tcp`` has the same, but Linux goes through all places of its tables to write it: 4.7 ms
for each question, instead of 0.01 ms.

Source: sock_diag(7); Linux, ``include/uapi/linux/inet_diag.h``.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from functools import cache

from topicberg.security.guard import Address

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
def is_supported() -> bool:
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
