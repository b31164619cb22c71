"""Delegation tokens in the coordinator: lives, who may change them, bounds, and what processors are told."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.config.integers import LONG_MAX
from mpbroker.config.keys import Secret
from mpbroker.coordinator.bulletins.news import credential_news
from mpbroker.coordinator.metadata import token_rules
from mpbroker.coordinator.metadata.metadata_records import decode_record, encode_record
from mpbroker.coordinator.metadata.state import Decider, InconsistentMetadata, MetadataState
from mpbroker.ipc.bulletin import BulletinPublisher, BulletinReader
from mpbroker.ipc.calls import (
    ChangedToken,
    ChangeToken,
    CreatedToken,
    CreateToken,
    DescribedTokens,
    DescribeTokens,
    Message,
    RemovedTokens,
    RemoveExpiredTokens,
    TokenDetails,
)
from mpbroker.ipc.credentials import CredentialBase, CredentialDelta, CredentialNews, TokenImage
from mpbroker.ipc.topology import SharedMemory, processor
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DelegationTokenRecord, RemoveDelegationTokenRecord
from mpbroker.security.delegation import Token
from tests.support.decider_rig import DeciderRig

ANN, BOB, EVE = "User:ann", "User:bob", "User:eve"
START_MS = 1_800_000_000_000
EXPIRY_MS, LIFE_MS = 1000, 10_000


class Tokens(DeciderRig):
    """A decider whose clock is the test's."""

    def __init__(self, secret: str = "secret") -> None:
        super().__init__()
        self.now_ms = START_MS
        config = msgspec.structs.replace(
            self.config,
            delegation_token_secret_key=Secret(secret),
            delegation_token_expiry_time_ms=EXPIRY_MS,
            delegation_token_max_lifetime_ms=LIFE_MS,
        )
        self.decider = Decider(config, 1, self.new_id, now_ms=lambda: self.now_ms)

    def make(
        self, owner: str = ANN, requester: str = "", renewers: list[str] | None = None, life_ms: int = -1
    ) -> TokenDetails:
        made = self.call(CreateToken(owner, requester or owner, renewers or [], life_ms))
        assert isinstance(made, CreatedToken)
        assert made.token is not None, made.error
        return made.token

    def error(self, message: Message) -> int:
        answer = self.call(message)
        assert isinstance(answer, CreatedToken | ChangedToken | DescribedTokens)
        return answer.error

    def change(self, token: TokenDetails, who: str, period_ms: int = -1, *, expires: bool = False) -> int:
        """Return the new expiry, or the error as a negative number."""
        answer = self.call(ChangeToken(token.hmac, who, period_ms, expires))
        assert isinstance(answer, ChangedToken)
        assert answer.error or answer.token_id == token.token_id
        return -answer.error if answer.error else answer.expires_ms

    def described(self, owners: list[str] | None, after: str = "") -> DescribedTokens:
        answer = self.call(DescribeTokens(owners, after))
        assert isinstance(answer, DescribedTokens)
        return answer


@pytest.fixture
def rig() -> Tokens:
    return Tokens()


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expires_ms"),
    [
        (-1, LIFE_MS, EXPIRY_MS),
        (0, LIFE_MS, EXPIRY_MS),
        (5000, 5000, EXPIRY_MS),
        (10, 10, 10),
        (LONG_MAX, LIFE_MS, EXPIRY_MS),
    ],
)
def test_how_long_a_new_token_lives(asked_ms: int, max_ms: int, expires_ms: int) -> None:
    token = Tokens().make(life_ms=asked_ms)
    times = (token.issued_ms, token.max_ms - START_MS, token.expires_ms - START_MS)
    assert times == (START_MS, max_ms, expires_ms)


def test_a_life_of_kafkas_longest_does_not_overflow(rig: Tokens) -> None:
    config = msgspec.structs.replace(
        rig.config, delegation_token_secret_key=Secret("x"), delegation_token_max_lifetime_ms=LONG_MAX
    )
    rig.decider = Decider(config, 1, rig.new_id, now_ms=lambda: START_MS)
    assert rig.make().max_ms == LONG_MAX


