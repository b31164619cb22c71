"""A TLS client that says what it likes when it likes: changes of keys, renegotiation, a goodbye.

Python's ssl module has no way to that.
"""

from __future__ import annotations

import _ssl
import contextlib
import ctypes
import socket
from pathlib import Path

_ROOM = 1 << 20
_PEM = 1
TLS_1_2, TLS_1_3 = 0x303, 0x304
_SET_MAX_VERSION = 124


class KeyChanger:
    """Speaks TLS over a non-blocking socket, with the certificates of a PEM file, and verifies nobody."""

    def __init__(self, sock: socket.socket, store: Path, version: int = TLS_1_3) -> None:
        self._sock = sock
        # OpenSSL itself, the one that Python has loaded already.
        self._lib = lib = ctypes.CDLL(_ssl.__file__)
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_s_mem", "BIO_new"):
            getattr(lib, name).restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_client_method())))
        assert lib.SSL_CTX_use_certificate_chain_file(self._context, bytes(store)) == 1
        assert lib.SSL_CTX_use_PrivateKey_file(self._context, bytes(store), _PEM) == 1
        assert lib.SSL_CTX_ctrl(self._context, _SET_MAX_VERSION, ctypes.c_long(version), None) == 1
        self._tls = ctypes.c_void_p(lib.SSL_new(self._context))
        memory = ctypes.c_void_p(lib.BIO_s_mem())
        self._incoming, self._outgoing = (ctypes.c_void_p(lib.BIO_new(memory)) for _ in range(2))
        lib.SSL_set_bio(self._tls, self._incoming, self._outgoing)
        lib.SSL_set_connect_state(self._tls)
        self._room = ctypes.create_string_buffer(_ROOM)

    def speak_over(self, sock: socket.socket) -> None:
        self._sock = sock

    def shake(self) -> bool:
        """A step of the handshake; whether it is done."""
        done = self._lib.SSL_do_handshake(self._tls) == 1
        if said := self._taken():
            self._sock.sendall(said)
        if not done:
            with contextlib.suppress(BlockingIOError):
                data = self._sock.recv(_ROOM)
                self._lib.BIO_write(self._incoming, data, len(data))
        return bool(done)

    def changes(self, count: int, *, asks: bool) -> bytes:
        """Return so many records with new keys; `asks` for the other side's too (RFC 8446, 4.6.3)."""
        for _ in range(count):
            assert self._lib.SSL_key_update(self._tls, int(asks)) == 1
            assert self._lib.SSL_do_handshake(self._tls) == 1
        return self._taken()

    def says(self, data: bytes) -> bytes:
        """A record with data."""
        assert self._lib.SSL_write(self._tls, data, len(data)) == len(data)
        return self._taken()

    def renegotiation(self) -> bytes:
        """A new hello on an old connection (TLS 1.2)."""
        assert self._lib.SSL_renegotiate(self._tls) == 1
        self._lib.SSL_do_handshake(self._tls)
        return self._taken()

    def goodbye(self) -> bytes:
        """The alert close_notify: it will send nothing more, and may still read."""
        self._lib.SSL_shutdown(self._tls)
        return self._taken()

    def hears(self, data: bytes) -> bytes:
        """Return what the other side's bytes say."""
        self._lib.BIO_write(self._incoming, data, len(data))
        heard = b""
        while (n := self._lib.SSL_read(self._tls, self._room, _ROOM)) > 0:
            heard += self._room.raw[:n]
        return heard

    def close(self) -> None:
        self._lib.SSL_free(self._tls)
        self._lib.SSL_CTX_free(self._context)

    def _taken(self) -> bytes:
        out = b""
        while (n := self._lib.BIO_read(self._outgoing, self._room, _ROOM)) > 0:
            out += self._room.raw[:n]
        return out
