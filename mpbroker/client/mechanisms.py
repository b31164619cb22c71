"""SASL mechanisms, the client's half: PLAIN (RFC 4616) and SCRAM (RFC 5802, KIP-84). Sans-I/O."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable

from mpbroker.client.errors import AuthenticationFailed, ConfigError
from mpbroker.client.sasl import Mechanism

# Below this a stolen exchange is guessed too fast (Kafka: ScramMechanism.minIterations).
ITERATIONS_MIN = 4096
# A hostile broker could keep this process busy for ever; Kafka's own limit for credentials is 16384.
ITERATIONS_MAX = 1_000_000
GS2_HEADER = "n,,"
NONCE_BYTES = 24
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Plain:
    """User and password in one token; only TLS keeps them secret."""

    name = "PLAIN"
    complete = True

    def __init__(self, username: str, password: str) -> None:
        self._token = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._token

    def answer(self, challenge: bytes) -> None:
        if challenge:
            raise AuthenticationFailed("PLAIN ends with an empty token, but the broker sent one")


class Scram:
    """The password never travels, and the broker has to show that it knows it, too."""

    def __init__(self, name: str, username: str, password: str, nonce: str | None = None) -> None:
        self.name = name
        self.complete = False
        self._hash = _HASHES[name]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(NONCE_BYTES)
        self._first_bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return (GS2_HEADER + self._first_bare).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._server_signature is None:
            return self._final(challenge)
        self._verify(challenge)
        return None

    def _final(self, challenge: bytes) -> bytes:
        """client-final-message to a server-first-message."""
        fields = _fields(challenge)
        try:
            nonce, salt = fields["r"], base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError) as error:
            raise AuthenticationFailed(f"the broker's first {self.name} message is malformed") from error
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed(f"the broker's {self.name} nonce does not go on with ours")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the broker asks for {iterations} {self.name} iterations, "
                f"allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        without_proof = f"c={base64.b64encode(GS2_HEADER.encode()).decode()},r={nonce}"
        message = ",".join([self._first_bare, challenge.decode(), without_proof]).encode()
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, challenge: bytes) -> None:
        fields = _fields(challenge)
        if "e" in fields:
            raise AuthenticationFailed(f"the broker refused {self.name}: {fields['e']}")
        try:
            signature = base64.b64decode(fields.get("v", ""), validate=True)
        except ValueError as error:
            raise AuthenticationFailed(f"the broker's last {self.name} message is malformed") from error
        if self._server_signature is None or not hmac.compare_digest(signature, self._server_signature):
            raise AuthenticationFailed(
                "the broker does not know this password itself: it is not to be trusted"
            )
        self.complete = True

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _fields(message: bytes) -> dict[str, str]:
    try:
        return dict(part.partition("=")[::2] for part in message.decode().split(","))
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("the broker's SCRAM message is not UTF-8") from error


def mechanism(name: str, username: str, password: str) -> Callable[[], Mechanism]:
    """What makes a new exchange for every authentication. Raises ConfigError."""
    if name == Plain.name:
        return lambda: Plain(username, password)
    if name in _HASHES:
        return lambda: Scram(name, username, password)
    raise ConfigError(f"sasl.mechanism={name} is not supported by this client")