def test_no_id_looks_like_a_flag(rig: Tokens) -> None:
    """An id of Kafka's never begins with a minus sign: 0xf8 would be one."""
    ids = iter([b"\xf8" + bytes(15), b"\xfb" + bytes(15), b"\x01" + bytes(15)])
    rig.decider._new_id = lambda: next(ids)
    assert rig.make().token_id == "AQAAAAAAAAAAAAAAAAAAAA"


def test_owner_and_renewers_renew(rig: Tokens) -> None:
    token = rig.make(ANN, BOB, [EVE])
    rig.now_ms += 600
    assert rig.change(token, ANN) == rig.now_ms + EXPIRY_MS
    assert rig.change(token, EVE, 10) == rig.now_ms + 10
    assert rig.change(token, EVE, 5 * EXPIRY_MS) == rig.now_ms + EXPIRY_MS
    assert rig.change(token, BOB) == -ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    for _ in range(20):
        rig.now_ms += 900
        if rig.now_ms >= token.max_ms:
            break
        expires_ms = rig.change(token, ANN)
        assert expires_ms == min(token.max_ms, rig.now_ms + EXPIRY_MS)
    assert expires_ms == token.max_ms
    rig.now_ms = token.max_ms + 1
    assert rig.change(token, ANN) == -ErrorCode.DELEGATION_TOKEN_EXPIRED


def test_owner_and_renewers_let_it_expire(rig: Tokens) -> None:
    token = rig.make(ANN, BOB, [EVE])
    assert rig.change(token, BOB, expires=True) == -ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert rig.change(token, ANN, 2 * LIFE_MS, expires=True) == token.max_ms
    assert rig.change(token, EVE, 0, expires=True) == START_MS
    rig.now_ms += 1
    assert rig.change(token, ANN, 5, expires=True) == -ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert token.token_id in rig.state.tokens
    assert rig.change(token, ANN, -1, expires=True) == rig.now_ms
    assert rig.state.tokens == {}
    assert rig.change(token, ANN) == -ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_without_a_secret_everything_is_refused() -> None:
    rig = Tokens(secret="")
    for message in (CreateToken(ANN, ANN, [], -1), ChangeToken(b"x", ANN, -1), DescribeTokens(None)):
        assert rig.error(message) == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert rig.state.next_offset == 0


def test_expired_ones_are_removed_some_at_a_time(rig: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_rules, "REMOVED_AT_ONCE", 2)
    names = [rig.make(life_ms=life_ms).token_id for life_ms in (1, 100, 1, 1)]
    rig.now_ms += 2
    removed = []
    for _ in range(3):
        answer = rig.call(RemoveExpiredTokens())
        assert isinstance(answer, RemovedTokens)
        removed.append(answer.token_ids)
    assert removed == [[names[0], names[2]], [names[3]], []]
    assert list(rig.state.tokens) == [names[1]]


