"""Connections by a relay: a program on this host that logs in at brokers for this client.

It listens on a Unix socket. The first frame of a connection names the broker, and has the settings for it.
The relay answers with an error, or with an empty frame after the login.
(Java: io.mpbroker.spark.fetch.Relay.)
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


class RelayTransport(PlaintextTransport):
    """Bytes to and from a broker, after the relay has connected to it and logged in."""

    def __init__(self, config: ClientConfig, server: str, sock: socket.socket) -> None:
        super().__init__(sock)
        self.ready = False
        wanted = json.dumps({"server": server, "settings": dict(config.relay_settings)}).encode()
        self._unsent = memoryview(_LENGTH.pack(len(wanted)) + wanted)
        self._answer = bytearray()

    def handshake(self) -> bool:
        """Continue to send the broker's name, then to receive the answer.

        Returns whether that is over. Raises AuthenticationFailed, OSError.
        """
        if self._unsent:
            sent = self.send([self._unsent]) or 0
            self._unsent = self._unsent[sent:]
        self.wants_write = bool(self._unsent)
        while not self.wants_write and (missing := self._missing()):
            part = bytearray(missing)
            count = self.receive_into(memoryview(part))
            if count is None:
                return False
            if count == 0:
                raise NotConnected("the JVM has no connection to it: see the log of Spark's driver")
            self._answer += part[:count]
        if self.wants_write:
            return False
        if refusal := self._answer[_LENGTH.size :].decode(errors="replace"):
            raise AuthenticationFailed(refusal)
        self.ready = True
        return True

    def _missing(self) -> int:
        """Return how many bytes of the answer have not come."""
        if len(self._answer) < _LENGTH.size:
            return _LENGTH.size - len(self._answer)
        (length,) = _LENGTH.unpack_from(self._answer)
        return int(_LENGTH.size + length - len(self._answer))
