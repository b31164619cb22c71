"""The quota on creating and deleting partitions: buckets against a slow model, strict and permissive."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.metadata.state import Decider
from mpbroker.ipc.calls import (
    Account,
    CreatedTopic,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    DeletedTopic,
    DeletedTopics,
    DeleteTopics,
)
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import CreateTopicsRequest, DeleteTopicsRequest, Message, MetadataRequest
from mpbroker.quotas.entities import CONTROLLER_MUTATION_RATE, Limit, QuotaTable
from mpbroker.quotas.mutations import BUCKETS_MAX, Mutations, TokenBucket
from tests.support.decider_rig import DeciderRig
from tests.support.handler_rig import rig, topic_image

EXCEEDED = 89
BURST_S = 11


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(-5, 200)), max_size=60),
    st.sampled_from([0.5, 1.0, 2.5, 100.0]),
)
def test_the_bucket_against_exact_arithmetic(takes: list[tuple[int, int]], rate: float) -> None:
    burst, now_ms = rate * BURST_S, 5000
    bucket, tokens = TokenBucket(rate, burst, now_ms), Fraction(burst)
    for pause_ms, count in takes:
        now_ms += pause_ms
        tokens = min(Fraction(burst), tokens + Fraction(rate) * pause_ms / 1000)
        assert bucket.tokens(now_ms) == pytest.approx(float(tokens), abs=1e-6)
        tokens = min(Fraction(burst), tokens - count)
        assert bucket.take(count, now_ms) == pytest.approx(float(tokens), abs=1e-6)


def quotas(rate: float) -> QuotaTable:
    table = QuotaTable()
    table.change((("user", None),), CONTROLLER_MUTATION_RATE, rate)
    return table


def test_strict_looks_first_and_records_what_it_allows() -> None:
    """A bucket of 11 tokens at one a second: a large request overdraws it, the next has to wait."""
    clock, table = Clock(), quotas(1.0)
    mutations = Mutations(BURST_S, clock)
    first = mutations.begin(table, "alice", "app", strict=True)
    assert first.allows(31)
    assert first.throttle_ms() == 0
    clock.ms += 4000
    second = mutations.begin(table, "alice", "app", strict=True)
    assert not second.allows(1)
    assert second.throttle_ms() == 16_000
    # The pause gets shorter while the request is under way, and nothing was taken.
    clock.ms += 1000
    assert second.throttle_ms() == 15_000
    clock.ms += 15_000
    assert mutations.begin(table, "alice", "app", strict=True).allows(1)
    # Others have budgets of their own.
    assert mutations.begin(table, "bob", "app", strict=True).allows(31)


def test_permissive_records_and_pauses() -> None:
    clock, table = Clock(), quotas(2.0)
    mutations = Mutations(BURST_S, clock)
    one = mutations.begin(table, "alice", "app", strict=False)
    assert one.allows(20)
    assert one.throttle_ms() == 0
    assert one.allows(5)
    assert one.throttle_ms() == 1500
    assert one.allows(5)
    assert one.throttle_ms() == 4000


def test_what_nothing_came_of_is_given_back() -> None:
    clock, table = Clock(), quotas(1.0)
    mutations = Mutations(BURST_S, clock)
    one = mutations.begin(table, "alice", "app", strict=True)
    assert one.allows(31)
    one.refund()
    one.refund()
    again = mutations.begin(table, "alice", "app", strict=False)
    again.allows(12)
    assert again.throttle_ms() == 1000


class Recorder:
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def took(self, limit: Limit, count: float, left: float, burst: float) -> None:
        self.told.append((limit.user, limit.client_id, count, left, burst))

    def paused(self, limit: Limit, pause_ms: int) -> None:
        self.told.append((limit.user, limit.client_id, pause_ms))


def test_whoever_looks_is_told_what_is_taken_and_who_pauses() -> None:
    clock, meters = Clock(), Recorder()
    one = Mutations(BURST_S, clock, meters).begin(quotas(1.0), "alice", "app", strict=False)
    one.allows(12)
    assert one.throttle_ms() == 1000
    one.refund()
    assert meters.told == [("alice", "", 12, -1, 11), ("alice", "", 1000), ("alice", "", -12, 11, 11)]


def test_full_buckets_are_forgotten() -> None:
    clock, table = Clock(), quotas(1.0)
    mutations = Mutations(BURST_S, clock)
    for number in range(BUCKETS_MAX):
        mutations.begin(table, f"user{number}", "", strict=True).allows(20 if number == 7 else 1)
    clock.ms += 5000
    mutations.begin(table, "one more", "", strict=True).allows(1)
    assert len(mutations._buckets) == 2
    late = mutations.begin(table, "user7", "", strict=True)
    assert not late.allows(1)
    assert late.throttle_ms() == 4000


def test_a_new_rate_counts_at_once() -> None:
    clock, table = Clock(), quotas(1.0)
    mutations = Mutations(BURST_S, clock)
    mutations.begin(table, "alice", "", strict=True).allows(21)
    table.change((("user", None),), CONTROLLER_MUTATION_RATE, 10.0)
    one = mutations.begin(table, "alice", "", strict=True)
    assert not one.allows(1)
    assert one.throttle_ms() == 1000


# ---- the coordinator's decisions


class Room(DeciderRig):
    """A decider that counts what its clients change, and a clock."""

    def __init__(self, rate: float | None) -> None:
        super().__init__()
        self.clock = Clock()
        if rate is not None:
            self.state.quotas = quotas(rate)
        self.decider = Decider(self.config, 1000, self.new_id, Mutations(BURST_S, self.clock))

    def make(self, *sizes: int, strict: bool = True) -> tuple[list[int], int]:
        account = Account("alice", "app", strict)
        names = [f"t{len(self.state.topics)}-{number}" for number in range(len(sizes))]
        topics = [CreateTopic(name, size, 1) for name, size in zip(names, sizes, strict=True)]
        answer = self.call(CreateTopics(topics, account=account))
        assert isinstance(answer, CreatedTopics)
        return [topic.error for topic in answer.topics], answer.throttle_ms


def test_topics_beyond_the_quota_are_refused_one_by_one() -> None:
    room = Room(1.0)
    assert room.make(6, 6, 3, 1) == ([0, 0, EXCEEDED, EXCEEDED], 1000)
    assert len(room.state.topics) == 2
    # What is refused for another reason costs nothing.
    room.clock.ms += 2000
    assert room.make(0, 1) == ([37, 0], 0)


def test_permissive_topics_are_created_and_slowed_down() -> None:
    room = Room(1.0)
    assert room.make(6, 6, 3, strict=False) == ([0, 0, 0], 4000)


def test_without_a_quota_or_an_account_nothing_is_counted() -> None:
    assert Room(None).make(500) == ([0], 0)
    room = Room(1.0)
    decision = room.decide(CreateTopics([CreateTopic("a", 500, 1)]))
    assert (decision.answer.topics[0].error, decision.answer.throttle_ms) == (0, 0)


def test_deletions_cost_their_partitions() -> None:
    room = Room(1.0)
    room.call(CreateTopics([CreateTopic("a", 12, 1), CreateTopic("b", 1, 1)]))
    gone = DeleteTopics(names=["a", "b"], account=Account("alice", "app", True))
    answer = room.call(gone)
    assert isinstance(answer, DeletedTopics)
    assert [t.error for t in answer.topics] == [0, EXCEEDED]
    assert answer.throttle_ms == 1000
    decision = room.decide(DeleteTopics(names=["b"], account=Account("alice", "app", False)))
    assert decision.answer.topics[0].error == 0
    assert decision.answer.throttle_ms == 2000
    assert decision.mutation is not None
    decision.mutation.refund()
    room.call(CreateTopics([CreateTopic("c", 1, 1)]))
    # Minus one token, as before the refunded deletion.
    refused = room.call(DeleteTopics(names=["c"], account=Account("alice", "app", True)))
    assert refused.throttle_ms == 1000


# ---- through a handler


CREATED = CreatedTopics([CreatedTopic("new")], throttle_ms=1234)
DELETED = DeletedTopics([DeletedTopic("old", bytes(16))], throttle_ms=1234)
CREATE, DELETE, METADATA = 19, 20, 3
REQUESTS: dict[int, tuple[Message, Message]] = {
    CREATE: (CreateTopicsRequest([CreateTopicsRequest.CreatableTopic("new", 1, 1)]), CREATED),
    DELETE: (DeleteTopicsRequest(topic_names=["old"], timeout_ms=30_000), DELETED),
    METADATA: (
        MetadataRequest([MetadataRequest.MetadataRequestTopic(name="new")], True),
        CreatedTopics([], throttle_ms=1234),
    ),
}


@pytest.mark.parametrize(
    ("api_key", "version", "strict"),
    [
        *((CREATE, version, version >= 6) for version in (2, 5, 6, 7)),
        *((DELETE, version, version >= 5) for version in (4, 5)),
        (METADATA, 9, False),
    ],
)
def test_the_account_is_passed_on_and_the_pause_is_told(api_key: int, version: int, strict: bool) -> None:
    request, answer = REQUESTS[api_key]
    with rig() as made:
        made.publish(topic_image("old", 1))
        call, message = made.asked(api_key, version, request)
        assert message.account == Account("ANONYMOUS", "test", strict)
        made.reply(call, answer)
        (reply,) = made.processor.replies()
        _, response = decode_response_frame(api_key, version, made.processor.frame_of(reply)[4:])
        assert reply.throttle_ms == response.throttle_time_ms == 1234
