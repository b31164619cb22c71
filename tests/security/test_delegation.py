"""HMACs of delegation tokens, and who a token concerns."""

from __future__ import annotations

import base64
import hashlib

from mpbroker.config.keys import Secret
from mpbroker.security.delegation import STALE_MAX, Token, TokenMacs, token_macs

ANN, BOB, EVE = "User:ann", "User:bob", "User:eve"


def token(token_id: str, owner: str = ANN, requester: str = ANN, renewers: tuple[str, ...] = ()) -> Token:
    return Token(token_id, owner, requester, renewers, 1, 100, 50)


def test_the_hmac_is_javas() -> None:
    """Compare with what javax.crypto.Mac makes of a secret and an id."""
    mac = TokenMacs(Secret("secret")).of("dGhlIGlkIG9mIGEgdG9rZW4")
    text = "nCdVNt+VhiKzMLwKP2i0dvyu5i05Y1aH52RVayR6WB4Yo4ojsg1716bqn+zlroujw1xlQvJxXTaScQuyb09Yww=="
    assert base64.b64encode(mac).decode() == text


def test_without_a_secret_there_are_no_tokens() -> None:
    assert token_macs(None) is None
    assert token_macs(Secret("")) is None
    assert token_macs(Secret("x")) is not None


def test_tokens_are_found_by_their_hmacs_while_they_are_there() -> None:
    macs, tokens = TokenMacs(Secret("secret")), {"a": token("a")}
    assert macs.find(macs.of("a"), tokens) == tokens["a"]
    tokens["b"] = token("b", BOB)
    assert macs.find(macs.of("b"), tokens) == tokens["b"]
    del tokens["a"]
    assert macs.find(macs.of("a"), tokens) is None
    assert macs.find(TokenMacs(Secret("other")).of("b"), tokens) is None
    assert macs.find(b"", tokens) is None


def test_the_index_forgets_tokens_that_are_gone() -> None:
    macs = TokenMacs(Secret("secret"))
    for number in range(3 * STALE_MAX):
        name = hashlib.sha256(str(number).encode()).hexdigest()
        assert macs.find(macs.of(name), {name: token(name)}) is not None
        assert len(macs._ids) <= STALE_MAX + 4


def test_whom_a_token_concerns() -> None:
    one = token("a", owner=ANN, requester=BOB, renewers=(EVE,))
    assert all(one.concerns_any_of({who}) for who in (ANN, BOB, EVE))
    assert not one.concerns_any_of({"User:dora"})
    assert not one.concerns_any_of(set())
    assert [who for who in (ANN, BOB, EVE) if one.may_be_renewed_by(who)] == [ANN, EVE]


def test_a_token_expires_by_the_earlier_of_its_times() -> None:
    assert not token("a").has_expired(49)
    assert token("a").has_expired(50)
    assert Token("a", ANN, ANN, (), 1, 40, 50).has_expired(40)


def test_the_bound_of_its_size_counts_bytes_of_names() -> None:
    assert token("a", owner="User:ä").size_bytes == token("a", owner="User:xy").size_bytes
    assert token("a", renewers=(BOB,)).size_bytes > token("a").size_bytes + len(BOB)
