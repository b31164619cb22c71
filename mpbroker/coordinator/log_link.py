"""What the coordinator asks of the log workers: append to its log, open a topic, remove one.

Each worker is asked about what it owns, and an answer is that of all of them. Every question is answered once
by the process it was asked of, or never if that died: then `forget` drops all of them, also what the others
are still at, and what still has to be is asked again when there is a successor. Opening and removing are
idempotent. An append to our own log is dropped only with its own worker: until it is known what became of it
nobody may read that log. An answer to what we did not ask is dropped: fences keep it from coming, and if one
fails that must not end us. What our arena has no room for waits until some of it is returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from mpbroker.coordinator.mailbox import Peer, returned
from mpbroker.coordinator.state import Topic
from mpbroker.ipc.calls import EnsuredTopic, EnsureTopic, Failed, Message, Recovered, RemoveTopic
from mpbroker.ipc.lending import Lender
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
from mpbroker.ipc.topology import (
    CALL_RING_SLOTS,
    COORDINATOR,
    log_worker,
    log_worker_of_slot,
)
from mpbroker.log.format.names import log_worker_of
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from shm.arena import ArenaFull

ACKS_ALL = -1
# A decision has no client's deadline: what became of it is known or will be read from the log.
NO_TIMEOUT_MS = (1 << 31) - 1
# Rounds that can be under way at once: of metadata, of groups, of transactions, of markers.
ROUNDS = 4
# Credits: with all rounds on top there is always room for the answers, and for returning them.
QUESTIONS_UNDER_WAY = (CALL_RING_SLOTS - ROUNDS) // 2


class LogEvents(Protocol):
    """What the log workers have to say."""

    def appended(self, error: int, base_offset: int) -> None: ...
    def opened(self, topic: Topic, answer: Message) -> None: ...
    def removed(self, topic_id: bytes, answer: Message) -> None: ...
    def log_answers(self) -> None: ...


class NewBatch(NamedTuple):
    """A batch: where it goes, how many records it has, and whose it is if it belongs to a transaction."""

    slot: int
    slot_generation: int
    config_version: int
    data: bytes
    record_count: int
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    attributes: int = 0


class Kind(Enum):
    GREETING = 0
    OPENING = 1
    REMOVAL = 2
    RECOVERED = 3


@dataclass
class _Asked:
    """A question, and what those it was asked of have answered. `topic`: as it was opened."""

    kind: Kind
    topic_id: bytes
    topic: Topic | None
    missing: int
    answers: list[Message] = field(default_factory=list)
    is_void: bool = False


@dataclass(frozen=True)
class _Question:
    """A worker's part of it. `call` is the descriptor; its block is lent until the answer comes."""

    asked: _Asked
    worker: int
    call: Call


@dataclass
class _Appended:
    """Batches that are appended together. Who waits for them to our own log, waits on when others die."""

    done: Callable[[list[Batch]], None]
    filled: list[Batch | None]
    missing: int
    is_to_our_log: bool
    is_void: bool = False


@dataclass(frozen=True)
class _Append:
    """A worker's part of them: at which places they stand."""

    whole: _Appended
    worker: int
    places: list[int]


