"""Connects through a relay: a program on this host that logs in at brokers for this client.

It listens on a Unix socket. The first frame of a connection has the settings of a client, as JSON. The relay
answers with an error, or with an empty frame once it has logged in. (Java: io.mpbroker.spark.fetch.Relay.)
"""

from __future__ import annotations

import json
import socket
import struct

from mpbroker.client.config import ClientConfig
from mpbroker.client.connection import NotConnected
from mpbroker.client.errors import AuthenticationFailed
from mpbroker.client.transport import PlaintextTransport

_LENGTH = struct.Struct(">i")
# Longer than the relay tries to log in.
_ANSWERS_WITHIN_S = 60.0


def logged_in(config: ClientConfig, server: str, sock: socket.socket) -> PlaintextTransport:
    """Wait until the relay has logged in at the broker; return a transport to the broker.

    Raises AuthenticationFailed, OSError.
    """
    wanted = json.dumps({**dict(config.relay_settings), "bootstrap.servers": server}).encode()
    sock.settimeout(_ANSWERS_WITHIN_S)
    with sock.makefile("rwb") as relay:
        relay.write(_LENGTH.pack(len(wanted)) + wanted)
        relay.flush()
        length = relay.read(_LENGTH.size)
        answer = relay.read(*_LENGTH.unpack(length)) if len(length) == _LENGTH.size else b"lost by the JVM"
    sock.setblocking(False)
    kind, _, why = answer.decode(errors="replace").partition(" ")
    if kind == "refused":
        raise AuthenticationFailed(why)
    if kind:
        raise NotConnected(why)
    return PlaintextTransport(sock)
