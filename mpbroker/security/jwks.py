"""Signed tokens: a JSON Web Key Set in a file (RFC 7517) and the signatures that its keys verify (RFC 7518).

The file is read again when it has changed, so that keys can be exchanged while the broker runs. Needs the
`cryptography` package, which the extra `security` installs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from mpbroker.security.oauth import (
    ClaimRules,
    InvalidToken,
    Token,
    Validator,
    decode_object,
    decode_segment,
    split_token,
)

Verify: TypeAlias = Callable[[bytes, bytes], bool]

# algorithm -> (key type, hash); what is not here, none of all, is never believed.
ALGORITHMS = {
    "RS256": ("RSA", "SHA256"),
    "RS384": ("RSA", "SHA384"),
    "RS512": ("RSA", "SHA512"),
    "ES256": ("EC", "SHA256"),
    "ES384": ("EC", "SHA384"),
}
CURVES = {"ES256": ("P-256", "SECP256R1", 32), "ES384": ("P-384", "SECP384R1", 48)}
RSA_BITS_MIN = 2048

log = logging.getLogger("mpbroker")


class KeySetError(ValueError):
    """The file is no key set, or signatures cannot be checked at all."""


def path_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


class KeySet:
    """The keys of a file, by key id. Raises KeySetError when it is first read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int, int] | None = None
        self._keys: list[dict[str, Any]] = []
        self._told = ""
        self.refresh()

    def refresh(self) -> bool:
        """Reads the file if it has changed; whether it has. Raises KeySetError."""
        try:
            status = self._path.stat()
            seen = status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
            if seen == self._seen:
                return False
            read = json.loads(self._path.read_bytes())
            keys = [key for key in read["keys"] if isinstance(key, dict)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KeySetError(f"{self._path} is not a JSON Web Key Set: {error}") from error
        self._seen, self._keys = seen, keys
        return True

    def follow(self) -> None:
        """As `refresh`; while the file cannot be used the last keys stay, and it is told once why."""
        try:
            if self.refresh() and self._told:
                self._told = ""
                log.info("%s is read again", self._path)
        except KeySetError as error:
            if str(error) != self._told:
                self._told = str(error)
                log.error(
                    "%s. The keys read last stay in use; put a whole file in its place by renaming it",
                    error,
                )

    def find(self, header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The algorithm and the key for a token's header. Raises InvalidToken."""
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise InvalidToken("its algorithm is not one of " + ", ".join(ALGORITHMS))
        kind = ALGORITHMS[algorithm][0]
        wanted = header.get("kid")
        fitting = [
            key
            for key in self._keys
            if key.get("kty") == kind
            and key.get("use", "sig") == "sig"
            and key.get("alg", algorithm) == algorithm
            and (wanted is None or key.get("kid") == wanted)
        ]
        if len(fitting) != 1:
            raise InvalidToken("no key of the set is meant for it")
        return algorithm, fitting[0]


def signed_validator(keys: KeySet, rules: ClaimRules) -> Validator:
    """Raises KeySetError if the package for it is missing."""
    try:
        import cryptography.exceptions  # noqa: F401
    except ImportError as error:
        raise KeySetError("signed tokens need a package: pip install cryptography") from error

    def validate(token: str, now_ms: int) -> Token:
        header, claims, signature = split_token(token)
        keys.follow()
        algorithm, key = keys.find(decode_object(header))
        if not verify(algorithm, key, decode_segment(signature), f"{header}.{claims}".encode()):
            raise InvalidToken("its signature is wrong")
        return rules.check(decode_object(claims), now_ms)

    return validate


def verify(algorithm: str, key: dict[str, Any], signature: bytes, signed: bytes) -> bool:
    """Raises InvalidToken for a key that cannot be used."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    kind, hash_name = ALGORITHMS[algorithm]
    digest = getattr(hashes, hash_name)()
    try:
        if kind == "RSA":
            numbers = rsa.RSAPublicNumbers(_number(key, "e"), _number(key, "n"))
            if numbers.n.bit_length() < RSA_BITS_MIN:
                raise InvalidToken("the key for it is too short")
            numbers.public_key().verify(signature, signed, padding.PKCS1v15(), digest)
            return True
        curve, class_name, width = CURVES[algorithm]
        if key.get("crv") != curve or len(signature) != 2 * width:
            return False
        point = ec.EllipticCurvePublicNumbers(_number(key, "x"), _number(key, "y"), getattr(ec, class_name)())
        r, s = int.from_bytes(signature[:width]), int.from_bytes(signature[width:])
        point.public_key().verify(encode_dss_signature(r, s), signed, ec.ECDSA(digest))
    except InvalidSignature:
        return False
    except ValueError as error:
        raise InvalidToken("the key for it cannot be used") from error
    return True


def _number(key: dict[str, Any], name: str) -> int:
    value = key.get(name)
    if not isinstance(value, str):
        raise InvalidToken("the key for it cannot be used")
    return int.from_bytes(decode_segment(value))
