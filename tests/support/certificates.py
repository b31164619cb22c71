"""Certificates for tests, made when they are needed: an authority, and whom it has signed."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Signed:
    """A key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(s.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(s.Encoding.PEM)

    def key_pem(self, password: bytes | None = None) -> bytes:
        encryption = s.BestAvailableEncryption(password) if password else s.NoEncryption()
        return self.key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, encryption)

    def write(self, path: Path, password: bytes | None = None) -> Path:
        """Key and certificate in one file, as ssl.keystore.location wants it."""
        path.write_bytes(self.key_pem(password) + self.pem)
        return path


# Of certificates and lists of revoked ones. From Python 3.13 on, clients refuse an authority without it.
SIGNS = x509.KeyUsage(False, False, False, False, False, True, True, False, False)


def name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "mpbroker, tests"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


class Authority:
    """Signs; `pem` is what others trust."""

    def __init__(self, common_name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = name(common_name)
        self.certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(s.Encoding.PEM)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.pem)
        return path

    def sign(self, subject: str | x509.Name, hosts: Sequence[str] = ("localhost",)) -> Signed:
        """Sign a certificate for these hosts, and for 127.0.0.1 if localhost is among them."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        if "localhost" in hosts:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        certificate = (
            self._builder(name(subject) if isinstance(subject, str) else subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Signed(key, certificate)

    def revoke(self, *certificates: Signed, expires: datetime.timedelta = 30 * DAY) -> bytes:
        """Sign a list of revoked certificates; return it as PEM."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - 2 * DAY)
            .next_update(now + expires)
        )
        for one in certificates:
            revoked = x509.RevokedCertificateBuilder().serial_number(one.certificate.serial_number)
            builder = builder.add_revoked_certificate(revoked.revocation_date(now - DAY).build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(s.Encoding.PEM)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