def test_descriptions_come_in_pieces(rig: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [rig.make(), rig.make(BOB, ANN), rig.make(BOB, renewers=[ANN])]
    other = rig.make(EVE)
    assert rig.described([ANN]) == DescribedTokens(tokens=mine)
    assert rig.described(None) == DescribedTokens(tokens=[*mine, other])
    assert rig.described([]).tokens == []
    monkeypatch.setattr(token_rules, "DESCRIBED_BYTES", 310)
    first = rig.described(None)
    assert (first.tokens, first.are_all) == (mine[:2], False)
    assert rig.described(None, mine[1].token_id) == DescribedTokens(tokens=[mine[2], other])
    # The one to go on behind is gone: all come again.
    rig.change(mine[1], BOB, expires=True)
    assert rig.described(None, mine[1].token_id).tokens == [mine[0], mine[2]]


@pytest.mark.parametrize(
    ("bound", "owner", "requester"),
    [("OWNER_BYTES_MAX", ANN, EVE), ("REQUESTER_BYTES_MAX", EVE, ANN), ("TOKENS_BYTES_MAX", EVE, EVE)],
)
def test_bounds(rig: Tokens, monkeypatch: pytest.MonkeyPatch, bound: str, owner: str, requester: str) -> None:
    size = Token("x", ANN, ANN, (), 0, 0, 0).size_bytes
    monkeypatch.setattr(token_rules, bound, 2 * size)
    first = rig.make()
    rig.make()
    assert rig.error(CreateToken(owner, requester, [], -1)) == ErrorCode.POLICY_VIOLATION
    if bound != "TOKENS_BYTES_MAX":
        rig.make(EVE)
    rig.change(first, ANN, expires=True)
    if bound == "TOKENS_BYTES_MAX":
        rig.make(EVE)
    else:
        rig.make(owner, requester)


def test_a_token_that_is_full_of_renewers_takes_its_owners_room() -> None:
    renewers = [f"User:{'x' * 1000}{number}" for number in range(1000)]
    assert Tokens().error(CreateToken(ANN, ANN, renewers, -1)) == ErrorCode.POLICY_VIOLATION


def test_records_have_kafkas_form() -> None:
    """Compare bytes: frame version 1, types 10 and 26, version 0; compact strings, no tagged fields."""
    record = DelegationTokenRecord("User:a", "User:b", ["User:c"], 1, 3, 2, "id")
    assert encode_record(record) == (
        b"\x01\x0a\0\x07User:a\x07User:b\x02\x07User:c" + bytes(7) + b"\x01" + bytes(7) + b"\x03"
        b"" + bytes(7) + b"\x02\x03id\0"
    )
    assert encode_record(RemoveDelegationTokenRecord("id")) == b"\x01\x1a\0\x03id\0"
    assert decode_record(encode_record(record)) == record


def test_a_log_that_contradicts_itself() -> None:
    with pytest.raises(InconsistentMetadata, match="token gone is to be removed and does not exist"):
        MetadataState().apply_all([RemoveDelegationTokenRecord("gone")])


def test_no_hmac_is_printed(rig: Tokens) -> None:
    token = rig.make()
    printed = repr([token, ChangeToken(token.hmac, ANN, 1), TokenImage("id", ANN, 1, token.hmac), rig.config])
    assert repr(token.hmac)[2:12] not in printed
    assert "secret'" not in printed


def test_processors_are_told(rig: Tokens, memory: SharedMemory) -> None:
    block, acks = memory.private.block("credentials"), memory.words("credential_acks")
    publisher = BulletinPublisher(block, acks, lambda: [processor(0)])
    announcer = credential_news(publisher, rig.decider.macs)
    reader = BulletinReader(block, acks, processor(0))
    decoder: msgspec.msgpack.Decoder[CredentialNews] = msgspec.msgpack.Decoder(CredentialNews)

    def news() -> list[CredentialNews]:
        announcer.publish(rig.state)
        return [decoder.decode(message) for message in reader.poll()]

    first, gone = rig.make(), rig.make(BOB)
    (base,) = news()
    assert isinstance(base, CredentialBase)
    told = [TokenImage(one.token_id, one.owner, one.expires_ms, one.hmac) for one in (first, gone)]
    assert base.tokens == told
    second = rig.make(life_ms=10)
    rig.change(gone, BOB, expires=True)
    announcer.changed([second.token_id, gone.token_id], lambda: None)
    (delta,) = news()
    assert isinstance(delta, CredentialDelta)
    assert [one.token_id for one in delta.tokens] == [second.token_id]
    assert delta.removed_tokens == [gone.token_id]
    # Without the secret nobody can log in by them.
    announcer = credential_news(publisher)
    (base,) = news()
    assert isinstance(base, CredentialBase)
    assert base.tokens == []
