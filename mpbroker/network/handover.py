"""The message that hands a connection from an acceptor to a processor, with its socket (SCM_RIGHTS).

handover.pxd has its layout; the acceptor's and the processor's turns send and receive it.
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
    """Return the next message and its descriptors; None if there is none, or the other end is closed.

    The descriptors are empty if this process has reached its limit.
    """
    try:
        message, fds, _, _ = socket.recv_fds(inbox, HANDOVER.size, FDS_PER_MESSAGE)
    except BlockingIOError:
        return None
    return (message, fds) if message else None


def packed_address(family: int, peer: Any) -> bytes:
    """Return the packed address (4 or 16 bytes) for limits; IPv4 for an IPv4 client of an IPv6 socket.

    Returns b"" for a client by a Unix-domain socket.
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
    """Return host and port for a log line; `peer` as the socket has it."""
    host = address_text(address)
    if not address:
        return host
    return f"[{host}]:{peer[1]}" if ":" in host else f"{host}:{peer[1]}"
