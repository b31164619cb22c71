"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677; KIP-84): credentials, server and client, without I/O.

As in Kafka, there is no channel binding, names are not prepared with SASLprep, and a credential is for one
mechanism. The first message of an unknown user is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, TypeAlias

from mpbroker.security.mechanism import Mechanism, SaslFailed
from mpbroker.security.principals import Principal

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
SALT_BYTES = 26
# The nonce has at least as much randomness as Kafka's (130 bits).
NONCE_BYTES = 18
_CLIENT_FIRST = re.compile(
    r"(?P<gs2>n,(?:a=(?P<authzid>(?:[^=,\x00]|=2C|=3D)+))?,)"
    r"(?P<bare>(?:m=[^,\x00]+,)?n=(?P<user>(?:[^=,\x00]|=2C|=3D)+),"
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^,\x00]+)*))"
)
# Java reads its value as Boolean.parseBoolean does.
_TOKEN_AUTH = re.compile(r"tokenauth=true", re.IGNORECASE)
_CLIENT_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]+=[^,\x00]+)*?),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class ScramType(IntEnum):
    """A SCRAM mechanism, as numbered in requests and records. (Kafka: ScramMechanism.)"""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return {1: "sha256", 2: "sha512"}[self.value]


TYPES = {kind.mechanism: kind for kind in (ScramType.SCRAM_SHA_256, ScramType.SCRAM_SHA_512)}


@dataclass(frozen=True)
class ScramCredential:
    """The stored form of a password. It cannot be used to log in."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def _mac(hash_name: str, key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, hash_name)


def salted_password(kind: ScramType, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(kind.hash_name, password.encode(), salt, iterations)


def credential_of(kind: ScramType, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential for the salted password, salt and iterations of AlterUserScramCredentials."""
    client_key = _mac(kind.hash_name, salted, b"Client Key")
    stored_key = hashlib.new(kind.hash_name, client_key).digest()
    return ScramCredential(iterations, salt, stored_key, _mac(kind.hash_name, salted, b"Server Key"))


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def new_nonce() -> str:
    return secrets.token_urlsafe(NONCE_BYTES)


