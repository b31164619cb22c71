"""A TLS client that asks for new keys as often as it likes, which Python's ssl module cannot."""

from __future__ import annotations

import _ssl
import ctypes
import socket
from pathlib import Path

_ROOM = 1 << 20
_PEM = 1


class KeyChanger:
    """Speaks TLS 1.3 over a non-blocking socket, with the certificate of a PEM file, and verifies nobody."""

    def __init__(self, sock: socket.socket, store: Path) -> None:
        self._sock = sock
        # OpenSSL itself, the one that Python has loaded already.
        self._lib = lib = ctypes.CDLL(_ssl.__file__)
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_s_mem", "BIO_new"):
            getattr(lib, name).restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_client_method())))
        assert lib.SSL_CTX_use_certificate_chain_file(self._context, bytes(store)) == 1
        assert lib.SSL_CTX_use_PrivateKey_file(self._context, bytes(store), _PEM) == 1
        self._tls = ctypes.c_void_p(lib.SSL_new(self._context))
        memory = ctypes.c_void_p(lib.BIO_s_mem())
        self._incoming, self._outgoing = (ctypes.c_void_p(lib.BIO_new(memory)) for _ in range(2))
        lib.SSL_set_bio(self._tls, self._incoming, self._outgoing)
        lib.SSL_set_connect_state(self._tls)
        self._room = ctypes.create_string_buffer(_ROOM)

    def shake(self) -> bool:
        """A step of the handshake; whether it is done."""
        try:
            data = self._sock.recv(_ROOM)
            self._lib.BIO_write(self._incoming, data, len(data))
        except BlockingIOError:
            pass
        done = self._lib.SSL_do_handshake(self._tls) == 1
        self._sock.send(self._taken())
        return bool(done)

    def changes(self, count: int, *, asks: bool) -> bytes:
        """So many records with new keys; `asks` for the other side's too (RFC 8446, 4.6.3)."""
        for _ in range(count):
            assert self._lib.SSL_key_update(self._tls, int(asks)) == 1
            assert self._lib.SSL_do_handshake(self._tls) == 1
        return self._taken()

    def close(self) -> None:
        self._lib.SSL_free(self._tls)
        self._lib.SSL_CTX_free(self._context)

    def _taken(self) -> bytes:
        n = self._lib.BIO_read(self._outgoing, self._room, _ROOM)
        return self._room.raw[: max(n, 0)]
