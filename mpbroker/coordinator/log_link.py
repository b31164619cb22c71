"""The coordinator's requests to the log workers: append batches, open a topic, remove a topic.

To open or remove a topic, the coordinator asks several workers the same question, each worker about the
partitions that it owns. A question is over when all its workers have answered. If a worker dies, `peer_down`
drops all questions to all workers. Openings and removals that were pending are asked again later; they are
idempotent.

An append to the metadata log is dropped only when the worker of that log dies, not when another worker dies:
the log must not be read again before the outcome of the append is known. An answer to an unknown request is
logged and ignored. (A dead worker is fenced, so such an answer comes only if a fence has failed.) A message
that does not fit into the arena waits until blocks are returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol

from mpbroker.coordinator.metadata.state import Topic
from mpbroker.ipc.append_job import AppendJobs, NewBatch, Then
from mpbroker.ipc.calls import EnsuredTopic, EnsureTopic, Failed, Message, Recovered, RemoveTopic
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.metadata import METADATA_SLOT
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.rings import RingPair, any_waits
from mpbroker.ipc.rpc import RpcClient
from mpbroker.ipc.slots import Batch, SlotKind, kind_of, unpack_call, unpack_produce
from mpbroker.ipc.table import Partition
from mpbroker.ipc.topology import CALL_RING_SLOTS, log_worker, log_worker_number, name_of
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from mpbroker.storage.names import log_worker_of
from shm.arena import ArenaFull

# Rounds that can be under way at once: of metadata, of groups, of transactions, of markers.
ROUNDS = 4
# The most questions under way: with all rounds under way, the rings still have room for the answers.
QUESTIONS_UNDER_WAY = (CALL_RING_SLOTS - ROUNDS) // 2


class LogEvents(Protocol):
    """The callbacks for answers of the log workers."""

    def appended(self, error: int, base_offset: int) -> None: ...
    def opened(self, topic: Topic, answer: Message) -> None: ...
    def removed(self, topic_id: bytes, answer: Message) -> None: ...
    def log_answers(self) -> None: ...


class Kind(Enum):
    GREETING = 0
    OPENING = 1
    REMOVAL = 2
    RECOVERED = 3


@dataclass(eq=False)
class _Asked:
    """A question to several workers, and the answers so far. `topic`: the topic to open, if any."""

    kind: Kind
    topic_id: bytes
    topic: Topic | None
    missing: int
    answers: list[Message] = field(default_factory=list)
    is_void: bool = False


class LogLink:
    """The requests to the current log workers, and their answers."""

    def __init__(self, context: ProcessContext, lender: Lender, events: LogEvents) -> None:
        self.workers = range(context.memory.sizes.log_workers)
        self._rings = [RingPair(context, log_worker(worker)) for worker in self.workers]
        self._clients = [
            RpcClient(
                lender, rings.other, context.memory.arena(rings.other), rings.push, context.call_numbers()
            )
            for rings in self._rings
        ]
        self._up = {worker for worker in self.workers if context.is_alive(log_worker(worker))}
        self._bound = self._rings_of_those_up()
        self._context = context
        self._lender = lender
        self._events = events
        self._appends = AppendJobs(
            lender,
            lambda slot, worker: self._rings[worker].push(slot),
            len(self.workers),
            context.call_numbers(),
        )
        # Counts deaths and arrivals of log workers, which void earlier questions.
        self._changes = 0
        # Questions under way, each with the worker that was asked.
        self._questions: list[tuple[_Asked, int]] = []
        self._unasked: deque[tuple[_Asked, int, Message]] = deque()
        self._unsent: deque[tuple[Sequence[NewBatch], Then]] = deque()
        self.waits_for_room = False
        self._opening: set[bytes] = set()
        # Topics that changed while they were being opened; they are opened once more, as they are now.
        self._opening_again: dict[bytes, tuple[Topic, int | None]] = {}
        self._removing: dict[bytes, str] = {}

    def _rings_of_those_up(self) -> list[RingPair]:
        return [self._rings[worker] for worker in self.workers if worker in self._up]

    @property
    def is_up(self) -> bool:
        """Return whether every log worker is running."""
        return len(self._up) == len(self.workers)

    @property
    def is_appending(self) -> bool:
        """Return whether the outcome of any sent append is still unknown."""
        return bool(self._appends)

    @property
    def idle(self) -> bool:
        if self._questions or self._unasked or self._unsent or self._removing:
            return False
        return not any(rings.has_unsent for rings in self._rings)

    def owing(self, topic_id: bytes) -> set[int]:
        """Return the workers whose answer about a topic is missing, including those not asked yet."""
        unasked = [(asked, worker) for asked, worker, _ in self._unasked]
        return {worker for asked, worker in (*self._questions, *unasked) if asked.topic_id == topic_id}

    def waiting(self) -> bool:
        return any_waits(self._bound)

    def flush(self) -> None:
        for rings in self._bound:
            rings.flush()

    def greet(self) -> None:
        """Ask the worker of the metadata log to open the log. Its answer calls `LogEvents.log_answers`."""
        self._ask({0: EnsureTopic(METADATA_TOPIC, METADATA_TOPIC_ID, [0])}, Kind.GREETING)

    def open(self, topic: Topic, new_from: int | None = None) -> None:
        """Open a topic. Partitions from `new_from` on are new: nothing can have been appended to them."""
        if not self.is_up:
            return  # all topics are opened once every worker is there
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
        """Remove a topic. If the topic is being opened, the removal waits until the opening has ended."""
        self._removing[topic_id] = name
        if topic_id not in self._opening and self.is_up:
            self._ask_all(RemoveTopic(name, topic_id), Kind.REMOVAL, topic_id)

    def recovered(self, topics: Iterable[Topic]) -> None:
        self._ask_all(Recovered({topic.name: topic.topic_id for topic in topics}), Kind.RECOVERED)

    def append(self, batch: bytes, count: int, slot: Partition) -> None:
        """Append a batch to the metadata log. `LogEvents.appended` gets the outcome: durable or refused."""
        new = NewBatch(METADATA_SLOT, slot.generation, slot.config_version, batch, count)
        self.append_all([new], lambda done: self._events.appended(done[0].error, done[0].base_offset))

    def append_all(self, batches: Sequence[NewBatch], done: Callable[[list[Batch]], None]) -> None:
        """Append batches to several partitions. Calls `done` when each is durable or refused.

        `done` is never called if a log worker dies first. (If all batches are for the metadata log, only the
        death of that log's worker counts.)
        """
        is_to_our_log = all(batch.slot == METADATA_SLOT for batch in batches)
        changes = self._changes

        def appended(filled: list[Batch] | None) -> None:
            if filled is not None and (is_to_our_log or changes == self._changes):
                done(filled)

        self._unsent.append((batches, appended))
        self._send_on()

    def _send_on(self) -> None:
        """Send the waiting messages, appends first, until the arena is full."""
        try:
            while self._unsent:
                self._appends.append(*self._unsent[0])
                self._unsent.popleft()
            self._ask_on()
        except ArenaFull as error:
            if not self._lender.in_use_bytes:
                raise  # no lent block is left whose return could make room
            if not self.waits_for_room:
                self._context.log.warning("calls to the log process wait for room in the arena: %s", error)
            self.waits_for_room = True
        else:
            self.waits_for_room = False

    def receive(self) -> None:
        for rings in self._bound:
            for slot in rings.take():
                match kind_of(slot):
                    case SlotKind.PRODUCED:
                        self._appends.produced(unpack_produce(slot))
                    case SlotKind.ANSWER:
                        self._clients[log_worker_number(rings.other)].answered(unpack_call(slot))
                    case kind:
                        raise ValueError(f"{name_of(rings.other)} sent a descriptor of kind {kind}")
        if self.waits_for_room:
            self._send_on()

    def peer_down(self, worker: int) -> None:
        """Disconnect from a dead worker. Drop all questions, and the appends whose outcome is unknown."""
        self._rings[worker].drop()
        self._up.discard(worker)
        self._bound = self._rings_of_those_up()
        self._forget_questions(worker)

    def peer_up(self, worker: int) -> None:
        """Connect to a new worker, whose rings are empty. Drop all questions."""
        self._rings[worker].rebind()
        self._up.add(worker)
        self._bound = self._rings_of_those_up()
        self._forget_questions(worker)

    def _forget_questions(self, worker: int) -> None:
        for asked, _ in self._questions:
            asked.is_void = True
        self._clients[worker].server_died()
        self._questions = [one for one in self._questions if one[1] != worker]
        self._changes += 1
        self._appends.worker_died(worker)
        self._unasked.clear()
        self._unsent.clear()
        self._opening.clear()
        self._opening_again.clear()
        self._lender.reclaim(log_worker(worker))

    def resume(self) -> None:
        """Ask again for pending removals. Call this method when all workers are running."""
        for topic_id, name in list(self._removing.items()):
            self.remove(name, topic_id)

    def _ask_all(self, message: Message, kind: Kind, topic_id: bytes = b"") -> None:
        self._ask(dict.fromkeys(self.workers, message), kind, topic_id)

    def _ask(
        self, messages: Mapping[int, Message], kind: Kind, topic_id: bytes = b"", topic: Topic | None = None
    ) -> None:
        """Ask a question: send each worker its own message."""
        asked = _Asked(kind, topic_id, topic, len(messages))
        self._unasked.extend((asked, worker, message) for worker, message in messages.items())
        self._send_on()

    def _ask_on(self) -> None:
        """Send waiting questions in order, at most QUESTIONS_UNDER_WAY at a time. Raises ArenaFull."""
        while self._unasked and len(self._questions) < QUESTIONS_UNDER_WAY:
            asked, worker, message = self._unasked[0]
            self._clients[worker].call(message, partial(self._answered, asked, worker))
            self._unasked.popleft()
            self._questions.append((asked, worker))

    def _answered(self, asked: _Asked, worker: int, answer: Message) -> None:
        self._questions.remove((asked, worker))
        asked.answers.append(answer)
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
                    self._context.log.error("stray directories were not renamed: %s", failed.message)

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
    """Merge the workers' answers about the opening of a topic. Leave out partitions of failed workers."""
    ensured = [answer for answer in answers if isinstance(answer, EnsuredTopic)]
    if len(answers) == 1 or not ensured:
        return answers[0]
    return EnsuredTopic(topic_id, [partition for answer in ensured for partition in answer.partitions])
