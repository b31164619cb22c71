"""TLS over a non-blocking socket, and whom a client trusts (Kafka: SslTransportLayer, SslFactory).

Stores are PEM, in files or in the settings themselves. Without a truststore the system's authorities count.
OpenSSL takes one record at a time from the socket; what is decrypted and not yet read shows in `pending`.
"""

import os
import socket
import ssl
from collections.abc import Sequence

from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import AuthenticationFailed, ConfigError
from mpbroker.protocol.wire import Buffer

# A write that did not fit has to be repeated with the same bytes, so they are few.
WRITE_BYTES = 64 << 10
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsTransport:
    """`host` is the name that the broker's certificate must have."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.ready = False
        self.wants_write = False
        self._context = context
        self._host = host
        self._tls: ssl.SSLSocket | None = None
        # Nothing was received yet: with TLS 1.3 a refused client certificate shows only now.
        self._silent = True

    def connected(self, sock: socket.socket) -> None:
        # The channel closes its socket itself: this one is a second one on the same connection.
        self._tls = self._context.wrap_socket(
            sock.dup(), server_hostname=self._host, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def handshake(self) -> bool:
        assert self._tls is not None
        self.wants_write = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        except (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError) as error:
            raise OSError(
                "it ended the TLS handshake without a word; if this listener has no TLS, set "
                "security.protocol to PLAINTEXT or SASL_PLAINTEXT"
            ) from error
        except ssl.SSLError as error:
            raise AuthenticationFailed(_handshake_failure(error)) from error
        self.ready = True
        return True

    def receive_into(self, room: memoryview) -> int | None:
        assert self._tls is not None
        try:
            # A read of nothing is the end of the stream; the room is never empty.
            count = self._tls.recv_into(room)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLError as error:
            if self._silent:
                raise AuthenticationFailed(_handshake_failure(error)) from error
            raise OSError(f"TLS failed: {error.reason or error}") from error
        self._silent = False
        return count

    def send(self, segments: Sequence[Buffer]) -> int | None:
        assert self._tls is not None
        try:
            return self._tls.send(memoryview(segments[0])[:WRITE_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLError as error:
            raise OSError(f"TLS failed: {error.reason or error}") from error

    def has_buffered(self) -> bool:
        return self.ready and self._tls is not None and self._tls.pending() > 0

    def close(self) -> None:
        if self._tls is not None:
            self._tls.close()


def _handshake_failure(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {error.verify_message}; set ssl.truststore.location to the PEM "
            "file of its authority"
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "wrong version number" in reason or "record layer" in reason:
        return "it does not speak TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
    if "certificate required" in reason or "alert" in reason:
        return f"it refused the TLS handshake: {reason}; ssl.keystore.location has what it is shown"
    return f"the TLS handshake failed: {reason}"


def client_context(config: ClientConfig) -> ssl.SSLContext:
    """Raises ConfigError, which says which setting is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(config.ssl_endpoint_identification_algorithm)
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols if name in _VERSIONS]
    if not versions:
        raise ConfigError(f"ssl.enabled.protocols names none of {', '.join(_VERSIONS)}")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if config.ssl_cipher_suites:
        _set_ciphers(context, config.ssl_cipher_suites)
    _load_trust(context, config)
    _load_identity(context, config)
    return context


def _set_ciphers(context: ssl.SSLContext, names: Sequence[str]) -> None:
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError as error:
        raise ConfigError(
            f"ssl.cipher.suites: OpenSSL knows none of {', '.join(names)} (names as of `openssl ciphers`)"
        ) from error


def _load_trust(context: ssl.SSLContext, config: ClientConfig) -> None:
    if not config.ssl_truststore_location and not config.ssl_truststore_certificates:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(
            cafile=config.ssl_truststore_location or None,
            cadata=_unfolded(config.ssl_truststore_certificates) or None,
        )
    except (ssl.SSLError, OSError, ValueError) as error:
        where = config.ssl_truststore_location or "ssl.truststore.certificates"
        raise ConfigError(f"{where} has no certificates in PEM: {error}") from error


def _load_identity(context: ssl.SSLContext, config: ClientConfig) -> None:
    chain = config.ssl_certificate_location or config.ssl_keystore_location
    password = config.ssl_key_password or None
    try:
        if config.ssl_keystore_key:
            pem = _unfolded(config.ssl_keystore_key) + "\n" + _unfolded(config.ssl_keystore_certificate_chain)
            _load_from_memory(context, pem, password)
        elif chain:
            context.load_cert_chain(chain, config.ssl_key_location or None, lambda: password or "")
    except (ssl.SSLError, OSError, ValueError) as error:
        where = chain or "ssl.keystore.key"
        raise ConfigError(
            f"{where}: no private key with its certificate in PEM, or ssl.key.password is wrong "
            f"({getattr(error, 'reason', None) or error})"
        ) from error


def _load_from_memory(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    """OpenSSL wants a file; one that never touches a disk."""
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", None, lambda: password or "")
    finally:
        os.close(descriptor)


def _unfolded(pem: str) -> str:
    """In a properties file PEM often stands in one line, blanks for line ends."""
    text = pem.strip()
    if "\n" in text:
        return text
    return "\n".join(
        part.strip() if part.startswith("-----") else part.strip().replace(" ", "\n")
        for part in _pem_parts(text)
    )


def _pem_parts(text: str) -> list[str]:
    """The lines that begin and end a block, and what is between them."""
    parts: list[str] = []
    while text:
        end = text.find("-----", 5) + 5 if text.startswith("-----") else text.find("-----")
        if end <= 4:
            return [*parts, text]
        parts.append(text[:end])
        text = text[end:].lstrip()
    return parts
