"""What the coordinator asks of the log process: append to its log, open a topic, remove one.

Every question is answered once by the process it was asked of, or never if that died: then `forget` drops all
of them, and what still has to be is asked again of the successor. Opening and removing are idempotent. An
answer to what we did not ask is dropped: fences keep it from coming, and if one fails that must not end us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from mpbroker.coordinator.mailbox import Lender, Peer, returned
from mpbroker.coordinator.state import Topic
from mpbroker.ipc.calls import EnsureTopic, Failed, Message, Recovered, RemoveTopic
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.slots import (
    Batch,
    Call,
    SlotKind,
    job_bytes,
    kind_of,
    pack_produce,
    read_job_batch,
    read_job_header,
    unpack_call,
    unpack_produce,
    write_job_batch,
    write_job_header,
)
from mpbroker.ipc.table import Partition
from mpbroker.ipc.topology import CALL_RING_SLOTS, COORDINATOR, LOG
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID

ACKS_ALL = -1
# A decision has no client's deadline: what became of it is known or will be read from the log.
NO_TIMEOUT_MS = (1 << 31) - 1
# Credits: with a round of metadata and one of groups on top there is always room for the answers, and for
# returning them.
QUESTIONS_UNDER_WAY = CALL_RING_SLOTS // 2 - 1
REQUEST_MAX = 0xFFFFFFFF
INCARNATION_SHIFT = 20


class LogEvents(Protocol):
    """What the log process has to say."""

    def appended(self, error: int, base_offset: int) -> None: ...
    def opened(self, topic: Topic, answer: Message) -> None: ...
    def removed(self, topic_id: bytes, answer: Message) -> None: ...
    def log_answers(self) -> None: ...


class NewBatch(NamedTuple):
    """A batch for a partition of ours: where it goes, and how many records it has."""

    slot: int
    slot_generation: int
    config_version: int
    data: bytes
    record_count: int
    max_timestamp: int = -1


class Kind(Enum):
    GREETING = 0
    OPENING = 1
    REMOVAL = 2
    RECOVERED = 3


@dataclass(frozen=True)
class _Question:
    """`call` is the descriptor; its block is lent until the answer comes. `topic`: as it was opened."""

    kind: Kind
    topic_id: bytes
    call: Call
    topic: Topic | None = None


class LogLink:
    """The conversation with the log process of the moment."""

    def __init__(self, context: ProcessContext, lender: Lender, events: LogEvents) -> None:
        self.peer = Peer(context, LOG)
        self._context = context
        self._lender = lender
        self._events = events
        # None of a predecessor's numbers: what answers it must not pass for an answer to us.
        self._request = context.incarnation << INCARNATION_SHIFT & REQUEST_MAX
        self._appends: dict[int, Callable[[list[Batch]], None]] = {}
        self._questions: dict[int, _Question] = {}
        self._unasked: deque[tuple[Message, Kind, bytes, Topic | None]] = deque()
        self._opening: set[bytes] = set()
        # Has changed while it was being opened: once more then, as it is now.
        self._opening_again: dict[bytes, tuple[Topic, int | None]] = {}
        self._removing: dict[bytes, str] = {}

    @property
    def idle(self) -> bool:
        return not (self._questions or self._unasked or self._removing or self.peer.has_unsent)

    def greet(self) -> None:
        """A question about our own log: the answer says that its owner has opened it and serves us."""
        self._ask(EnsureTopic(METADATA_TOPIC, METADATA_TOPIC_ID, [0]), Kind.GREETING)

    def open(self, topic: Topic, new_from: int | None = None) -> None:
        """Nothing can have been appended to partitions from `new_from` on."""
        if topic.topic_id in self._opening:
            self._opening_again[topic.topic_id] = topic, new_from
            return
        self._opening.add(topic.topic_id)
        message = EnsureTopic(
            topic.name,
            topic.topic_id,
            list(range(topic.partitions)),
            topic.configs,
            topic.config_version,
            new_from,
        )
        self._ask(message, Kind.OPENING, topic.topic_id, topic)

    def remove(self, name: str, topic_id: bytes) -> None:
        """After the topic's opening, if that is under way: the two must not cross."""
        self._removing[topic_id] = name
        if topic_id not in self._opening:
            self._ask(RemoveTopic(name, topic_id), Kind.REMOVAL, topic_id)

    def recovered(self, topics: Iterable[Topic]) -> None:
        self._ask(Recovered({topic.name: topic.topic_id for topic in topics}), Kind.RECOVERED)

    def append(self, batch: bytes, count: int, slot: Partition) -> None:
        """One batch to our own log; `appended` follows when it is durable or refused."""
        new = NewBatch(METADATA_SLOT, slot.generation, slot.config_version, batch, count)
        self.append_all([new], lambda done: self._events.appended(done[0].error, done[0].base_offset))

    def append_all(self, batches: Sequence[NewBatch], done: Callable[[list[Batch]], None]) -> None:
        """Batches to several partitions; `done` follows when each is durable or refused, never if it dies."""
        head = job_bytes(len(batches))
        block, generation = self._lender.lend(bytes(head) + b"".join(b.data for b in batches), LOG)
        job = self._lender.view(block)
        write_job_header(job, len(batches))
        at = block + head
        for index, batch in enumerate(batches):
            write_job_batch(
                job,
                index,
                batch.slot,
                batch.slot_generation,
                at,
                COORDINATOR,
                len(batch.data),
                batch.record_count,
                max_timestamp=batch.max_timestamp,
                config_version=batch.config_version,
            )
            at += len(batch.data)
        request = self._next_request()
        self._appends[request] = done
        self.peer.send(
            pack_produce(
                SlotKind.PRODUCE_BACK,
                ACKS_ALL,
                COORDINATOR,
                0,
                0,
                block,
                generation,
                0,
                COORDINATOR,
                COORDINATOR,
                NO_TIMEOUT_MS,
                request,
            )
        )

    def receive(self) -> None:
        for slot in self.peer.take():
            match kind_of(slot):
                case SlotKind.PRODUCED:
                    self._produced(slot)
                case SlotKind.ANSWER:
                    self._answered(unpack_call(slot))
                case kind:
                    raise ValueError(f"the log process sent a descriptor of kind {kind}")

    def forget(self) -> None:
        """The log process died, with everything that was asked of it."""
        self.peer.drop()
        self._forget_questions()

    def welcome(self) -> None:
        """A successor is there, behind empty rings."""
        self.peer.rebind()
        self._forget_questions()

    def _forget_questions(self) -> None:
        self._appends.clear()
        self._questions.clear()
        self._unasked.clear()
        self._opening.clear()
        self._opening_again.clear()
        self._lender.reclaim(LOG)

    def resume(self) -> None:
        """A successor serves: asks again for what was to be removed."""
        for topic_id, name in list(self._removing.items()):
            self.remove(name, topic_id)

    def _ask(self, message: Message, kind: Kind, topic_id: bytes = b"", topic: Topic | None = None) -> None:
        self._unasked.append((message, kind, topic_id, topic))
        self._ask_on()

    def _ask_on(self) -> None:
        """In the order in which it was wanted, as far as the credits go."""
        while self._unasked and len(self._questions) < QUESTIONS_UNDER_WAY:
            message, kind, topic_id, topic = self._unasked.popleft()
            request = self._next_request()
            slot = self._lender.message(SlotKind.CALL, message, LOG, request)
            self._questions[request] = _Question(kind, topic_id, unpack_call(slot), topic)
            self.peer.send(slot)

    def _read(self, call: Call) -> Message:
        """An answer without a block: its owner had no memory for it."""
        if not call.block:
            return Failed(ErrorCode.UNKNOWN_SERVER_ERROR, "the log process had no memory for its answer")
        answer = self.peer.read(call)
        self.peer.send(returned(call))
        return answer

    def _next_request(self) -> int:
        self._request = self._request + 1 & REQUEST_MAX
        return self._request

    def _produced(self, slot: bytes) -> None:
        produce = unpack_produce(slot)
        done = self._appends.pop(produce.request, None)
        if done is None:
            self._context.log.error(
                "the log process answered append %d, which is none of ours", produce.request
            )
            return
        job = self._lender.view(produce.block)[produce.job :]
        batches = [read_job_batch(job, index) for index in range(read_job_header(job)[0])]
        self._lender.end(produce.block, produce.generation)
        done(batches)

    def _answered(self, call: Call) -> None:
        question = self._questions.pop(call.request, None)
        if question is None:
            self._context.log.error(
                "the log process answered question %d, which is none of ours", call.request
            )
            if call.block:
                self.peer.send(returned(call))
            return
        self._lender.end(question.call.block, question.call.generation)
        answer = self._read(call)
        self._ask_on()
        match question.kind:
            case Kind.GREETING:
                self._events.log_answers()
            case Kind.OPENING:
                self._opened(question, answer)
            case Kind.REMOVAL:
                self._removing.pop(question.topic_id, None)
                self._events.removed(question.topic_id, answer)
            case Kind.RECOVERED:
                if isinstance(answer, Failed):
                    self._context.log.error("stray directories were not sorted out: %s", answer.message)

    def _opened(self, question: _Question, answer: Message) -> None:
        assert question.topic is not None
        topic_id = question.topic_id
        again = self._opening_again.pop(topic_id, None)
        self._opening.discard(topic_id)
        self._events.opened(question.topic, answer)
        if (name := self._removing.get(topic_id)) is not None:
            self.remove(name, topic_id)
        elif again is not None and again[0] != question.topic:
            self.open(*again)
