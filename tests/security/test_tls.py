"""Contexts from settings, by handshakes in memory; what cannot be used is refused with what to do."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from mpbroker.config.keys import Secret
from mpbroker.config.security import SecuritySettings
from mpbroker.network.processor.tls_pipe import TlsPipe
from mpbroker.security.openssl import ServerContext
from mpbroker.security.tls import (
    TLS12_SUITES,
    TLS13_SUITES,
    Keystore,
    TlsError,
    load_client_context,
    load_context,
)
from tests.support.certificates import Authority, Signed

AUTHORITY = Authority()
SERVER, CLIENT = AUTHORITY.sign("broker"), AUTHORITY.sign("client")


def client_context(tmp_path: Path, own: Signed | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
    if own is not None:
        context.load_cert_chain(own.write(tmp_path / "client.pem"))
    return context


class Agreed(NamedTuple):
    version: str | None  # the client's view
    cipher: str  # in OpenSSL's words
    certificate: bytes | None  # the client's, which the server sees
    shown: bytes | None  # the server's


def shake(server: ServerContext, client: ssl.SSLContext) -> Agreed:
    """A handshake and a byte each way; raises what either end raises."""
    served, plain = socket.socketpair()
    served.setblocking(False)
    plain.setblocking(False)
    pipe = TlsPipe(served.fileno(), server)
    caller = client.wrap_socket(plain, server_hostname="localhost", do_handshake_on_connect=False)
    with served, caller:
        shaken = False
        while not (pipe.handshake() and shaken):
            with contextlib.suppress(ssl.SSLWantReadError):
                caller.do_handshake()
                shaken = True
        # With TLS 1.3 a refused client certificate shows at the first byte.
        caller.send(b"x")
        assert pipe.recv(1) == b"x"
        pipe.send(b"y")
        assert caller.recv(1) == b"y"
        return Agreed(caller.version(), pipe.cipher, pipe.peer_certificate, caller.getpeercert(True))


@pytest.fixture
def stored(tmp_path: Path) -> SecuritySettings:
    return SecuritySettings(
        ssl_keystore_location=str(SERVER.write(tmp_path / "server.pem")),
        ssl_truststore_location=str(AUTHORITY.write(tmp_path / "ca.pem")),
    )


def changed(settings: SecuritySettings, **changes: object) -> SecuritySettings:
    own = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return SecuritySettings(**{**own, **changes})


def test_a_handshake(stored: SecuritySettings, tmp_path: Path) -> None:
    agreed = shake(load_context(stored), client_context(tmp_path, CLIENT))
    assert agreed == Agreed("TLSv1.3", "TLS_AES_128_GCM_SHA256", None, SERVER.der)


def test_clients_show_certificates(stored: SecuritySettings, tmp_path: Path) -> None:
    for auth in ("requested", "required"):
        context = load_context(changed(stored, ssl_client_auth=auth))
        assert shake(context, client_context(tmp_path, CLIENT)).certificate == CLIENT.der
        with pytest.raises(ssl.SSLError):
            shake(context, client_context(tmp_path, Authority("another").sign("client")))
    shake(load_context(changed(stored, ssl_client_auth="requested")), client_context(tmp_path))
    with pytest.raises(ssl.SSLError):
        shake(load_context(changed(stored, ssl_client_auth="required")), client_context(tmp_path))


def test_keys_with_a_password_and_in_line(stored: SecuritySettings, tmp_path: Path) -> None:
    SERVER.write(tmp_path / "server.pem", b"pass phrase")
    with pytest.raises(TlsError, match=r"server\.pem has no private key") as raised:
        load_context(stored)
    assert "PRIVATE" not in str(raised.value)
    with pytest.raises(TlsError, match=r"ssl\.key\.password"):
        load_context(changed(stored, ssl_key_password=Secret("other")))
    shake(load_context(changed(stored, ssl_key_password=Secret("pass phrase"))), client_context(tmp_path))
    inline = SecuritySettings(
        ssl_keystore_key=Secret(SERVER.key_pem().decode().replace("\n", " ")),
        ssl_keystore_certificate_chain=Secret(SERVER.pem.decode().replace("\n", " ")),
        ssl_truststore_certificates=Secret(AUTHORITY.pem.decode().replace("\n", "")),
        ssl_client_auth="required",
    )
    shake(load_context(inline), client_context(tmp_path, CLIENT))


def test_pkcs12(tmp_path: Path) -> None:
    path = tmp_path / "store.p12"
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"x", SERVER.key, SERVER.certificate, None, BestAvailableEncryption(b"pass")
        )
    )
    settings = SecuritySettings(
        ssl_keystore_location=str(path), ssl_keystore_type="PKCS12", ssl_keystore_password=Secret("pass")
    )
    shake(load_context(settings), client_context(tmp_path))
    with pytest.raises(TlsError, match="its password is another"):
        load_context(changed(settings, ssl_keystore_password=Secret("wrong")))


def test_versions_and_suites(stored: SecuritySettings, tmp_path: Path) -> None:
    older = load_context(changed(stored, ssl_enabled_protocols=("TLSv1.2",)))
    assert shake(older, client_context(tmp_path)).version == "TLSv1.2"
    newer = client_context(tmp_path)
    newer.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(ssl.SSLError):
        shake(older, newer)
    one = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    agreed = shake(load_context(changed(stored, ssl_cipher_suites=(one,))), client_context(tmp_path))
    assert agreed == Agreed("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256", None, SERVER.der)
    for suite in TLS12_SUITES:
        load_context(changed(stored, ssl_cipher_suites=(suite,)))
    context = load_context(changed(stored, ssl_cipher_suites=TLS13_SUITES))
    assert shake(context, client_context(tmp_path)).version == "TLSv1.3"
    older_client = client_context(tmp_path)
    older_client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(context, older_client)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xfe\xed\xfe\xed\0\0\0\2", "keytool -importkeystore"),
        (b"hello", "neither PEM nor PKCS12"),
        (b"0\x82\x01\x00", "its password is another, or it is damaged"),
        (AUTHORITY.pem, "has no private key"),
    ],
)
def test_stores_that_cannot_be_used(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(TlsError, match=message):
        load_context(SecuritySettings(ssl_keystore_location=str(path)))


def test_other_refusals(stored: SecuritySettings) -> None:
    for changes, message in (
        ({"ssl_keystore_location": "/nowhere"}, "cannot be read: No such file"),
        ({"ssl_cipher_suites": ("TLS_NULL",)}, "TLS_NULL is not a suite"),
        ({"ssl_cipher_suites": TLS13_SUITES, "ssl_enabled_protocols": ("TLSv1.2",)}, "no suite for any"),
    ):
        with pytest.raises(TlsError, match=message):
            load_context(changed(stored, **changes))


@pytest.mark.parametrize("suite", TLS13_SUITES)
def test_a_server_chooses_a_suite_of_tls_13(stored: SecuritySettings, tmp_path: Path, suite: str) -> None:
    settings = changed(stored, ssl_cipher_suites=(suite,))
    assert shake(load_context(settings), client_context(tmp_path)).cipher == suite
    with pytest.raises(TlsError, match="cannot choose among them"):
        load_client_context(settings, check_hostname=False)


@pytest.mark.parametrize("suites", [TLS13_SUITES, TLS13_SUITES[::-1]])
def test_the_order_of_the_settings_counts(
    stored: SecuritySettings, tmp_path: Path, suites: tuple[str, ...]
) -> None:
    context = load_context(changed(stored, ssl_cipher_suites=suites))
    assert shake(context, client_context(tmp_path)).cipher == suites[0]


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("AES256-GCM-SHA384:AES128-GCM-SHA256:CHACHA20-POLY1305", "AES128-GCM-SHA256"),
        ("AES256-GCM-SHA384:CHACHA20-POLY1305", "AES256-GCM-SHA384"),
        ("CHACHA20-POLY1305:AES128-GCM-SHA256", "CHACHA20-POLY1305"),
    ],
)
def test_without_settings_the_fastest_for_both_is_chosen(
    stored: SecuritySettings, tmp_path: Path, offered: str, chosen: str
) -> None:
    """Who offers ChaCha20 first has no AES in hardware."""
    client = client_context(tmp_path)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers(":".join(f"ECDHE-ECDSA-{name}" for name in offered.split(":")))
    assert shake(load_context(stored), client).cipher == f"ECDHE-ECDSA-{chosen}"


def test_a_changed_certificate_is_for_new_connections(stored: SecuritySettings, tmp_path: Path) -> None:
    keystore = Keystore(stored)
    before = keystore.context
    assert not keystore.refresh()
    renewed = AUTHORITY.sign("renewed")
    path = renewed.write(tmp_path / "new.pem")
    path.replace(tmp_path / "server.pem")
    assert keystore.refresh()
    assert keystore.context is not before
    assert shake(keystore.context, client_context(tmp_path)).shown == renewed.der
    (tmp_path / "server.pem").write_text("nothing")
    with pytest.raises(TlsError):
        keystore.refresh()
    assert not keystore.refresh()
    shake(keystore.context, client_context(tmp_path))


def exchanged(path: Path, signed: Signed | Authority, with_path: Path) -> None:
    signed.write(with_path).replace(path)


def test_what_cannot_be_read_is_tried_again(
    stored: SecuritySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root, who may read everything, only a changed reader can be refused."""
    keystore, path = Keystore(stored), tmp_path / "server.pem"
    renewed = AUTHORITY.sign("renewed")
    exchanged(path, renewed, tmp_path / "new.pem")
    reads = Path.read_bytes

    def refused(self: Path) -> bytes:
        if self == path and not self.stat().st_mode & 0o040:
            raise PermissionError(13, "Permission denied")
        return reads(self)

    path.chmod(0o600)
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(TlsError, match="Permission denied"):
        keystore.refresh()
    assert not keystore.refresh(), "one reason is told once"
    path.chmod(0o640)
    assert keystore.refresh()
    assert shake(keystore.context, client_context(tmp_path)).shown == renewed.der
    # And told anew when it comes again.
    path.chmod(0o600)
    with pytest.raises(TlsError, match="Permission denied"):
        keystore.refresh()


