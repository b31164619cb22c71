"""SASL mechanisms, the client's half: PLAIN (RFC 4616) and SCRAM (RFC 5802, KIP-84). Sans-I/O."""

import re
from collections.abc import Callable

from mpbroker.client.errors import AuthenticationFailed, ConfigError
from mpbroker.client.sasl import Mechanism
from mpbroker.security.mechanism import SaslFailed
from mpbroker.security.scram import ITERATIONS_MIN, TYPES, ScramClient, ScramType

# A hostile broker could keep this process busy for ever; Kafka's credentials have 16384 at most.
ITERATIONS_MAX = 1_000_000
_ITERATIONS = re.compile(rb",i=(\d+)$")


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
    """The password never travels, and the broker has to show that it knows the user, too."""

    def __init__(self, kind: ScramType, username: str, password: str) -> None:
        self.name = kind.mechanism
        self.complete = False
        self._client = ScramClient(kind, username, password)
        self._proven = False

    def first(self) -> bytes:
        return self._client.first()

    def answer(self, challenge: bytes) -> bytes | None:
        try:
            if not self._proven:
                self._proven = True
                _check_iterations(challenge)
                return self._client.final(challenge)
            self._client.verify(challenge)
        except (SaslFailed, ValueError) as error:
            raise AuthenticationFailed(f"{self.name}: {error}") from error
        self.complete = True
        return None


def _check_iterations(challenge: bytes) -> None:
    """Too few of them and a stolen exchange is guessed soon."""
    match = _ITERATIONS.search(challenge)
    if match is not None and not ITERATIONS_MIN <= int(match[1]) <= ITERATIONS_MAX:
        raise SaslFailed(
            f"the broker asks for {match[1].decode()} iterations; "
            f"allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )


def mechanism(name: str, username: str, password: str) -> Callable[[], Mechanism]:
    """What makes a new exchange for every authentication. Raises ConfigError."""
    if name == Plain.name:
        return lambda: Plain(username, password)
    if name in TYPES:
        return lambda: Scram(TYPES[name], username, password)
    raise ConfigError(f"sasl.mechanism={name} is not supported by this client")