class LogLink:
    """The conversation with the log workers of the moment."""

    def __init__(self, context: ProcessContext, lender: Lender, events: LogEvents) -> None:
        self.workers = range(context.memory.sizes.log_workers)
        self._peers = [Peer(context, log_worker(worker)) for worker in self.workers]
        self._up = {worker for worker in self.workers if context.is_alive(log_worker(worker))}
        self._context = context
        self._lender = lender
        self._events = events
        self._numbers = context.call_numbers()
        self._appends: dict[int, _Append] = {}
        self._questions: dict[int, _Question] = {}
        self._unasked: deque[tuple[_Asked, int, Message]] = deque()
        self._unsent: deque[tuple[_Append, Sequence[NewBatch]]] = deque()
        self.waits_for_room = False
        self._opening: set[bytes] = set()
        # Has changed while it was being opened: once more then, as it is now.
        self._opening_again: dict[bytes, tuple[Topic, int | None]] = {}
        self._removing: dict[bytes, str] = {}

    @property
    def is_up(self) -> bool:
        """Whether every worker is there."""
        return len(self._up) == len(self.workers)

    @property
    def is_appending(self) -> bool:
        """Whether something that was sent may still be appended."""
        return bool(self._appends)

    @property
    def idle(self) -> bool:
        has_unsent = any(peer.has_unsent for peer in self._peers)
        return not (self._questions or self._unasked or self._unsent or self._removing or has_unsent)

    def owing(self, topic_id: bytes) -> set[int]:
        """The workers that have not answered yet what they were, or are to be, asked about a topic."""
        asked = {one.worker for one in self._questions.values() if one.asked.topic_id == topic_id}
        return asked | {worker for one, worker, _ in self._unasked if one.topic_id == topic_id}

    def waiting(self) -> bool:
        return any(self._peers[worker].waiting() for worker in self._up)

    def flush(self) -> None:
        for worker in self._up:
            self._peers[worker].flush()

    def greet(self) -> None:
        """A question about our own log: the answer says that its owner has opened it and serves us."""
        self._ask({0: EnsureTopic(METADATA_TOPIC, METADATA_TOPIC_ID, [0])}, Kind.GREETING)

    def open(self, topic: Topic, new_from: int | None = None) -> None:
        """Nothing can have been appended to partitions from `new_from` on."""
        if not self.is_up:
            return  # all are opened when they are there
        if topic.topic_id in self._opening:
            self._opening_again[topic.topic_id] = topic, new_from
            return
        self._opening.add(topic.topic_id)
        owned: dict[int, list[int]] = {}
        for partition in range(topic.partitions):
            owned.setdefault(log_worker_of(topic.name, partition, len(self.workers)), []).append(partition)
        messages = {
            worker: EnsureTopic(
                topic.name, topic.topic_id, partitions, topic.configs, topic.config_version, new_from
            )
            for worker, partitions in owned.items()
        }
        self._ask(messages, Kind.OPENING, topic.topic_id, topic)

    def remove(self, name: str, topic_id: bytes) -> None:
        """After the topic's opening, if that is under way: the two must not cross."""
        self._removing[topic_id] = name
        if topic_id not in self._opening and self.is_up:
            self._ask_all(RemoveTopic(name, topic_id), Kind.REMOVAL, topic_id)

    def recovered(self, topics: Iterable[Topic]) -> None:
        self._ask_all(Recovered({topic.name: topic.topic_id for topic in topics}), Kind.RECOVERED)

    def append(self, batch: bytes, count: int, slot: Partition) -> None:
        """One batch to our own log; `appended` follows when it is durable or refused."""
        new = NewBatch(METADATA_SLOT, slot.generation, slot.config_version, batch, count)
        self.append_all([new], lambda done: self._events.appended(done[0].error, done[0].base_offset))

    def append_all(self, batches: Sequence[NewBatch], done: Callable[[list[Batch]], None]) -> None:
        """Batches to several partitions; `done` follows when each is durable or refused, never if it dies."""
        places: dict[int, list[int]] = {}
        for place, batch in enumerate(batches):
            places.setdefault(log_worker_of_slot(batch.slot, len(self.workers)), []).append(place)
        is_to_our_log = all(batch.slot == METADATA_SLOT for batch in batches)
        whole = _Appended(done, [None] * len(batches), len(places), is_to_our_log)
        for worker, own in places.items():
            self._unsent.append((_Append(whole, worker, own), [batches[place] for place in own]))
        self._send_on()

    def _send_on(self) -> None:
        """What waits, the appends first, as far as there is room for it in our arena."""
        try:
            while self._unsent:
                self._append_part(*self._unsent[0])
                self._unsent.popleft()
            self._ask_on()
        except ArenaFull as error:
            if not self._lender.in_use_bytes:
                raise  # nothing will ever be returned that makes room for it
            if not self.waits_for_room:
                self._context.log.warning("the log process is asked when there is room for it: %s", error)
            self.waits_for_room = True
        else:
            self.waits_for_room = False

    def _append_part(self, part: _Append, batches: Sequence[NewBatch]) -> None:
        """Raises ArenaFull, having sent nothing."""
        head = job_bytes(len(batches))
        data = bytes(head) + b"".join(b.data for b in batches)
        block, generation = self._lender.lend(data, log_worker(part.worker))
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
                batch.producer_id,
                batch.producer_epoch,
                max_timestamp=batch.max_timestamp,
                config_version=batch.config_version,
                attributes=batch.attributes,
            )
            at += len(batch.data)
        request = next(self._numbers)
        self._appends[request] = part
        self._peers[part.worker].send(
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
        for worker in list(self._up):
            for slot in self._peers[worker].take():
                match kind_of(slot):
                    case SlotKind.PRODUCED:
                        self._produced(slot)
                    case SlotKind.ANSWER:
                        self._answered(worker, unpack_call(slot))
                    case kind:
                        raise ValueError(f"log worker {worker} sent a descriptor of kind {kind}")
        if self.waits_for_room:
            self._send_on()

    def forget(self, worker: int) -> None:
        """A log worker died, with everything that was asked of it; the others go on with what they have."""
        self._peers[worker].drop()
        self._up.discard(worker)
        self._forget_questions(worker)

    def welcome(self, worker: int) -> None:
        """A successor is there, behind empty rings."""
        self._peers[worker].rebind()
        self._up.add(worker)
        self._forget_questions(worker)

    def _forget_questions(self, worker: int) -> None:
        for question in self._questions.values():
            question.asked.is_void = True
        self._questions = {n: one for n, one in self._questions.items() if one.worker != worker}
        for append in self._appends.values():
            if append.worker == worker or not append.whole.is_to_our_log:
                append.whole.is_void = True
        self._appends = {n: one for n, one in self._appends.items() if one.worker != worker}
        self._unasked.clear()
        self._unsent.clear()
        self._opening.clear()
        self._opening_again.clear()
        self._lender.reclaim(log_worker(worker))

    def resume(self) -> None:
        """All serve again: asks for what was to be removed."""
        for topic_id, name in list(self._removing.items()):
            self.remove(name, topic_id)

    def _ask_all(self, message: Message, kind: Kind, topic_id: bytes = b"") -> None:
        self._ask(dict.fromkeys(self.workers, message), kind, topic_id)

    def _ask(
        self, messages: Mapping[int, Message], kind: Kind, topic_id: bytes = b"", topic: Topic | None = None
    ) -> None:
        """Each worker its own."""
        asked = _Asked(kind, topic_id, topic, len(messages))
        self._unasked.extend((asked, worker, message) for worker, message in messages.items())
        self._send_on()

    def _ask_on(self) -> None:
        """In the order in which it was wanted, as far as the credits go. Raises ArenaFull."""
        while self._unasked and len(self._questions) < QUESTIONS_UNDER_WAY:
            asked, worker, message = self._unasked[0]
            request = next(self._numbers)
            slot = self._lender.message(SlotKind.CALL, message, log_worker(worker), request)
            self._unasked.popleft()
            self._questions[request] = _Question(asked, worker, unpack_call(slot))
            self._peers[worker].send(slot)

    def _read(self, worker: int, call: Call) -> Message:
        """An answer without a block: its owner had no memory for it."""
        if not call.block:
            return Failed(ErrorCode.UNKNOWN_SERVER_ERROR, "the log worker had no memory for its answer")
        answer = self._peers[worker].read(call)
        self._peers[worker].send(returned(call))
        return answer

    def _produced(self, slot: bytes) -> None:
        produce = unpack_produce(slot)
        part = self._appends.pop(produce.request, None)
        if part is None:
            self._context.log.error("a log worker answered append %d, which is none of ours", produce.request)
            return
        whole = part.whole
        job = self._lender.view(produce.block)[produce.job :]
        for index, place in enumerate(part.places[: read_job_header(job)[0]]):
            whole.filled[place] = read_job_batch(job, index)
        self._lender.end(produce.block, produce.generation)
        whole.missing -= 1
        if not whole.missing and not whole.is_void:
            whole.done([batch for batch in whole.filled if batch is not None])

    def _answered(self, worker: int, call: Call) -> None:
        question = self._questions.pop(call.request, None)
        if question is None:
            self._context.log.error("a log worker answered question %d, which is none of ours", call.request)
            if call.block:
                self._peers[worker].send(returned(call))
            return
        self._lender.end(question.call.block, question.call.generation)
        asked = question.asked
        asked.answers.append(self._read(worker, call))
        asked.missing -= 1
        self._send_on()
        if asked.missing or asked.is_void:
            return
        failed = next((answer for answer in asked.answers if isinstance(answer, Failed)), None)
        match asked.kind:
            case Kind.GREETING:
                self._events.log_answers()
            case Kind.OPENING:
                self._opened(asked)
            case Kind.REMOVAL:
                self._removing.pop(asked.topic_id, None)
                self._events.removed(asked.topic_id, failed or asked.answers[0])
            case Kind.RECOVERED:
                if failed is not None:
                    self._context.log.error("stray directories were not sorted out: %s", failed.message)

    def _opened(self, asked: _Asked) -> None:
        assert asked.topic is not None
        topic_id = asked.topic_id
        again = self._opening_again.pop(topic_id, None)
        self._opening.discard(topic_id)
        self._events.opened(asked.topic, _together(topic_id, asked.answers))
        if (name := self._removing.get(topic_id)) is not None:
            self.remove(name, topic_id)
        elif again is not None and again[0] != asked.topic:
            self.open(*again)


def _together(topic_id: bytes, answers: list[Message]) -> Message:
    """What of a topic is open: what none of the answers names is not, and is to be asked for again."""
    ensured = [answer for answer in answers if isinstance(answer, EnsuredTopic)]
    if len(answers) == 1 or not ensured:
        return answers[0]
    return EnsuredTopic(topic_id, [partition for answer in ensured for partition in answer.partitions])