def test_other_rights_alone_are_a_change(stored: SecuritySettings, tmp_path: Path) -> None:
    keystore = Keystore(stored)
    assert not keystore.refresh()
    (tmp_path / "server.pem").chmod(0o400)
    assert keystore.refresh()


def test_without_descriptors_it_is_tried_again(
    stored: SecuritySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keystore = Keystore(stored)
    exchanged(tmp_path / "server.pem", AUTHORITY.sign("renewed"), tmp_path / "new.pem")

    def fails(*_: object, **__: object) -> bytes:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", fails)
    with pytest.raises(TlsError, match="Too many open files"):
        keystore.refresh()
    assert not keystore.refresh()
    monkeypatch.undo()
    assert keystore.refresh()


@pytest.mark.parametrize("at", ["memfd_create", "load_cert_chain"])
def test_a_client_without_descriptors_hears_it(
    stored: SecuritySettings, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(*((os, at) if at == "memfd_create" else (ssl.SSLContext, at)), fails)
    with pytest.raises(TlsError, match="Too many open files"):
        load_client_context(stored, check_hostname=False)


def test_a_broken_store_is_told_once_and_read_when_it_changes(
    stored: SecuritySettings, tmp_path: Path
) -> None:
    keystore, path = Keystore(stored), tmp_path / "server.pem"
    path.write_text("nothing")
    with pytest.raises(TlsError, match="neither PEM nor PKCS12"):
        keystore.refresh()
    for _ in range(3):
        assert not keystore.refresh()
    shake(keystore.context, client_context(tmp_path))
    exchanged(path, SERVER, tmp_path / "new.pem")
    assert keystore.refresh()


def test_a_trust_store_is_exchanged(stored: SecuritySettings, tmp_path: Path) -> None:
    keystore = Keystore(changed(stored, ssl_client_auth="required"))
    another = Authority("another")
    theirs = another.sign("client")
    with pytest.raises(ssl.SSLError):
        shake(keystore.context, client_context(tmp_path, theirs))
    exchanged(tmp_path / "ca.pem", another, tmp_path / "new.pem")
    assert keystore.refresh()
    assert shake(keystore.context, client_context(tmp_path, theirs)).certificate == theirs.der
    with pytest.raises(ssl.SSLError):
        shake(keystore.context, client_context(tmp_path, CLIENT))
