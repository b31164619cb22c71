"""The client's half of the SASL mechanisms PLAIN (RFC 4616) and SCRAM (RFC 5802, KIP-84). Sans-I/O.

An exchange is a generator: it yields the tokens to send, and receives the broker's answer to each. It returns
when both sides have accepted the login, and raises AuthenticationFailed when the broker breaks the rules.
"""

import re
from collections.abc import Callable, Generator
from functools import partial

from mpbroker.client.errors import AuthenticationFailed, ClientConfigError
from mpbroker.security.mechanism import SaslFailed
from mpbroker.security.scram import ITERATIONS_MIN, TYPES, ScramClient, ScramType

Exchange = Generator[bytes, bytes, None]

PLAIN = "PLAIN"
# More would let a hostile broker keep this process busy; Kafka's credentials have 16384 at most.
ITERATIONS_MAX = 1_000_000
_ITERATIONS = re.compile(rb",i=(\d+)$")


def mechanism(name: str, username: str, password: str, *, by_token: bool = False) -> Callable[[], Exchange]:
    """Return a function that begins an exchange. `by_token`: the login is a delegation token (KIP-48)."""
    if name == PLAIN:
        return partial(plain, username, password)
    if name in TYPES:
        return partial(scram, TYPES[name], username, password, by_token=by_token)
    raise ClientConfigError(f"sasl.mechanism={name} is not supported by this client")


def plain(username: str, password: str) -> Exchange:
    """Send user and password in one token; only TLS keeps them secret."""
    if (yield f"\0{username}\0{password}".encode()):
        raise AuthenticationFailed("PLAIN ends with an empty token, but the broker sent one")


def scram(kind: ScramType, username: str, password: str, *, by_token: bool = False) -> Exchange:
    """Prove knowledge of the password without sending the password; check the broker's proof in return."""
    client = ScramClient(kind, username, password, by_token=by_token)
    server_first = yield client.first()
    try:
        _check_iterations(server_first)
        final = client.final(server_first)
    except (SaslFailed, ValueError) as error:
        raise AuthenticationFailed(f"{kind.mechanism}: {error}") from error
    server_final = yield final
    try:
        client.verify(server_final)
    except SaslFailed as error:
        raise AuthenticationFailed(f"{kind.mechanism}: {error}") from error


def _check_iterations(server_first: bytes) -> None:
    """Raise SaslFailed for too many iterations, which take long, or too few, which make guessing easy."""
    match = _ITERATIONS.search(server_first)
    if match is not None and not ITERATIONS_MIN <= int(match[1]) <= ITERATIONS_MAX:
        raise SaslFailed(
            f"the broker asks for {match[1].decode()} iterations; "
            f"allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
