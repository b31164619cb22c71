"""A group coordinator without I/O: the test is its clock, its log and its clients."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.coordinator import GroupCoordinator
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.coordinator.runtime.repeats import Repeatable
from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.coordinator.runtime.write_queue import Marker, Producer
from mpbroker.ipc.table import PAYLOAD_BYTES, unpack_partition
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    Message,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicRecord,
    TxnOffsetCommitRequest,
)
from mpbroker.records.iterate import iterate_batches
from mpbroker.security.acls import Operation, ResourceType
from mpbroker.security.authorizer import Client
from tests.support.dispatch import dispatch

JOIN_VERSION = 9
PARTITIONS = 5
SESSION_MS = 10_000
REBALANCE_MS = 60_000
TOPICS = {"t": 4, "u": 1}
CLIENT = Client("User:u", "127.0.0.1")
DAY_MS = 24 * 3_600_000
# How often expired offsets are looked for.
CHECK_MS = 600_000


def subscription(*topics: str) -> bytes:
    names = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class GroupRig:
    """`log` has the batches of each partition; `answers` what was said to whom, once each.

    The transaction coordinator says `verdict` of what it is asked, or nothing as long as that is None.
    """

    def __init__(self, log: dict[int, bytes] | None = None, **settings: Any):
        self.config = BrokerConfig(**settings)  # type: ignore[arg-type]
        self.now_ms = 1_000_000
        self.log = log if log is not None else dict.fromkeys(range(PARTITIONS), b"")
        self.verdict: ErrorCode | None = ErrorCode.NONE
        self.checks: list[tuple[tuple[str, Producer, int, bool], Callable[[ErrorCode], None]]] = []
        self.answers: dict[int, Message | Repeatable | ErrorCode] = {}
        # By client, version and request.
        self.repeats: dict[tuple[str, int, str], Repeatable] = {}
        self.numbers = itertools.count(1)
        self.ids = itertools.count(1)
        self.metadata = MetadataState()
        self.topics = dict(TOPICS)
        self.incarnations: Counter[str] = Counter()
        self.metadata.ids = {name: self.id_of(name) or b"" for name in self.topics}
        # Topics that nobody may describe.
        self.denied: set[str] = set()
        self.coordinator = GroupCoordinator(
            self.config, self, self, self, lambda: f"id{next(self.ids)}", self
        )
        # Whether a computation ends within its first slice does not depend on the machine.
        self.coordinator.background.slice_s = 60
        self.queue = self.coordinator.queue
        self.coordinator.partitions.open(PARTITIONS)
        for partition in self.log:
            self.load(partition)

    # --- what the coordinator sees

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ms

    def is_allowed(self, client: Client, operation: Operation, kind: ResourceType, name: str) -> bool:
        assert (client, operation, kind) == (CLIENT, Operation.DESCRIBE, ResourceType.TOPIC)
        return name not in self.denied

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, or enlarge it."""
        is_new = name not in self.topics
        self.topics[name] = partitions
        if is_new:
            self.metadata.apply_all([TopicRecord(name, self.id_of(name) or b"")])
        self.coordinator.topics_changed({name})

    def delete(self, name: str) -> None:
        """Delete a topic. If it is created again, it has another id."""
        del self.topics[name]
        self.metadata.topics.pop(self.metadata.ids.pop(name), None)
        self.metadata.next_offset += 1
        self.incarnations[name] += 1
        self.coordinator.topics_changed({name})
        self.coordinator.topics_deleted({name})

    def partitions_of(self, name: str) -> int:
        return self.topics.get(name, 0)

    def name_of(self, topic_id: bytes) -> str | None:
        return {self.id_of(name): name for name in self.topics}.get(topic_id)

    def id_of(self, name: str) -> bytes | None:
        if name not in self.topics:
            return None
        number = self.incarnations[name]
        return f"{name}{number or ''}".encode().ljust(16, b"-")

    def answer(self, waiter: Any, response: Message | Repeatable) -> None:
        assert waiter not in self.answers, f"{waiter} is answered twice"
        self.answers[waiter] = response

    def answer_in_pieces(self, waiter: Any, response: Message) -> Iterator[None]:
        self.answer(waiter, response)
        yield

    def fail(self, waiter: Any, error: ErrorCode) -> None:
        assert waiter not in self.answers, f"{waiter} is answered twice"
        self.answers[waiter] = error

    def check_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        partition: int,
        adds: bool,
        then: Callable[[ErrorCode], None],
    ) -> None:
        self.checks.append(((transactional_id, producer, partition, adds), then))
        if self.verdict is not None:
            then(self.verdict)

    # --- the log

    def append_round(
        self, error: ErrorCode = ErrorCode.NONE, refused: Callable[[int], bool] = lambda _place: True
    ) -> bool:
        """One round becomes durable, or some of its batches are refused; False if there is none."""
        batches = self.queue.next_round()
        errors = [error if refused(place) else ErrorCode.NONE for place in range(len(batches))]
        for batch, outcome in zip(batches, errors, strict=True):
            if not outcome:
                self.log[batch.partition] += batch.batch
        if batches:
            self.queue.finish(errors)
        return bool(batches)

    def settle(self) -> None:
        while self.append_round():
            pass

    def load(self, partition: int) -> None:
        contents = self.coordinator.contents
        contents.begin()
        for batch in iterate_batches(self.log[partition]):
            contents.read(partition, batch)
        contents.end(unpack_partition(bytes(PAYLOAD_BYTES))._replace(partition=partition))

    def reload(self) -> None:
        """The log process died: whatever was under way is unknown, and the log is read again."""
        self.queue.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.coordinator.unload()
        assert self.coordinator.rebalances.waiting == 0
        self.coordinator.partitions.open(len(self.log))
        for partition in self.log:
            self.load(partition)

    def until_answered(self, *waiters: int) -> None:
        for _ in range(REBALANCE_MS):
            if all(waiter in self.answers for waiter in waiters):
                return
            self.later(100)
        raise AssertionError(f"{waiters} are not answered within a rebalance timeout")

    def restarted(self) -> GroupRig:
        """A successor that knows what is in the log."""
        rig = GroupRig(self.log)
        rig.config = self.config
        rig.ids = self.ids  # never the same one again, as it is with random ones
        return rig

    def take_over(self, before: GroupRig) -> None:
        """Know the time and the topics, as a process that starts again."""
        self.now_ms, self.numbers = before.now_ms, before.numbers
        self.topics, self.metadata, self.incarnations = before.topics, before.metadata, before.incarnations

    # --- requests

    def ask(self, request: Message, version: int = JOIN_VERSION, client: str = "c") -> int:
        waiter = next(self.numbers)
        context = RequestContext(waiter, version, client, f"/{CLIENT.host}", CLIENT.principal)
        call = client, version, repr(request)
        known = self.repeats.pop(call, None)
        is_repeated = known is not None and known.again()
        dispatch(self.coordinator.served, self, context, request)
        if isinstance(response := self.answers.get(waiter), Repeatable):
            self.repeats[call], self.answers[waiter] = response, response.response
        if known is not None and is_repeated:
            assert self.answers.get(waiter) == known.response, "a repeated request would get another answer"
            assert call in self.repeats
        return waiter

    def now(self, request: Message, version: int = JOIN_VERSION) -> Any:
        """The answer, which must come without anything else happening but appends."""
        waiter = self.ask(request, version)
        self.settle()
        return self.answers[waiter]

    def later(self, delay_ms: int) -> None:
        """Time goes by, timer by timer."""
        until_ms = self.now_ms + delay_ms
        while (due := self.coordinator.timers.next_deadline_ms()) is not None and due <= until_ms:
            self.now_ms = max(self.now_ms, due)
            self.coordinator.tick()
            self.settle()
        self.now_ms = until_ms

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        version: int = JOIN_VERSION,
        instance: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        topics: tuple[str, ...] = ("t",),
        session_ms: int = SESSION_MS,
        client: str = "c",
    ) -> int:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name, subscription(*topics)) for name in protocols
            ],
        )
        return self.ask(request, version, client)

    def new_member(self, **how: Any) -> tuple[str, int]:
        """-> its id, and who waits for the end of its join."""
        refused = self.answers[self.join(**how)]
        assert isinstance(refused, JoinGroupResponse)
        assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return refused.member_id, self.join(refused.member_id, **how)

    def joined(self, waiter: int) -> JoinGroupResponse:
        answer = self.answers[waiter]
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error_code == 0, answer
        return answer

    def sync(
        self, member_id: str, generation: int, shares: dict[str, bytes] | None = None, **how: Any
    ) -> int:
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(*share) for share in (shares or {}).items()
        ]
        request = SyncGroupRequest("g", generation, member_id, assignments=assignments, **how)
        return self.ask(request)

    def synced(self, waiter: int) -> bytes:
        answer = self.answers[waiter]
        assert isinstance(answer, SyncGroupResponse)
        assert answer.error_code == 0, answer
        return answer.assignment

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return code_of(self.now(HeartbeatRequest("g", generation, member_id, instance)))

    def leave(self, *members: tuple[str, str | None]) -> list[int]:
        identities = [LeaveGroupRequest.MemberIdentity(*member) for member in members]
        return [m.error_code for m in self.now(LeaveGroupRequest("g", members=identities)).members]

    def stable(self, count: int = 2) -> tuple[list[str], int]:
        """A group of so many members, who have their assignments; -> their ids, the leader first."""
        members = [self.new_member() for _ in range(count)]
        self.until_answered(*(waiter for _, waiter in members))
        answers = [self.joined(waiter) for _, waiter in members]
        generation, leader = answers[0].generation_id, answers[0].leader
        ids = sorted((member_id for member_id, _ in members), key=lambda member_id: member_id != leader)
        waiters = [self.sync(member_id, generation) for member_id in ids[1:]]
        waiters.append(self.sync(leader, generation, {member_id: member_id.encode() for member_id in ids}))
        self.settle()
        assert [self.synced(w) for w in waiters] == [i.encode() for i in [*ids[1:], leader]]
        return ids, generation

    def commit(
        self, offset: int, member_id: str = "", generation: int = -1, *, version: int = 9, **how: Any
    ) -> int:
        topics = [
            OffsetCommitRequest.OffsetCommitRequestTopic(
                how.pop("topic", "t"),
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        how.pop("partition", 0), offset, 3, how.pop("metadata", "m")
                    )
                ],
            )
        ]
        request = OffsetCommitRequest(how.pop("group", "g"), generation, member_id, topics=topics, **how)
        return self.ask(request, version)

    def commit_in_transaction(
        self,
        offset: int,
        producer: tuple[int, int] = (7, 0),
        *,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        metadata: str = "m",
        version: int = 5,
        **member: Any,
    ) -> int:
        asked = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition, offset, 3, metadata)
        topics = [TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(topic, [asked])]
        request = TxnOffsetCommitRequest("id", group, *producer, topics=topics, **member)
        return self.ask(request, version)

    def end(self, is_commit: bool, producer: tuple[int, int] = (7, 0), group: str = "g") -> list[ErrorCode]:
        """Sends the marker; -> its outcome, once there is one."""
        outcome: list[ErrorCode] = []
        partition = self.coordinator.partitions.partition_for(group)
        marker = Marker(*producer, 0, is_commit)
        self.coordinator.txn_offset_commit.write_marker(partition, marker, outcome.append)
        return outcome

    def fetched(
        self, group: str = "g", topics: Collection[str] | None = ("t",), *, stable: bool = False
    ) -> dict[tuple[str, int], int | ErrorCode]:
        """The offsets, or why there is none, of the first partition of each topic or of all there are."""
        wanted = [OffsetFetchRequest.OffsetFetchRequestTopics(t, partition_indexes=[0]) for t in topics or ()]
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(
            group, topics=wanted if topics is not None else None
        )
        (answer,) = self.now(OffsetFetchRequest(groups=[asked], require_stable=stable)).groups
        assert not answer.error_code
        return {
            (topic.name, found.partition_index): code_of(found)
            if found.error_code
            else found.committed_offset
            for topic in answer.topics
            for found in topic.partitions
        }

    def committed(self, group: str = "g", topic: str = "t", partition: int = 0) -> int:
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(
            group, topics=[OffsetFetchRequest.OffsetFetchRequestTopics(topic, partition_indexes=[partition])]
        )
        answer = self.now(OffsetFetchRequest(groups=[asked]))
        found: int = answer.groups[0].topics[0].partitions[0].committed_offset
        return found

    @property
    def state(self) -> str:
        return self.coordinator.manager.groups["g"].state.value


def code_of(answer: Any) -> ErrorCode:
    """The error of a whole answer."""
    return answer if isinstance(answer, ErrorCode) else error_code(answer.error_code)


def error_of(rig: GroupRig, waiter: int) -> ErrorCode:
    return code_of(rig.answers[waiter])


def outcome(rig: GroupRig, waiter: int) -> ErrorCode:
    """Return the error of a commit of one partition."""
    rig.settle()
    answer: Any = rig.answers[waiter]
    if isinstance(answer, ErrorCode):
        return answer
    return next(code for code in ErrorCode if code == answer.topics[0].partitions[0].error_code)
