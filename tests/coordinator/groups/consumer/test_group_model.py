"""Consumer groups against a model: clients that lose answers, a log that refuses, topics that come and go.

What must hold whatever happens: a partition never has two owners; a client owns nothing that the coordinator
does not count as its own; the epochs that a client is told never fall; the groups are what the log says, with
all that is counted; and when all is quiet, each subscribed partition is owned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from mpbroker.coordinator.groups.consumer import changes, target_assignments
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member, size_of
from mpbroker.coordinator.groups.consumer.members import SESSION
from mpbroker.coordinator.groups.consumer.records import EpochKey
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.member_memory import MemberMemory
from mpbroker.coordinator.groups.records import decode
from mpbroker.protocol.consumer_protocol import STATIC_LEAVE_EPOCH
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConsumerGroupHeartbeatResponse, DeleteGroupsRequest
from mpbroker.records.iterate import iterate_batches
from tests.support.consumer_group_rig import FENCED, HEARTBEAT_VERSION, Consumer, described, error_of
from tests.support.forms import rounds
from tests.support.group_rig import GroupRig

# Both have the same partition of the log.
GROUPS = ("g", "l")
TOPICS = ("t", "u", "v")
REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
SESSION_MS = 45_000
AT_ONCE = target_assignments.MEMBERS_AT_ONCE, changes.PIECE_BYTES
# What does not follow from the records.
TRANSIENT = {"_memory", "must_check_metadata", "is_assigning", "unwritten", "unconfirmed"}

subscriptions = st.tuples(
    st.sets(st.sampled_from(TOPICS)).map(tuple), st.sampled_from([None, None, "", "t|u", "[uv]", ".*"])
)
subsets = st.sets(st.integers(0, 5))


def contents(group: ConsumerGroup) -> dict[str, Any]:
    found = {name: value for name, value in vars(group).items() if name not in TRANSIENT}
    return found | {"_state": group.state}


class Log:
    """Groups as the records that the log accepted describe them."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.read = Counter[int]()

    def follow(self, rig: GroupRig) -> None:
        for partition, written in rig.log.items():
            for batch in iterate_batches(written[self.read[partition] :]):
                for record in batch.records():
                    key, value = decode(record.key, record.value) or (None, None)
                    self._check_epoch(key, value)
                    self.values[type(key), key] = value
            self.read[partition] = len(written)

    def _check_epoch(self, key: Any, value: Any) -> None:
        before = self.values.get((type(key), key))
        if isinstance(key, EpochKey) and before is not None and value is not None:
            assert value.epoch > before.epoch, "the group's epoch fell"

    def groups(self) -> dict[str, ConsumerGroup]:
        found: dict[str, ConsumerGroup] = {}
        for (kind, key), value in self.values.items():
            if value is not None and kind.__module__.endswith("consumer.records"):
                found.setdefault(key.group, ConsumerGroup(key.group, MemberMemory())).replay(key, value)
        return found


