"""Groups in the coordinator process, with the real log process: either dies, and the log is read again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.calls import Abandon, Acknowledged, CreateTopic, CreateTopics, DeleteTopics
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.topology import COORDINATOR
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    EndTxnRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    ListGroupsRequest,
    Message,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from tests.support.coordinator_party import RETRIED, CoordinatorParty
from tests.support.coordinator_tree import CoordinatorTree
from tests.support.forms import each


@pytest.fixture
def party(make_tree: Callable[..., CoordinatorTree]) -> Iterator[CoordinatorParty]:
    made = CoordinatorParty(make_tree)
    yield made
    made.log.kill()


def ask_in_transaction(party: CoordinatorParty, request: Message) -> Any:
    """Ask until the coordinator can say something about the id, as clients do."""
    while True:
        answer = party.ask(request)
        code = answer if isinstance(answer, ErrorCode) else getattr(answer, "error_code", 0)
        if code not in (*RETRIED, ErrorCode.CONCURRENT_TRANSACTIONS):
            return answer


def test_the_first_commit_creates_the_topic(party: CoordinatorParty, tmp_path: Path) -> None:
    assert party.ask(ListGroupsRequest()).groups == []
    assert not list(tmp_path.glob("__consumer_offsets-*"))
    assert party.ask(party.commit(7)).topics[0].partitions[0].error_code == 0
    assert len(list(tmp_path.glob("__consumer_offsets-*"))) == 3
    image = party.tree.handlers[1].topics["__consumer_offsets"]
    assert (image.internal, image.configs["cleanup.policy"]) == (True, "compact")
    assert party.committed() == [7, -1]


@pytest.mark.parametrize("victim", ["coordinator", "log"])
def test_groups_and_offsets_come_back(party: CoordinatorParty, victim: str) -> None:
    member_id = party.stable_member()
    party.ask(party.commit(3, group="simple"))
    party.kill_coordinator() if victim == "coordinator" else party.kill_log()
    assert party.ask(HeartbeatRequest("g", 1, member_id)).error_code == 0
    assert party.ask(SyncGroupRequest("g", 1, member_id)).assignment == b"all"
    assert party.committed("simple") == [3, -1]
    listed = {(g.group_id, g.group_state) for g in party.ask(ListGroupsRequest()).groups}
    assert listed == {("g", "Stable"), ("simple", "Empty")}


def test_kills_at_random_moments_lose_no_answered_commit(party: CoordinatorParty) -> None:
    chance = random.Random(3)
    party.ask(party.commit(0))
    promised = [0, 0]
    for offset in range(1, 60):
        partition = chance.randrange(2)
        sent = party.call(party.commit(offset, partition))
        if chance.random() < 0.15:
            for _ in range(chance.randrange(4)):
                party.tree.pump()
            party.kill_coordinator() if chance.random() < 0.5 else party.kill_log()
            answer = party.heard(sent, 8)
        else:
            answer = party.answer_to(sent, 8)
        if answer is not None and answer not in RETRIED and not answer.topics[0].partitions[0].error_code:
            promised[partition] = offset
    assert all(there >= said for there, said in zip(party.committed(), promised, strict=True))


def test_an_abandoned_join_is_answered_and_leaves_no_trace(party: CoordinatorParty) -> None:
    first = party.stable_member()
    member_id = party.ask(party.join()).member_id
    waiting = party.call(party.join(member_id))
    fake = party.tree.handlers[0]
    asked = fake.call(Abandon(waiting))
    party.tree.until(lambda: asked in fake.answers and waiting in fake.answers)
    assert fake.answers[asked] == Acknowledged()
    # The group waits for it no more than for any member: it has its session's time.
    assert party.ask(HeartbeatRequest("g", 1, first)) is ErrorCode.REBALANCE_IN_PROGRESS
    counters = party.tree.memory.counters(COORDINATOR)
    party.tree.until(lambda: counters.get(Counter.COUNT_ARENA_BYTES) == 0)


def test_a_dead_handler_takes_its_joins_along(party: CoordinatorParty) -> None:
    first = party.stable_member()
    member_id = party.ask(party.join()).member_id
    waiting = party.call(party.join(member_id), number=1)
    party.tree.until(lambda: party.ask(HeartbeatRequest("g", 1, first)) is ErrorCode.REBALANCE_IN_PROGRESS)
    dead = party.tree.handlers[1]
    party.tree.fence(dead.index, 0)
    party.tree.memory.reset_rings_of(dead.index)
    dead.rebind()
    party.tree.fence(dead.index, 2)
    again = party.call(party.join(first))
    newcomer = party.call(party.join(member_id))
    for sent in (again, newcomer):
        assert party.answer_to(sent, 11).generation_id == 2
    assert waiting not in dead.answers


def test_offsets_go_with_their_topic_and_groups_with_theirs(party: CoordinatorParty) -> None:
    party.ask(party.commit(5))
    party.tree.ask(DeleteTopics(["t"]))
    party.tree.until(lambda: party.committed() == [-1, -1])
    party.tree.ask(CreateTopics([CreateTopic("t", 2)]))
    party.ask(party.commit(6))
    party.kill_coordinator()
    assert party.committed() == [6, -1]
    party.tree.ask(DeleteTopics(["__consumer_offsets"]))
    party.tree.until(lambda: party.ask(ListGroupsRequest()).groups == [])
    assert party.ask(party.commit(1)).topics[0].partitions[0].error_code == 0
    assert party.committed() == [1, -1]


def test_a_damaged_partition_makes_its_groups_unavailable_and_no_others(
    party: CoordinatorParty, tmp_path: Path
) -> None:
    groups = [f"g{number}" for number in range(12)]
    for group in groups:
        party.ask(party.commit(5, group=group))
    log = tmp_path / "__consumer_offsets-1" / f"{0:020d}.log"
    with log.open("r+b") as file:
        file.seek(30)
        file.write(b"\xff" * 8)
        os.fsync(file.fileno())
    party.kill_coordinator()
    codes = set()
    for group in groups:
        answer: Any = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        while answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            answer = party.answer_to(party.call(party.commit(6, group=group)), 8)
        codes.add(answer if isinstance(answer, ErrorCode) else ErrorCode.NONE)
    assert codes == {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_a_long_log_is_read_in_pieces(party: CoordinatorParty) -> None:
    """Check it with more than one piece of the file, and more than one batch in each."""
    fake = party.tree.handlers[0]
    metadata = "m" * 4000
    sent = []
    for number in range(600):
        request = party.commit(number, group=f"g{number % 7}")
        request.topics[0].partitions[0].committed_metadata = metadata
        sent.append(party.call(request))
        if number % 50 == 49:
            party.tree.until(lambda: sent[-1] in fake.answers)
    party.kill_coordinator()
    assert [party.committed(f"g{n}")[0] for n in range(7)] == [
        max(number for number in range(600) if number % 7 == n) for n in range(7)
    ]
    assert party.tree.stop() == 0


@pytest.mark.parametrize("victim", ["coordinator", "log"])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_death_between_commit_and_marker(party: CoordinatorParty, victim: str, is_commit: bool) -> None:
    party.ask(party.commit(3))
    made = ask_in_transaction(party, InitProducerIdRequest("id", 60_000))
    producer = made.producer_id, made.producer_epoch
    asked = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(0, 9)
    topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic("t", [asked])]
    answer = ask_in_transaction(party, TxnOffsetCommitRequest("id", "g", *producer, topics=topics))
    assert answer.topics[0].partitions[0].error_code == 0
    party.kill_coordinator() if victim == "coordinator" else party.kill_log()
    assert party.committed() == [3, -1]
    ended = ask_in_transaction(party, EndTxnRequest("id", *producer, committed=is_commit))
    assert (ended.error_code, ended.producer_epoch) == (0, producer[1] + 1)
    # Decided, and perhaps without its marker.
    party.kill_coordinator() if victim == "coordinator" else party.kill_log()
    if is_commit:
        party.tree.until(lambda: party.committed() == [9, -1])
    else:
        ask_in_transaction(party, InitProducerIdRequest("id", 60_000))
        assert party.committed() == [3, -1]


class Subscriber:
    """A client of the consumer protocol that takes and gives up partitions at once, and always says all."""

    def __init__(self, party: CoordinatorParty, member_id: str) -> None:
        self.party = party
        self.member_id = member_id
        self.epoch = 0
        self.owned: set[int] = set()
        self.topic_id = bytes(16)

    def request(self) -> ConsumerGroupHeartbeatRequest:
        part = ConsumerGroupHeartbeatRequest.TopicPartitions
        return ConsumerGroupHeartbeatRequest(
            "g",
            self.member_id,
            self.epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"],
            topic_partitions=[part(self.topic_id, sorted(self.owned))] if self.owned else [],
        )

    def take(self, answer: Any) -> None:
        if not isinstance(answer, ConsumerGroupHeartbeatResponse) or answer.error_code in RETRIED:
            return
        if answer.error_code:
            # A join whose answer was an error may have been lost with the log.
            assert answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND), answer
            assert self.epoch == 0, "an answered join is lost"
            return
        assert answer.member_epoch >= self.epoch
        self.epoch = answer.member_epoch
        assert answer.assignment is not None
        self.owned = {p for one in answer.assignment.topic_partitions for p in one.partitions}
        for one in answer.assignment.topic_partitions:
            self.topic_id = one.topic_id

    def beat(self) -> None:
        self.take(self.party.ask(self.request()))


@each("seed", short=[5], long=range(1, 11))
def test_a_consumer_group_survives_kills_in_rebalances(
    make_tree: Callable[..., CoordinatorTree], seed: int
) -> None:
    """No partition has two owners at any time, no answered epoch is lost, and in the end all are assigned."""
    party = CoordinatorParty(
        make_tree, group_consumer_min_assignment_interval_ms=0, group_consumer_assignment_interval_ms=0
    )
    chance = random.Random(seed)
    members = [Subscriber(party, f"m{number}") for number in range(3)]
    for number in range(40):
        member = members[min(chance.randrange(3), number // 4)]
        sent = party.call(member.request())
        if chance.random() < 0.25:
            for _ in range(chance.randrange(6)):
                party.tree.pump()
            party.kill_coordinator() if chance.random() < 0.5 else party.kill_log()
            member.take(party.heard(sent, 68))
        else:
            member.take(party.answer_to(sent, 68))
        owned = [partition for one in members for partition in one.owned]
        assert len(owned) == len(set(owned))
    for _ in range(6):
        for member in members:
            member.beat()
    assert sorted(partition for one in members for partition in one.owned) == [0, 1]
    assert len({one.epoch for one in members}) == 1
    party.log.kill()
