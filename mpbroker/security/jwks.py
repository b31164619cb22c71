"""Verification of signed tokens with the keys of a JSON Web Key Set (RFC 7517, RFC 7518), by PyJWT.

A file with a key set is read again when it has changed, so that keys can be exchanged while the broker runs.
The extra `security` of the package installs PyJWT.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mpbroker.security.oauth import (
    ClaimRules,
    InvalidToken,
    Token,
    Validator,
    check_size,
    object_of,
    refuse_critical,
)

# Accepted algorithms. "none" is not one of them.
KEY_TYPES = {"RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "ES256": "EC", "ES384": "EC"}
# Members of a key that verify signatures. PyJWT takes a key with other members for a private key.
PUBLIC_MEMBERS = {"kty", "n", "e", "crv", "x", "y"}

log = logging.getLogger("mpbroker.security")


class KeySetError(ValueError):
    """There is no usable key set, or PyJWT, which checks signatures, is not installed."""


def path_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def keys_in(text: bytes, source: object) -> list[dict[str, Any]]:
    """Return the keys in the text of a key set. Raises KeySetError, which names `source`."""
    try:
        return [key for key in json.loads(text)["keys"] if isinstance(key, dict)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeySetError(f"{source} is not a JSON Web Key Set: {error}") from error


class Keys:
    """A set of keys. A subclass defines where the keys come from."""

    _keys: list[dict[str, Any]]

    def follow(self) -> None:
        """Update the keys if their source has changed. It is called before each check of a token."""
        raise NotImplementedError

    def find(self, header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return (algorithm, key) for a token with this header. Raises InvalidToken."""
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in KEY_TYPES:
            raise InvalidToken("its algorithm is not one of " + ", ".join(KEY_TYPES))
        wanted = header.get("kid")
        fitting = [
            key
            for key in self._keys
            if key.get("kty") == KEY_TYPES[algorithm]
            and key.get("use", "sig") == "sig"
            and key.get("alg", algorithm) == algorithm
            and (wanted is None or key.get("kid") == wanted)
        ]
        if len(fitting) != 1:
            raise InvalidToken("no key of the set is meant for it")
        return algorithm, {name: fitting[0][name] for name in PUBLIC_MEMBERS & fitting[0].keys()}


class KeySet(Keys):
    """The keys of a file. The constructor raises KeySetError if the file is unusable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int, int] | None = None
        self._keys = []
        self._told = ""
        self.refresh()

    def refresh(self) -> bool:
        """Read the file if it has changed; return whether it was read. Raises KeySetError."""
        try:
            status = self._path.stat()
            seen = status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
            if seen == self._seen:
                return False
            keys = keys_in(self._path.read_bytes(), self._path)
        except OSError as error:
            raise KeySetError(f"{self._path} is not a JSON Web Key Set: {error}") from error
        self._seen, self._keys = seen, keys
        return True

    def follow(self) -> None:
        """Read the file if it has changed. If the file is unusable, keep the keys and log the reason once."""
        try:
            if self.refresh() and self._told:
                self._told = ""
                log.info("%s is read again", self._path)
        except KeySetError as error:
            if str(error) != self._told:
                self._told = str(error)
                log.error(
                    "%s. The keys read last stay in use; put a whole file in its place by renaming it", error
                )


def signed_validator(keys: Keys, rules: ClaimRules) -> Validator:
    """Return a validator of tokens that one of the keys has signed. Raises KeySetError without PyJWT."""
    try:
        # Import before the fork: it takes a tenth of a second, and processors inherit it.
        import cryptography  # noqa: F401
        import jwt
    except ImportError as error:
        raise KeySetError("signed tokens need a package: pip install 'pyjwt[crypto]'") from error
    signatures = jwt.PyJWS(list(KEY_TYPES), {"verify_signature": True, "enforce_minimum_key_length": True})

    def validate(token: str, now_ms: int) -> Token:
        check_size(token)
        keys.follow()
        try:
            header = signatures.get_unverified_header(token)
            refuse_critical(header)
            algorithm, key = keys.find(header)
            payload = signatures.decode(token, jwt.PyJWK(key, algorithm), [algorithm])
        except jwt.InvalidSignatureError as error:
            raise InvalidToken("its signature is wrong") from error
        except jwt.InvalidKeyError as error:
            raise InvalidToken("the key for it cannot be used") from error
        except jwt.PyJWTError as error:
            raise InvalidToken("it is not a signed token") from error
        return rules.check(object_of(payload), now_ms)

    return validate