class ConsumerGroupModel(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.rig = GroupRig()
        self.log = Log()
        self.all: list[Consumer] = []
        self.waiting: dict[Consumer, int] = {}
        self.count = 0

    # --- what clients do

    @initialize(is_sliced=st.booleans())
    def begin(self, is_sliced: bool) -> None:
        """Choose whether a target is computed and written in one step, or in as many as there are members."""
        self.is_sliced = is_sliced
        if is_sliced:
            target_assignments.MEMBERS_AT_ONCE = changes.PIECE_BYTES = 1  # type: ignore[misc]
        self.slow_down()

    def teardown(self) -> None:
        target_assignments.MEMBERS_AT_ONCE, changes.PIECE_BYTES = AT_ONCE  # type: ignore[misc]

    def slow_down(self) -> None:
        if self.is_sliced:
            self.rig.coordinator.background.slice_s = 0

    @rule(
        target=clients,
        group=st.sampled_from("gggl"),
        subscription=subscriptions,
        instance=st.sampled_from([None, None, "x", "y"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
        is_lazy=st.booleans(),
    )
    def start(
        self,
        group: str,
        subscription: tuple[tuple[str, ...], str | None],
        instance: str | None,
        assignor: str | None,
        is_lazy: bool,
    ) -> Consumer:
        self.count += 1
        names, pattern = subscription
        client = Consumer(
            self.rig, f"c{self.count}", names, group, instance, pattern, assignor, is_lazy=is_lazy
        )
        self.all.append(client)
        return client

    @rule(client=clients)
    def go_on(self, client: Consumer) -> None:
        """Send the client's next heartbeat unless one is under way, and let it hear an answer."""
        if client not in self.waiting:
            self.waiting[client] = self.rig.ask(client.request(), HEARTBEAT_VERSION)
        self.listen(client)

    @rule(client=clients)
    def sends(self, client: Consumer) -> None:
        if client not in self.waiting:
            self.waiting[client] = self.rig.ask(client.request(), HEARTBEAT_VERSION)

    def listen(self, client: Consumer) -> None:
        answer = self.rig.answers.get(self.waiting.get(client, 0))
        if answer is None:
            return
        del self.waiting[client]
        if isinstance(answer, ErrorCode):
            assert answer in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR), answer
            client.is_full = True
            return
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        if not answer.error_code:
            assert answer.member_epoch >= client.epoch, "a member's epoch fell"
        else:
            others = (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.NOT_COORDINATOR)
            assert error_of(answer) in (*FENCED, *others), answer
        client.take(answer)

    @rule(client=clients)
    def loses_an_answer(self, client: Consumer) -> None:
        if self.waiting.pop(client, None) is not None:
            client.is_full = True

    @rule(client=clients)
    def catches_up(self, client: Consumer) -> None:
        client.catch_up()

    @rule(client=clients, subscription=subscriptions)
    def resubscribes(self, client: Consumer, subscription: tuple[tuple[str, ...], str | None]) -> None:
        client.topics, client.pattern = subscription[0], subscription[1] or ""
        client.resubscribes = True

    @rule(client=consumes(clients), epoch=st.sampled_from([None, -1, -2]))
    def ends(self, client: Consumer, epoch: int | None) -> None:
        """End a client, which leaves, leaves for a while, or dies."""
        self.all.remove(client)
        self.waiting.pop(client, None)
        if epoch == STATIC_LEAVE_EPOCH and client.instance is None:
            epoch = -1
        if epoch is not None:
            request = client.request(member_epoch=epoch, topic_partitions=None)
            self.rig.ask(request, HEARTBEAT_VERSION)

    @rule(client=clients)
    def commits(self, client: Consumer) -> None:
        """A member may commit offsets of what it owns, with the epoch that it knows (KIP-1251)."""
        member = self.member_of(client)
        for topic_id, partition in sorted(client.owned)[:1] if member is not None else ():
            name = self.rig.name_of(topic_id)
            if name is None:
                continue
            waiter = self.rig.commit(
                7, client.member_id, client.epoch, group=client.group, topic=name, partition=partition
            )
            self.rig.settle()
            answer: Any = self.rig.answers[waiter]
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE, answer

    # --- what happens around them

    @rule(refused=subsets)
    def log_writes(self, refused: set[int]) -> None:
        self.rig.append_round(REFUSED, refused.__contains__)

    @rule(delay_ms=st.sampled_from([0, 1, 1_000, 5_000, 30_000]))
    def time_goes_by(self, delay_ms: int) -> None:
        self.rig.later(delay_ms)

    @rule()
    def a_slice_of_time(self) -> None:
        """Run the timers that are due, once, and write nothing."""
        self.rig.coordinator.tick()

    @rule(topic=st.sampled_from(TOPICS), count=st.sampled_from([0, 1, 3, 5]))
    def topics_change(self, topic: str, count: int) -> None:
        if count > self.rig.topics.get(topic, 0):
            self.rig.create(topic, count)
        elif count == 0 and topic in self.rig.topics:
            self.rig.delete(topic)

    @rule(is_written=st.booleans())
    def log_process_dies(self, is_written: bool) -> None:
        """What was under way is unknown, written or not. The coordinator reads its log again."""
        if is_written:
            for batch in self.rig.queue.next_round():
                self.rig.log[batch.partition] += batch.batch
        self.rig.reload()
        assert self.rig.queue.is_idle

    @rule()
    def coordinator_dies(self) -> None:
        before = self.rig
        self.rig = before.restarted()
        self.rig.take_over(before)
        self.slow_down()
        for client in self.all:
            client.rig = self.rig
            if self.waiting.pop(client, None) is not None:
                client.is_full = True

    @rule(group=st.sampled_from(GROUPS))
    def describes(self, group: str) -> None:
        described(self.rig, group)

    @rule(group=st.sampled_from(GROUPS))
    def deletes(self, group: str) -> None:
        self.rig.ask(DeleteGroupsRequest([group]), 2)

    # --- what must hold

    @property
    def groups(self) -> Iterator[ConsumerGroup]:
        groups = self.rig.coordinator.manager.groups.values()
        return (group for group in groups if isinstance(group, ConsumerGroup))

    def member_of(self, client: Consumer) -> Member | None:
        found = self.rig.coordinator.manager.find_consumer(client.group)
        return None if found is None else found.members.get(client.member_id)

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        owners: dict[Any, str] = {}
        for client in self.all:
            member = self.member_of(client)
            if member is None or member.epoch == STATIC_LEAVE_EPOCH:
                continue  # It was fenced, and will hear of it.
            has = partitions_of(member)
            assert client.owned <= has, "a client owns what the coordinator does not count as its own"
            for one in client.owned:
                assert owners.setdefault((client.group, *one), client.member_id) == client.member_id

    @invariant()
    def all_is_counted(self) -> None:
        used_bytes = 0
        for group in self.groups:
            members = list(group.members.values())
            owners = {(one, member.member_id) for member in members for one in partitions_of(member)}
            assert owners == {
                ((topic_id, partition), member_id)
                for topic_id, found in group.owners.items()
                for partition, member_id in found.items()
            }
            assert len(owners) == len({one for one, _ in owners})
            told = [member.metadata for member in members]
            assert group.subscribers == Counter(name for one in told for name in one.topics)
            assert group.pattern_subscribers == Counter(one.pattern for one in told if one.pattern)
            assert group.pattern_topics == Counter(
                name for one in group.patterns.values() for name in one.topics
            )
            assert group.assignor_votes == Counter(one.assignor for one in told if one.assignor)
            assert group.static_members == {
                one.metadata.instance_id: one.member_id
                for one in members
                if one.metadata.instance_id is not None
            }
            assert group.targets.keys() <= group.members.keys()
            assert group.patterns.keys() <= group.pattern_subscribers.keys()
            assert group.target.epoch <= group.epoch
            if not group.must_check_metadata:
                assert group.metadata_hash == self.hash_of(group)
            used_bytes += sum(
                len(group.group_id) + len(one.member_id) + size_of(one.metadata) for one in members
            )
        assert self.rig.coordinator.manager.memory.used_bytes == used_bytes
        assert self.rig.coordinator.timers.count(SESSION) == sum(len(group.members) for group in self.groups)

    def hash_of(self, group: ConsumerGroup) -> int:
        group.must_check_metadata = True
        found = TopicMetadata(self.rig).hash_of(group)  # type: ignore[arg-type]
        group.must_check_metadata = False
        return found

    @invariant()
    def groups_are_what_the_log_says(self) -> None:
        self.log.follow(self.rig)
        if self.rig.queue.is_idle:
            found = {group.group_id: contents(group) for group in self.groups if group.has_records}
            assert found == {name: contents(group) for name, group in self.log.groups().items()}
            assert not any(group.unwritten for group in self.groups)

    @rule()
    def all_go_on_until_it_is_quiet(self) -> None:
        quiet = 0
        for _ in range(80):
            before = [(one.epoch, set(one.owned), group_epochs(self.groups)) for one in self.all]
            for client in self.all:
                self.listen(client)
                client.catch_up()
                self.go_on(client)
                self.rig.settle()
                self.listen(client)
                client.catch_up()
                if client not in self.waiting and client.epoch == 0:
                    continue
            self.rig.later(5_000)
            after = [(one.epoch, set(one.owned), group_epochs(self.groups)) for one in self.all]
            quiet = quiet + 1 if before == after else 0
            # Sessions of those that died end, and patterns are looked up again.
            if quiet * 5_000 > SESSION_MS:
                return self._is_quiet()
        raise AssertionError("the clients do not come to rest")

    def _is_quiet(self) -> None:
        for group in self.groups:
            self._is_assigned(group)

    def _is_assigned(self, group: ConsumerGroup) -> None:
        clients = [client for client in self.all if client.group == group.group_id]
        joined = [client for client in clients if client.member_id in group.members]
        instances = {client.instance for client in joined}
        assert all(client in joined or client.instance in instances for client in clients)
        assert group.members.keys() == {client.member_id for client in joined}
        if not joined:
            return
        assert group.state.value == "Stable"
        assert {client.epoch for client in joined} <= {group.epoch}
        wanted: set[tuple[bytes, int]] = set()
        for client in joined:
            subscribed = group.topics_of(group.members[client.member_id])
            topics = {id_ for name in subscribed if (id_ := self.rig.id_of(name)) is not None}
            assert {topic_id for topic_id, _ in client.owned} <= topics
            wanted |= {(i, p) for i in topics for p in range(self.rig.partitions_of(i[:1].decode()))}
        assert sorted(one for client in joined for one in client.owned) == sorted(wanted)


def group_epochs(groups: Iterator[ConsumerGroup]) -> list[tuple[int, int]]:
    return [(group.epoch, group.target.epoch) for group in groups]


def partitions_of(member: Member) -> set[tuple[bytes, int]]:
    current = member.current
    return {
        (topic_id, partition)
        for assignment in (current.assigned, current.revoking)
        for topic_id, partitions in assignment.items()
        for partition in partitions
    }


TestConsumerGroupModel = ConsumerGroupModel.TestCase
TestConsumerGroupModel.settings = settings(max_examples=rounds(150), stateful_step_count=40, deadline=None)
