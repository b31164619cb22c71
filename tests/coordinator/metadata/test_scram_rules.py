"""SCRAM credentials in the coordinator: what is refused, what is described, and what processors are told."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.bulletins.news import credential_news
from mpbroker.coordinator.metadata.metadata_records import decode_record, encode_record
from mpbroker.coordinator.metadata.scram_rules import alter, describe
from mpbroker.coordinator.metadata.state import Decider, InconsistentMetadata, MetadataState
from mpbroker.ipc.bulletin import BulletinPublisher, BulletinReader
from mpbroker.ipc.calls import AlterScram, DescribeScram, ScramUser, ScramUsers
from mpbroker.ipc.credentials import CredentialBase, CredentialDelta, CredentialNews, ScramImage
from mpbroker.ipc.topology import SharedMemory, processor
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from mpbroker.security.scram import ScramCredential


def upsertion(user: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt") -> ScramImage:
    return ScramImage(user, mechanism, iterations, salt, b"stored", b"server")


def large(user: str, salt_bytes: int) -> ScramImage:
    return upsertion(user, salt=bytes(salt_bytes))


def call(state: MetadataState, message: AlterScram | DescribeScram) -> list[tuple[str, int]]:
    """(user, error) of the answer; what was decided becomes true, by way of the log's bytes."""
    decision = Decider(BrokerConfig(), 1, lambda: bytes(16)).decide(state, message)
    state.apply_all([decode_record(encode_record(record)) for record in decision.records])
    assert isinstance(decision.answer, ScramUsers)
    return [(user.user, user.error) for user in decision.answer.users]


def test_credentials_come_and_go() -> None:
    state = MetadataState()
    assert call(state, AlterScram([upsertion("ann"), upsertion("bob")])) == [("ann", 0), ("bob", 0)]
    assert call(state, AlterScram([upsertion("ann", 2, 8192)])) == [("ann", 0)]
    assert state.next_offset == 3
    answer = describe(state.credentials, DescribeScram())
    assert answer.users == [
        ScramUser("ann", credentials=[(1, 4096), (2, 8192)]),
        ScramUser("bob", credentials=[(1, 4096)]),
    ]
    assert call(state, AlterScram([], [("ann", 1), ("bob", 1)])) == [("ann", 0), ("bob", 0)]
    assert list(state.credentials) == [("ann", 2)]