def unescape_name(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def escape_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _text(token: bytes) -> str:
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SaslFailed("the message is not UTF-8") from error


@dataclass(frozen=True)
class TokenLogin:
    """The data of a delegation token that a login needs. `expires_ms` is a time of the wall clock."""

    owner: Principal
    expires_ms: int
    credential: ScramCredential = field(repr=False)


TokenLookUp: TypeAlias = Callable[[ScramType, str], TokenLogin | None]


def no_tokens(_kind: ScramType, _token_id: str) -> TokenLogin | None:
    """Return None for every token id: the TokenLookUp of a listener without delegation tokens."""
    return None


class ScramServer(Mechanism):
    """The server's side of SCRAM. `look_up` finds a user's credential, `look_up_token` a delegation token.

    A client that logs in with a token sends the token's id as the user name (extension tokenauth, KIP-48).
    """

    name: ClassVar[str] = "SCRAM"

    def __init__(
        self,
        kind: ScramType,
        look_up: Callable[[ScramType, str], ScramCredential | None],
        nonce: Callable[[], str] = new_nonce,
        look_up_token: TokenLookUp = no_tokens,
        now_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        super().__init__()
        self._kind = kind
        self._look_up = look_up
        self._look_up_token = look_up_token
        self._now_ms = now_ms
        self._new_nonce = nonce
        self._owner: Principal | None = None
        self._token_id = ""
        self._nonce = ""
        self._binding = ""
        self._messages = ""
        self._credential: ScramCredential | None = None

    def step(self, token: bytes) -> bytes:
        if self.complete:
            raise SaslFailed("a message after the last one")
        return self._first(token) if self._credential is None else self._final(self._credential, token)

    def _first(self, token: bytes) -> bytes:
        match = _CLIENT_FIRST.fullmatch(_text(token))
        if match is None:
            raise SaslFailed("the client's first message is malformed, or wants channel binding")
        user = self.claimed = unescape_name(match["user"])
        if unescape_name(match["authzid"] or "") not in ("", user):
            raise SaslFailed(
                "the client asked for another user's authorization id",
                "Authentication failed: Client requested an authorization id that is different from username",
            )
        credential = self._find(user, match["extensions"])
        if credential.iterations < ITERATIONS_MIN:
            raise SaslFailed(f"{credential.iterations} iterations are fewer than {ITERATIONS_MIN}")
        self._credential = credential
        self._nonce = match["nonce"] + self._new_nonce()
        self._binding = match["gs2"]
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._messages = f"{match['bare']},{answer}"
        return answer.encode()

    def _find(self, user: str, extensions: str) -> ScramCredential:
        """Return the credential of a user or of a delegation token. Raises SaslFailed."""
        self.is_by_token = any(_TOKEN_AUTH.fullmatch(one) for one in extensions.split(","))
        if not self.is_by_token:
            self._owner = Principal(user)
            credential = self._look_up(self._kind, user)
            if credential is None:
                raise SaslFailed("invalid user credentials")
            return credential
        self._token_id = user
        return self._find_token().credential

    def _find_token(self) -> TokenLogin:
        """Look up the client's token now. Raises SaslFailed if the token does not exist or has expired."""
        token = self._look_up_token(self._kind, self._token_id)
        if token is None:
            raise SaslFailed("no such delegation token")
        self._owner, self.expires_ms = token.owner, token.expires_ms
        if self.expires_ms <= self._now_ms():
            raise SaslFailed("the delegation token has expired")
        return token

    def _final(self, credential: ScramCredential, token: bytes) -> bytes:
        match = _CLIENT_FINAL.fullmatch(_text(token))
        if match is None:
            raise SaslFailed("the client's final message is malformed")
        try:
            binding = base64.b64decode(match["binding"], validate=True)
            proof = base64.b64decode(match["proof"], validate=True)
        except binascii.Error as error:
            raise SaslFailed("the client's final message is malformed") from error
        if match["nonce"] != self._nonce and match["nonce"].endswith(self._nonce):
            raise SaslFailed("its nonce is doubled, as librdkafka before 2.6.1 does: update the client")
        if match["nonce"] != self._nonce or binding != self._binding.encode():
            raise SaslFailed("the client's final message is of another exchange")
        signed = f"{self._messages},{match['without_proof']}".encode()
        signature = _mac(self._kind.hash_name, credential.stored_key, signed)
        if len(proof) != len(signature):
            raise SaslFailed("invalid client credentials")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._kind.hash_name, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise SaslFailed("invalid client credentials")
        if self.is_by_token:
            # It may have been removed since the first message.
            self._find_token()
        self.principal = self._owner
        own = _mac(self._kind.hash_name, credential.server_key, signed)
        return b"v=" + base64.b64encode(own)


class ScramClient:
    """The client's side of SCRAM. Call `first`, `final` and `verify` in this order."""

    def __init__(
        self, kind: ScramType, user: str, password: str, nonce: str | None = None, *, by_token: bool = False
    ) -> None:
        """Prepare a login. With `by_token`, `user` is a delegation token's id, `password` its base64 HMAC."""
        self._kind = kind
        self._password = password
        self._nonce = nonce or new_nonce()
        extension = ",tokenauth=true" if by_token else ""
        self._bare = f"n={escape_name(user)},r={self._nonce}{extension}"
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's final message. Raises SaslFailed if `server_first` is malformed."""
        match = re.fullmatch(r"r=([^,]+),s=([A-Za-z0-9+/=]+),i=(\d{1,9})", _text(server_first))
        if match is None or not match[1].startswith(self._nonce):
            raise SaslFailed("the server's first message is malformed")
        salted = salted_password(self._kind, self._password, base64.b64decode(match[2]), int(match[3]))
        client_key = _mac(self._kind.hash_name, salted, b"Client Key")
        stored_key = hashlib.new(self._kind.hash_name, client_key).digest()
        without_proof = f"c={base64.b64encode(b'n,,').decode()},r={match[1]}"
        signed = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        signature = _mac(self._kind.hash_name, stored_key, signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = _mac(self._kind.hash_name, salted, b"Server Key")
        self._expected = b"v=" + base64.b64encode(_mac(self._kind.hash_name, server_key, signed))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's proof. Raises SaslFailed if the server does not know the user's credential."""
        if not hmac.compare_digest(server_final, self._expected):
            raise SaslFailed("the server could not prove that it knows the user")
