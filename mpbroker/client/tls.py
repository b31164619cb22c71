"""TLS over a non-blocking socket, the client's side (Kafka: SslTransportLayer)."""

import socket
import ssl
from collections.abc import Sequence

from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import AuthenticationFailed, ClientConfigError
from mpbroker.config.keys import Secret
from mpbroker.config.security import SecuritySettings
from mpbroker.protocol.wire import Buffer
from mpbroker.security.tls import TlsError, load_client_context

# OpenSSL has a write that did not fit repeated with the same bytes, so they are few.
WRITE_BYTES = 64 << 10
# OpenSSL's numbers for X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
MISMATCHES = (62, 64)


class TlsTransport:
    """TLS on a connected socket; `host` is the name that must be in the broker's certificate."""

    # OpenSSL reads one record at a time, and keeps the rest of its content.
    buffers = True

    def __init__(self, context: ssl.SSLContext, host: str, sock: socket.socket) -> None:
        self.ready = False
        self.wants_write = False
        self._host = host
        # The connection closes its own socket; this is a second one for the same stream.
        self._tls = context.wrap_socket(
            sock.dup(), server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )
        # Nothing was received yet: with TLS 1.3 a refusal of our certificate shows only on the first read.
        self._silent = True

    def handshake(self) -> bool:
        self.wants_write = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError, BrokenPipeError) as error:
            # Python before 3.11.4 reports the end of the stream as a zero return.
            raise OSError(
                "it ended the TLS handshake without a reason; if this listener has no TLS, set "
                "security.protocol to PLAINTEXT or SASL_PLAINTEXT"
            ) from error
        except ssl.SSLError as error:
            raise AuthenticationFailed(_handshake_failure(error, self._host)) from error
        self.ready = True
        return True

    def receive_into(self, room: memoryview) -> int | None:
        try:
            # 0 bytes are the end of the stream; the room is never empty.
            count = self._tls.recv_into(room)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLError as error:
            if self._silent:
                raise AuthenticationFailed(_handshake_failure(error, self._host)) from error
            raise OSError(f"TLS failed: {error.reason or error}") from error
        self._silent = False
        return count

    def send(self, segments: Sequence[Buffer]) -> int | None:
        try:
            return self._tls.send(memoryview(segments[0])[:WRITE_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            if self._silent:
                # The broker may have sent the reason and closed before it was read.
                self.receive_into(memoryview(bytearray(1)))
            if isinstance(error, ssl.SSLError):
                raise OSError(f"TLS failed: {error.reason or error}") from error
            raise

    def close(self) -> None:
        self._tls.close()


def _handshake_failure(error: ssl.SSLError, host: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        if error.verify_code in MISMATCHES:
            return (
                f"its certificate is for another name: {why}; connect by a name of the certificate, "
                f"or add {host} to its subjectAltName"
            )
        return (
            f"its certificate is not trusted: {why}; set ssl.truststore.location to the PEM "
            "file of its authority"
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "wrong version number" in reason or "record layer" in reason:
        return "it does not speak TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
    if "certificate required" in reason or "alert" in reason:
        return f"it refused the TLS handshake: {reason}; ssl.keystore.location has the certificate"
    return f"the TLS handshake failed: {reason}"


def client_context(config: ClientConfig) -> ssl.SSLContext:
    """Build the TLS context of a client. Raises ClientConfigError, whose text names the wrong setting."""
    settings = SecuritySettings(
        ssl_truststore_location=config.ssl_truststore_location or None,
        ssl_truststore_password=_secret(config.ssl_truststore_password),
        ssl_truststore_certificates=_secret(config.ssl_truststore_certificates),
        ssl_keystore_location=config.ssl_keystore_location or None,
        ssl_keystore_password=_secret(config.ssl_keystore_password),
        ssl_keystore_key=_secret(config.ssl_keystore_key),
        ssl_keystore_certificate_chain=_secret(config.ssl_keystore_certificate_chain),
        ssl_key_password=_secret(config.ssl_key_password),
        ssl_enabled_protocols=config.ssl_enabled_protocols,
        ssl_cipher_suites=config.ssl_cipher_suites,
    )
    try:
        return load_client_context(
            settings, check_hostname=bool(config.ssl_endpoint_identification_algorithm)
        )
    except TlsError as error:
        raise ClientConfigError(str(error)) from error


def _secret(text: str) -> Secret | None:
    return Secret(text) if text else None