@pytest.mark.parametrize(
    ("alteration", "code"),
    [
        (AlterScram([upsertion("")]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterScram([upsertion("x", iterations=4095)]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterScram([upsertion("x", iterations=16385)]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterScram([upsertion("x" * 1025)]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterScram([large("x", 1025)]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterScram([upsertion("x", 0)]), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (AlterScram([], [("x", 3)]), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (AlterScram([], [("x", 1)]), ErrorCode.RESOURCE_NOT_FOUND),
        (AlterScram([upsertion("x"), upsertion("x")]), ErrorCode.DUPLICATE_RESOURCE),
        (AlterScram([upsertion("x"), upsertion("x", 2)]), ErrorCode.DUPLICATE_RESOURCE),
        (AlterScram([upsertion("x"), upsertion("x", 2, 1)]), ErrorCode.DUPLICATE_RESOURCE),
        (AlterScram([upsertion("x"), upsertion("x"), upsertion("x")]), ErrorCode.DUPLICATE_RESOURCE),
        (AlterScram([upsertion("x", 2, 1), upsertion("x")]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterScram([upsertion("x")], [("x", 2)]), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_what_is_refused_for_one_user_only(alteration: AlterScram, code: ErrorCode) -> None:
    alteration.upsertions.append(upsertion("good"))
    users, records = alter({}, alteration)
    assert [(u.error, u.message is None) for u in users.users] == [(code, False), (0, True)]
    assert [record.name for record in records] == ["good"]


def test_a_user_is_altered_once_in_a_request() -> None:
    state = MetadataState()
    for mechanism in (1, 2):
        call(state, AlterScram([upsertion("ann", mechanism)]))
    for twice in (AlterScram([], [("ann", 1), ("ann", 2)]), AlterScram([upsertion("ann", 2)], [("ann", 1)])):
        assert call(state, twice) == [("ann", ErrorCode.DUPLICATE_RESOURCE)]
    assert list(state.credentials) == [("ann", 1), ("ann", 2)]


def test_describing() -> None:
    state = MetadataState()
    call(state, AlterScram([upsertion("ann")]))
    assert call(state, DescribeScram(["ann", "eve", "bob", "bob"])) == [
        ("ann", 0),
        ("eve", ErrorCode.RESOURCE_NOT_FOUND),
        ("bob", ErrorCode.DUPLICATE_RESOURCE),
    ]


def test_a_log_that_contradicts_itself() -> None:
    with pytest.raises(InconsistentMetadata, match="does not exist") as raised:
        MetadataState().apply_all([RemoveUserScramCredentialRecord("ann", 1)])
    assert "ann" not in str(raised.value)


def test_records_have_kafkas_form() -> None:
    """Compare bytes: frame version 1, type 11, version 0; compact strings and bytes, no tagged fields."""
    record = UserScramCredentialRecord("ann", 2, b"ab", b"c", b"d", 4096)
    assert encode_record(record) == b"\x01\x0b\0\x04ann\x02\x03ab\x02c\x02d\0\0\x10\0\0"
    assert encode_record(RemoveUserScramCredentialRecord("ann", 2)) == b"\x01\x16\0\x04ann\x02\0"


def test_processors_are_told(memory: SharedMemory) -> None:
    block, acks = memory.private.block("credentials"), memory.words("credential_acks")
    live = [processor(0)]
    announcer = credential_news(BulletinPublisher(block, acks, lambda: live))
    reader = BulletinReader(block, acks, processor(0))
    decoder: msgspec.msgpack.Decoder[CredentialNews] = msgspec.msgpack.Decoder(CredentialNews)

    def news() -> list[CredentialNews]:
        return [decoder.decode(message) for message in reader.poll()]

    state, done = MetadataState(), []
    call(state, AlterScram([upsertion("ann")]))
    announcer.publish(state)
    (base,) = news()
    assert isinstance(base, CredentialBase)
    assert [c.user for c in base.credentials] == ["ann"]
    call(state, AlterScram([upsertion("bob")], [("ann", 1)]))
    announcer.changed([("bob", 1), ("ann", 1)], lambda: done.append(1))
    assert (announcer.has_news, done) == (True, [])
    announcer.publish(state)
    assert (announcer.has_news, done) == (False, [1])
    (delta,) = news()
    assert isinstance(delta, CredentialDelta)
    assert ([c.user for c in delta.changed], delta.removed) == (["bob"], [("ann", 1)])
    # A base waits for a processor that lags: its half is still being read.
    announcer.replaced()
    announcer.publish(state)
    announcer.replaced()
    announcer.changed([], lambda: done.append(2))
    announcer.publish(state)
    assert (announcer.has_news, done) == (True, [1])
    news()
    announcer.publish(state)
    assert (announcer.has_news, done) == (False, [1, 2])


def test_all_credentials_together_fit_into_a_bulletin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the bound: every later coordinator must be able to announce what is durable."""
    monkeypatch.setattr("mpbroker.coordinator.metadata.scram_rules.CREDENTIALS_BYTES_MAX", 4000)
    state = MetadataState()
    assert call(state, AlterScram([large("a", 1000), large("b", 1000)])) == [("a", 0), ("b", 0)]
    assert call(state, AlterScram([large("c", 1000), large("d", 1000)])) == [("c", 0), ("d", 44)]
    assert call(state, AlterScram([], [("a", 1)])) == [("a", 0)]
    assert call(state, AlterScram([large("d", 1000)])) == [("d", 0)]


def test_a_base_that_is_too_large_waits_for_a_change(
    memory: SharedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that a base from before the limit ends no coordinator, and that waiting clients are answered."""
    block = memory.private.block("credentials")[: 4096 + 2 * 4096]
    news = credential_news(BulletinPublisher(block, memory.words("credential_acks"), list))
    state = MetadataState()
    news.publish(state)
    state.credentials["u", 1] = ScramCredential(4096, bytes(5000), b"k", b"s")
    answered: list[int] = []
    news.changed([("u", 1)], lambda: answered.append(1))
    news.publish(state)
    assert (answered, news.has_news) == ([1], False)
    assert "does not fit" in caplog.text
    assert "credentials are not announced" in caplog.text
    del state.credentials["u", 1]
    news.changed([("u", 1)], lambda: answered.append(2))
    assert news.publish(state)
    assert (answered, news.has_news) == ([1, 2], False)
