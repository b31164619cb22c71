"""The message that hands a connection from an acceptor to a processor, with its socket (SCM_RIGHTS).

handover.pxd has the native side, and explains marks. Python uses this module for marks and for connections
about which the native turns cannot decide.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Any

HANDOVER = struct.Struct("<QHB16s")
MARK = 0xFFFF
FDS_PER_MESSAGE = 1
_V4_MAPPED = bytes(10) + b"\xff\xff"


def pack(ticket: int, listener: int, address: bytes) -> bytes:
    return HANDOVER.pack(ticket, listener, len(address), address)


def unpack(message: bytes) -> tuple[int, int, bytes]:
    """Return (ticket, listener, address) of a message."""
    ticket, listener, length, address = HANDOVER.unpack(message)
    return ticket, listener, address[:length]


def receive(inbox: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next message and its descriptors; None if there is none, or if the other end is closed.

    The list of descriptors is empty if the message is a mark, or if this process may open no more of them.
    """
    try:
        message, fds, _, _ = socket.recv_fds(inbox, HANDOVER.size, FDS_PER_MESSAGE)
    except BlockingIOError:
        return None
    return (message, fds) if message else None


def packed_address(family: int, peer: Any) -> bytes:
    """Return a client's packed address (4 or 16 bytes), by which its connections are limited.

    An IPv4 client of an IPv6 socket has an IPv4 address. A client of a Unix-domain socket has b"".
    """
    if family == socket.AF_INET:
        return socket.inet_aton(peer[0])
    if family == socket.AF_INET6:
        packed = socket.inet_pton(socket.AF_INET6, peer[0].partition("%")[0])
        return packed[12:] if packed.startswith(_V4_MAPPED) else packed
    return b""


def address_text(address: bytes) -> str:
    return str(ipaddress.ip_address(address)) if address else "this host"


def peer_text(address: bytes, peer: Any) -> str:
    """Return a client's host and port for a log line. `peer` is what `getpeername` returns."""
    host = address_text(address)
    if not address:
        return host
    return f"[{host}]:{peer[1]}" if ":" in host else f"{host}:{peer[1]}"
