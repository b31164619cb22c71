"""TLS contexts from Kafka's `ssl.` settings: for servers by `security.openssl`, for clients by Python's ssl.

Keys and certificates are PEM, in files or in the settings. PKCS12 is converted in memory if the package
`cryptography` is installed. JKS is refused; the error has the commands that convert it. `Keystore` notices
changed files: new connections use the new certificate, open connections keep the old one.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mpbroker.config.keys import Secret
from mpbroker.config.security import SecuritySettings
from mpbroker.security.openssl import VERIFY_NONE, VERIFY_REQUESTED, VERIFY_REQUIRED, ServerContext

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH = {"none": VERIFY_NONE, "requested": VERIFY_REQUESTED, "required": VERIFY_REQUIRED}
# TLS 1.3's suites. A client cannot choose among them: Python's ssl module has no way to.
TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_EXCHANGES = ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
_CIPHERS = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
}
# IANA's names, which Java and Kafka's documentation use, mapped to OpenSSL's.
TLS12_SUITES = {
    f"TLS_{exchange}_WITH_{cipher}": f"{exchange.replace('_', '-')}-{name}"
    for exchange in _EXCHANGES
    for cipher, name in _CIPHERS.items()
    # TLS 1.2 has these ciphers with one hash, depending on the exchange (RFC 5246, RFC 5289).
    if not cipher.endswith("AES_256_CBC_SHA256" if exchange.startswith("EC") else "AES_256_CBC_SHA384")
}
IANA_NAMES = {name: suite for suite, name in TLS12_SUITES.items()}
PEM_BEGIN = b"-----BEGIN "
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")
Context: TypeAlias = ssl.SSLContext | ServerContext
Stamp: TypeAlias = tuple[int, int, int, int]
Stamps: TypeAlias = tuple[Stamp | None, ...]
JKS_MAGIC = b"\xfe\xed\xfe\xed"


class TlsError(ValueError):
    """A key store, a trust store or a setting cannot be used. The message names the cause and the remedy."""


class Unreadable(TlsError):
    """A file cannot be read now: it is missing, permission is denied, or there are too many open files."""


@dataclass(frozen=True)
class Material:
    """PEM bytes: private key and certificates (`chain`), trusted certificates, and revocation lists."""

    chain: bytes
    trusted: bytes
    key_password: str | None
    revoked: bytes = b""


def load_context(settings: SecuritySettings) -> ServerContext:
    """Make the TLS context of a server. Raises TlsError."""
    material = read_material(settings)
    versions = _versions(settings)
    context = ServerContext(VERSIONS[versions[0]], VERSIONS[versions[-1]])
    _set_ciphers(context, settings.ssl_cipher_suites)
    if newer := [suite for suite in settings.ssl_cipher_suites if suite in TLS13_SUITES]:
        context.set_suites(":".join(newer))
    _load_chain(context, settings, material)
    context.verify_clients(CLIENT_AUTH[settings.ssl_client_auth])
    if material.trusted:
        _load_trusted(context, settings, material)
    if material.revoked:
        _load_revoked(context, settings, material)
    return context


def load_client_context(settings: SecuritySettings, *, check_hostname: bool) -> ssl.SSLContext:
    """Make a client's context. Without a trust store it trusts the system's authorities. Raises TlsError."""
    material = read_material(settings)
    if settings.ssl_keystore_key and not material.chain:
        raise TlsError("ssl.keystore.key and ssl.keystore.certificate.chain are not PEM")
    if settings.ssl_truststore_certificates and not material.trusted:
        raise TlsError("ssl.truststore.certificates is not PEM")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_hostname
    versions = _versions(settings)
    _refuse_choice(settings, versions)
    context.minimum_version = VERSIONS[versions[0]]
    context.maximum_version = VERSIONS[versions[-1]]
    _set_ciphers(context, settings.ssl_cipher_suites)
    if material.chain:
        _load_chain(context, settings, material)
    if material.trusted:
        _load_trusted(context, settings, material)
    else:
        context.load_default_certs()
    return context


def _load_chain(context: Context, settings: SecuritySettings, material: Material) -> None:
    password = material.key_password or ""
    named = settings.ssl_keystore_location or "ssl.keystore.key"
    try:
        if isinstance(context, ServerContext):
            context.load_chain(material.chain, password)
            return
        with _as_file(material.chain) as path:
            # Without a password OpenSSL would ask the terminal.
            context.load_cert_chain(path, password=password)
    except Unreadable:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            raise Unreadable(f"{named} cannot be used now: {error.strerror}") from error
        raise TlsError(
            f"{named} has no private key with a certificate chain that fits and that ssl.key.password opens "
            f"({_why(error)})"
        ) from error


def _load_trusted(context: Context, settings: SecuritySettings, material: Material) -> None:
    try:
        if isinstance(context, ServerContext):
            context.trust(material.trusted)
        else:
            context.load_verify_locations(cadata=material.trusted.decode("ascii", "replace"))
    except ssl.SSLError as error:
        named = settings.ssl_truststore_location or "ssl.truststore.certificates"
        raise TlsError(f"{named} has no certificates in PEM ({_why(error)})") from error


def _load_revoked(context: ServerContext, settings: SecuritySettings, material: Material) -> None:
    try:
        context.revoke(material.revoked)
    except ssl.SSLError as error:
        raise TlsError(
            f"mpbroker.ssl.crl.location={settings.mpbroker_ssl_crl_location} has no certificate revocation "
            f"lists in PEM ({_why(error)})"
        ) from error


def _versions(settings: SecuritySettings) -> list[str]:
    """Return the TLS versions to use, oldest first.

    A version is left out if ssl.cipher.suites has no suite for it. Raises TlsError if no version is left.
    """
    allowed = [name for name in VERSIONS if name in settings.ssl_enabled_protocols]
    suites = settings.ssl_cipher_suites
    if not suites:
        return allowed
    newer = set(TLS13_SUITES) & set(suites)
    fitting = [n for n in allowed if (newer if n == "TLSv1.3" else set(suites) - newer)]
    if not fitting:
        raise TlsError("ssl.cipher.suites has no suite for any of ssl.enabled.protocols")
    return fitting


def _refuse_choice(settings: SecuritySettings, versions: list[str]) -> None:
    newer = set(TLS13_SUITES) & set(settings.ssl_cipher_suites)
    if newer and newer != set(TLS13_SUITES) and "TLSv1.3" in versions:
        raise TlsError(
            "ssl.cipher.suites names some suites of TLS 1.3, and this Python cannot choose among them: name "
            f"{', '.join(TLS13_SUITES)}, or none of them for TLS 1.2 alone"
        )


def _set_ciphers(context: Context, suites: tuple[str, ...]) -> None:
    older = [suite for suite in suites if suite not in TLS13_SUITES]
    if unknown := [suite for suite in older if suite not in TLS12_SUITES]:
        raise TlsError(
            f"ssl.cipher.suites: {', '.join(unknown)} is not a suite that can be served; there are "
            f"{', '.join((*TLS13_SUITES, *TLS12_SUITES))}"
        )
    if older:
        try:
            context.set_ciphers(":".join(TLS12_SUITES[suite] for suite in older))
        except ssl.SSLError as error:
            raise TlsError(
                f"ssl.cipher.suites: {ssl.OPENSSL_VERSION} serves none of them ({_why(error)})"
            ) from error


def read_material(settings: SecuritySettings) -> Material:
    """Read the private key, certificates and revocation lists that `settings` name. Raises TlsError."""
    chain, trusted = b"", b""
    password = settings.ssl_key_password
    if settings.ssl_keystore_location:
        chain, is_open = _store(
            settings.ssl_keystore_location, "ssl.keystore", settings.ssl_keystore_password
        )
        password = None if is_open else password
    elif settings.ssl_keystore_key and settings.ssl_keystore_certificate_chain:
        inline = (settings.ssl_keystore_key, settings.ssl_keystore_certificate_chain)
        chain = "".join(lines_of_pem(one.text) for one in inline).encode()
    if settings.ssl_truststore_location:
        location, secret = settings.ssl_truststore_location, settings.ssl_truststore_password
        trusted, _ = _store(location, "ssl.truststore", secret)
    elif settings.ssl_truststore_certificates:
        trusted = lines_of_pem(settings.ssl_truststore_certificates.text).encode()
    revoked = b""
    if settings.mpbroker_ssl_crl_location:
        # An empty file is an error, too.
        revoked = _read(settings.mpbroker_ssl_crl_location, "mpbroker.ssl.crl.location") or b"\n"
    return Material(chain, trusted, password.text if password else None, revoked)


def lines_of_pem(text: str) -> str:
    """Return PEM split into lines, as OpenSSL needs it. In a properties file it is often one long line."""
    out = ""
    for label, body in _PEM_BLOCK.findall(text):
        packed = "".join(body.split())
        lines = [packed[at : at + 64] for at in range(0, len(packed), 64)]
        out += "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))
    return out


def _read(location: str, key: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise Unreadable(f"{key}={location} cannot be read: {error.strerror}") from error


def _store(location: str, store: str, password: Secret | None) -> tuple[bytes, bool]:
    """Return (PEM, whether the store was opened with the password) of a store file. Raises TlsError.

    The content of the file determines its type, because the setting of the type often has Java's default.
    """
    data = _read(location, f"{store}.location")
    if PEM_BEGIN in data:
        return data, False
    if data.startswith(JKS_MAGIC):
        raise TlsError(
            f"{location} is a Java key store, which only Java reads. Convert it: keytool -importkeystore "
            f"-srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12; openssl pkcs12 -in "
            f"store.p12 -out store.pem -nodes; then {store}.location=…/store.pem and {store}.type=PEM"
        )
    if data[:1] == b"\x30":
        return _from_pkcs12(data, location, password), True
    raise TlsError(f"{location} is neither PEM nor PKCS12")


def _from_pkcs12(data: bytes, location: str, password: Secret | None) -> bytes:
    try:
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise TlsError(
            f"{location} is PKCS12, which needs a package: pip install cryptography, or "
            f"convert it with openssl pkcs12 -in {location} -out store.pem -nodes"
        ) from error
    try:
        store = pkcs12.load_pkcs12(data, password.text.encode() if password else None)
    except ValueError as error:
        raise TlsError(f"{location} cannot be opened: its password is another, or it is damaged") from error
    pem = b""
    if store.key is not None:
        pem += store.key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    own = [store.cert] if store.cert is not None else []
    for one in (*own, *store.additional_certs):
        pem += one.certificate.public_bytes(s.Encoding.PEM)
    return pem


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory with these bytes, for a library that can read only files.

    Raises Unreadable.
    """
    try:
        fd = os.memfd_create("certificates", os.MFD_CLOEXEC)
    except OSError as error:
        raise Unreadable(f"no memory file for the certificates can be made: {error.strerror}") from error
    try:
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
        except OSError as error:
            raise Unreadable(f"the certificates cannot be kept in memory: {error.strerror}") from error
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _why(error: Exception) -> str:
    """Return OpenSSL's reason for an error, which does not contain any bytes of a key."""
    reason = getattr(error, "reason", None)
    return str(reason or type(error).__name__)


