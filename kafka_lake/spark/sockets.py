"""Whose sockets are at a port of this machine.

Linux is asked for the sockets of one port (sock_diag(7)), which takes half a millisecond. Where a kernel or a sandbox
lacks that, its tables of all sockets are read (proc_net(5)), which takes ten.
"""

import os
import socket
import struct
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

Owner = tuple[bytes, int]
"""A socket's own address, 4 or 16 bytes in network order, and the number of the account that it belongs to."""

# Of <linux/netlink.h>, <linux/sock_diag.h> and <linux/inet_diag.h>.
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _DUMP = 4, 20, 0x1, 0x300
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHH8x")
_WANTED = struct.Struct("=BBxxI48x")
_FILTER, _OP = 1, struct.Struct("=BBH")
_AT_LEAST, _AT_MOST = 2, 3
_FOUND = struct.Struct("!4xH2x16s16x4x8x")
_ACCOUNT = 64

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def sockets_at(port: int) -> list[Owner]:
    """Return the TCP sockets whose own port that is, in whatever state they are; none on other systems than Linux."""
    if sys.platform != "linux":
        return []
    try:
        return [each for family in (socket.AF_INET, socket.AF_INET6) for each in _asked(family, port)]
    except OSError:
        return list(listed("\n".join(table.read_text() for table in _TABLES if table.exists()), port))


def listed(tables: str, port: int) -> Iterator[Owner]:
    """Give the sockets at a port that Linux's tables of TCP sockets list. Pure."""
    for line in tables.splitlines():
        columns = line.split()
        if len(columns) < 8 or not columns[0].endswith(":"):
            continue
        address, _, at = columns[1].partition(":")
        if int(at, 16) == port:
            # As words of the machine's byte order.
            bounds = pairwise(range(0, len(address) + 1, 8))
            words = (int(address[start:end], 16).to_bytes(4, sys.byteorder) for start, end in bounds)
            yield b"".join(words), int(columns[7])


def _asked(family: int, port: int) -> Iterator[Owner]:
    """Ask Linux for the sockets at a port; raises OSError if it can't tell."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
        asking.sendto(_question(family, port), (0, 0))
        while True:
            answers = asking.recv(1 << 16)
            while answers:
                length, kind, _ = _HEADER.unpack_from(answers)
                content, answers = answers[_HEADER.size : length], answers[(length + 3) & ~3 :]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", content)[0]
                    raise OSError(code, os.strerror(code))
                at, address = _FOUND.unpack_from(content)
                if at == port:
                    size = 4 if content[0] == socket.AF_INET else 16
                    yield address[:size], struct.unpack_from("=I", content, _ACCOUNT)[0]


def _question(family: int, port: int) -> bytes:
    # Each condition is followed by its number, and says how far it is to what comes if it holds, and if not: the end.
    conditions = ((_AT_LEAST, 20), (_AT_MOST, 12))
    program = b"".join(_OP.pack(code, 8, beyond) + _OP.pack(0, 0, port) for code, beyond in conditions)
    wanted = _WANTED.pack(family, socket.IPPROTO_TCP, 0xFFFFFFFF)
    body = wanted + struct.pack("=HH", 4 + len(program), _FILTER) + program
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST | _DUMP) + body
