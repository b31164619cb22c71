"""TLS on a non-blocking socket, with OpenSSL between two buffers in memory (Kafka: SslTransportLayer).

OpenSSL on the socket itself would take two system calls to read a record of 16 KiB and one to write it; here
one reads up to 64 KiB, and one writes all records that the caller has encrypted. Decrypted bytes go straight
into the caller's memory. What is encrypted and not yet written is one chunk at most: who does not read costs
that and no more, and who has read keeps the room of one record.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from typing import Any

CIPHERTEXT_BYTES = 64 << 10
# So often the socket is read for nothing that the caller gets. A record has 16 KiB; what brings none at all
# is TLS's own, changes of keys for example, which cost the sender less than us.
FILLS_MAX = 4
# The most plaintext of a record (RFC 8446, 5.1).
RECORD_BYTES = 16 << 10
# TLS's own answers, to changes of keys for example, to a client that reads none of them.
UNREAD_BYTES_MAX = 64 << 10
# Of all pipes of the process: it is empty again before anybody else needs it.
_received = bytearray(CIPHERTEXT_BYTES)
_received_view = memoryview(_received)


class MoreLater(Exception):
    """The socket has more, which no edge will tell: it is the others' turn first."""


class TlsPipe:
    """The server's side. `recv`, `recv_into` and `send` behave as a non-blocking socket's."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # Records that wait to be written, the first maybe in part.
        self._left: list[bytes | memoryview] = []
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def handshake(self) -> bool:
        """Whether it is done. Raises ssl.SSLError, after the alert if that could go; MoreLater."""
        for _ in range(FILLS_MAX):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                if not self.flush() or not self._fill():
                    return False
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()
                raise
            else:
                return self.flush()
        raise MoreLater

    def flush(self) -> bool:
        """Whether all that was encrypted is written."""
        while self._left or self._outgoing.pending:
            if not self._left:
                self._take()
            try:
                sent = self._sock.sendmsg(self._left)
            except BlockingIOError:
                return False
            self._drop(sent)
        return True

    def encrypt(self, data: memoryview) -> None:
        """All of it; `flush` writes it. Record by record, for what OpenSSL's buffer once held it keeps."""
        for at in range(0, len(data), RECORD_BYTES):
            self.tls.write(data[at : at + RECORD_BYTES])
            self._take()

    def _take(self) -> None:
        if self._outgoing.pending:
            self._left.append(self._outgoing.read())

    def _drop(self, sent: int) -> None:
        whole = 0
        for piece in self._left:
            if sent < len(piece):
                break
            sent -= len(piece)
            whole += 1
        del self._left[:whole]
        if sent:
            self._left[0] = memoryview(self._left[0])[sent:]

    def send(self, data: bytes | bytearray) -> int:
        """All or BlockingIOError, if earlier bytes wait; `flush` tells when they are written."""
        if not self.flush():
            raise BlockingIOError
        self.encrypt(memoryview(data))
        self.flush()
        return len(data)

    def recv_into(self, room: memoryview) -> int:
        """0: the end. Raises BlockingIOError when nothing is left, here or in the socket; MoreLater."""
        if self._outgoing.pending > UNREAD_BYTES_MAX:
            raise ConnectionAbortedError(errno.ECONNABORTED, "it reads nothing of what TLS answers it")
        for _ in range(FILLS_MAX):
            try:
                n: Any = self.tls.read(len(room), room)
                return int(n)
            except ssl.SSLWantReadError:
                if not self._fill():
                    raise BlockingIOError from None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return 0
        raise MoreLater

    def recv(self, size: int) -> bytes:
        data = bytearray(size)
        return bytes(data[: self.recv_into(memoryview(data))])

    def close(self) -> None:
        """Says goodbye if that needs no waiting; the socket stays the caller's."""
        with contextlib.suppress(OSError, ValueError):
            self.tls.unwrap()
        with contextlib.suppress(OSError):
            self.flush()

    def _fill(self) -> bool:
        """Takes what the socket has, or its end; False: nothing yet."""
        try:
            n = self._sock.recv_into(_received)
        except BlockingIOError:
            return False
        if n:
            self._incoming.write(_received_view[:n])
        else:
            self._incoming.write_eof()
        return True