class Keystore:
    """The TLS context of a listener. `refresh` makes a new context when one of its files has changed."""

    def __init__(self, settings: SecuritySettings) -> None:
        self._settings = settings
        self._seen: Stamps | None = self._stamps()
        self._reported = ""
        self.context = load_context(settings)

    def _stamps(self) -> Stamps:
        return tuple(
            _stamp(location)
            for location in (
                self._settings.ssl_keystore_location,
                self._settings.ssl_truststore_location,
                self._settings.mpbroker_ssl_crl_location,
            )
        )

    def refresh(self) -> bool:
        """Make a new context if a file has changed, and return whether it was made.

        Raises TlsError, and keeps the old context. If a store was invalid, it is read again after a change.
        If a file was unreadable, each call tries again, but the same error is raised only once.
        """
        now = self._stamps()
        if now == self._seen:
            return False
        self._seen = None
        try:
            self.context = load_context(self._settings)
        except Unreadable as error:
            reported, self._reported = self._reported, str(error)
            if reported == self._reported:
                return False
            raise
        except TlsError:
            self._seen, self._reported = now, ""
            raise
        self._seen, self._reported = now, ""
        return True


def _stamp(location: str | None) -> Stamp | None:
    """Return values that change when a file's content or permissions change; None without a file."""
    if not location:
        return None
    try:
        status = Path(location).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
