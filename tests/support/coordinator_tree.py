"""A broker around a real coordinator process: the test is its supervisor, its log process and its handlers.

The log process here is a fake with a real file: it appends batches to a segment, publishes slot 0 and
answers. It dies where a test wants it to, and its successor recovers from the file alone.
"""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.process import run
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.calls import (
    Acknowledged,
    DeleteTopics,
    EnsuredPartition,
    EnsuredTopic,
    EnsureTopic,
    Failed,
    Message,
    Recovered,
    RemovedTopic,
    RemoveTopic,
    decode,
    encode,
)
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.metadata import MetadataBase, MetadataNews, TopicImage
from mpbroker.ipc.nodes import Nodes
from mpbroker.ipc.process import Order, ProcessContext, State, pack_order
from mpbroker.ipc.slots import (
    Produce,
    SlotKind,
    fill_job_batch,
    kind_of,
    pack_call,
    pack_produce,
    pack_return,
    read_job_batch,
    unpack_call,
    unpack_produce,
    unpack_return,
)
from mpbroker.ipc.table import Partition, PartitionFlag, pack_partition
from mpbroker.ipc.topology import COORDINATOR, LOG, PROCESSES, SharedMemory, Sizes, handler
from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.iterate import iterate_batches
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs
from tests.support.polling import PATIENCE_S

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_news = msgspec.msgpack.Decoder(MetadataNews)


class LogDied(Exception):
    """The fake log process ends here."""


class FakeLog:
    """`dies_at` names the step at which it dies; `refuse` is the error code for the next append."""

    def __init__(self, memory: SharedMemory, directory: Path, incarnation: int) -> None:
        self.memory = memory
        self.incarnation = incarnation
        self.dies_at: str | None = None
        self.refuse = 0
        self.broken: set[str] = set()
        self.offline: set[str] = set()
        self.removed: list[bytes] = []
        self.on_remove: Callable[[], None] = lambda: None
        self.ensured: list[str] = []
        self.recovered = 0
        self.new: list[str] = []
        self.existing: dict[str, bytes] = {}
        self.slots: dict[tuple[bytes, int], int] = {}
        self.arena = memory.arena(LOG)
        self.arena.reset()
        self.sizes: dict[int, int] = {}
        self.inbox = memory.ring(COORDINATOR, LOG)
        self.outbox = memory.ring(LOG, COORDINATOR)
        self.table = memory.table()
        self.path = directory / "__cluster_metadata-0" / "00000000000000000000.log"
        self.path.parent.mkdir(exist_ok=True)
        self.path.touch()
        self.end = sum(b.header.record_count for b in iterate_batches(self.path.read_bytes()))
        self.publish_metadata_slot()

    def publish_metadata_slot(self, durable: tuple[int, int] | None = None) -> None:
        """`durable`: offset and position before which all is on disk, if that is not all."""
        offset, position = durable or (self.end, self.path.stat().st_size)
        self._publish(0, METADATA_TOPIC_ID, 0, offset, position)

    def _publish(
        self, slot: int, topic_id: bytes, partition: int, durable: int = 0, position: int = 0
    ) -> None:
        live, end = PartitionFlag.PARTITION_LIVE, self.end if slot == 0 else 0
        bound = (durable, 0, position)
        payload = Partition(topic_id, partition, self.incarnation, live, 0, 0, 0, 0, *bound, *bound, end)
        self.table.write(slot, pack_partition(payload))

    def _maybe_die(self, step: str) -> None:
        if self.dies_at == step:
            raise LogDied(step)

    def pump(self) -> None:
        """One wake-up. Raises LogDied."""
        slots, wants = self.inbox.take()
        for at in range(0, len(slots), 64):
            slot = slots[at : at + 64]
            match kind_of(slot):
                case SlotKind.PRODUCE_BACK:
                    self._append(unpack_produce(slot))
                case SlotKind.CALL:
                    self._answer(slot)
                case SlotKind.RETURN:
                    returned = unpack_return(slot)
                    assert self.arena.take_back(returned.block, returned.generation)
                    self.arena.free(returned.block, self.sizes.pop(returned.block))
        if slots or wants:
            self.memory.doorbell(COORDINATOR).ring()

    def _append(self, produce: Produce) -> None:
        self._maybe_die("taken")
        lender = self.memory.arena(COORDINATOR)
        assert lender.check(produce.block, produce.generation)
        block = lender.view(produce.block, lender.capacity(produce.block))
        job = block[produce.job :]
        asked = read_job_batch(job, 0)
        at = asked.data - produce.block
        assert (asked.slot, asked.slot_generation) == (0, self.incarnation)
        if self.refuse:
            fill_job_batch(job, 0, self.refuse, -1, -1, -1)
            self.refuse = 0
        else:
            batch = bytearray(block[at : at + asked.length])
            assign_offset_and_epoch(batch, self.end, 0)
            fill_job_batch(job, 0, 0, self.end, -1, 0)
            with self.path.open("ab") as file:
                file.write(batch)
            self._maybe_die("written")
            self.end += asked.record_count
            self.publish_metadata_slot()
            self._maybe_die("published")
        place = (produce.block, produce.generation, produce.job, COORDINATOR)
        answer = pack_produce(SlotKind.PRODUCED, -1, 0, 0, 0, *place, COORDINATOR, 0, produce.request)
        assert self.outbox.push(answer)

    def _answer(self, slot: bytes) -> None:
        call = unpack_call(slot)
        lender = self.memory.arena(COORDINATOR)
        assert lender.check(call.block, call.generation)
        message = decode(bytes(lender.view(call.block, call.length)))
        if isinstance(message, RemoveTopic):
            self._maybe_die("removing")
        if isinstance(message, EnsureTopic) and message.topic_id != METADATA_TOPIC_ID:
            self._maybe_die("ensuring")
        assert self.outbox.push(self.answer_slot(self.serve(message), call.request))

    def answer_slot(self, message: Message, request: int) -> bytes:
        data = encode(message)
        block = self.arena.allocate(len(data))
        self.sizes[block] = len(data)
        self.arena.view(block, len(data))[:] = data
        generation = self.arena.lend(block, COORDINATOR)
        return pack_call(SlotKind.ANSWER, LOG, request, block, generation, len(data))

    def serve(self, message: Message) -> Message:
        match message:
            case EnsureTopic():
                return self._ensure(message)
            case RemoveTopic():
                self.removed.append(message.topic_id)
                self.on_remove()
                return RemovedTopic(message.topic_id)
            case Recovered():
                self.recovered += 1
                self.existing = message.topics
                return Acknowledged()
        return Failed(-1, f"{message} is not for the log process")

    def _ensure(self, message: EnsureTopic) -> EnsuredTopic:
        if message.topic_id == METADATA_TOPIC_ID:
            return EnsuredTopic(message.topic_id, [EnsuredPartition(0, 0, self.incarnation)])
        self.ensured.append(message.name)
        if message.new_from == 0:
            self.new.append(message.name)
        if message.name in self.broken:
            return EnsuredTopic(
                message.topic_id,
                [EnsuredPartition(p, error=56, message="no disk") for p in message.partitions],
            )
        error = 56 if message.name in self.offline else 0
        for partition in message.partitions:
            key = (message.topic_id, partition)
            if key not in self.slots:
                self.slots[key] = 1 + len(self.slots)
                self._publish(self.slots[key], *key)
        return EnsuredTopic(
            message.topic_id,
            [
                EnsuredPartition(p, self.slots[message.topic_id, p], self.incarnation, error)
                for p in message.partitions
            ],
        )


class FakeHandler:
    """Makes calls and follows the bulletin."""

    def __init__(self, memory: SharedMemory, index: int) -> None:
        self.memory = memory
        self.index = index
        self.request = 0
        self.answers: dict[int, Message] = {}
        self.topics: dict[str, TopicImage] = {}
        self.bases = 0
        self.cluster_id = ""
        self.nodes: Nodes | None = None
        self.acls: list[AclImage] = []
        self.arena = memory.arena(index)
        self.follows = True
        self.sleeps = False
        self.rebind()

    def rebind(self) -> None:
        """After the coordinator died, or as the successor of a handler."""
        self.outbox = self.memory.ring(self.index, COORDINATOR)
        self.inbox = self.memory.ring(COORDINATOR, self.index)
        acks = self.memory.words("bulletin_acks")
        if not hasattr(self, "bulletin"):
            self.bulletin = BulletinReader(self.memory.private.block("bulletin"), acks, self.index)

    def call(self, message: Message) -> int:
        data = encode(message)
        block = self.arena.allocate(len(data))
        self.arena.view(block, len(data))[:] = data
        generation = self.arena.lend(block, COORDINATOR)
        self.request += 1
        assert self.outbox.push(
            pack_call(SlotKind.CALL, self.index, self.request, block, generation, len(data))
        )
        self.memory.doorbell(COORDINATOR).ring()
        return self.request

    def pump(self) -> None:
        if self.sleeps:
            return
        if self.follows:
            for news in map(_news.decode, self.bulletin.poll()):
                if isinstance(news, MetadataBase):
                    assert news.node_id == 1
                    self.cluster_id = news.cluster_id
                    self.nodes, self.acls = news.nodes, news.acls
                    self.bases += 1
                    self.topics = {topic.name: topic for topic in news.topics}
                    continue
                gone = set(news.removed)
                self.topics = {n: t for n, t in self.topics.items() if t.topic_id not in gone}
                self.topics |= {topic.name: topic for topic in news.changed}
        slots, _ = self.inbox.take()
        for at in range(0, len(slots), 64):
            call = unpack_call(slots, at // 64)
            if kind_of(slots, at // 64) == SlotKind.TAKEN:
                continue
            assert kind_of(slots, at // 64) == SlotKind.ANSWER
            if not call.block:
                self.answers[call.request] = Failed(-1, "no block")
                continue
            lender = self.memory.arena(COORDINATOR)
            assert lender.check(call.block, call.generation)
            self.answers[call.request] = decode(bytes(lender.view(call.block, call.length)))
            self.outbox.push(pack_return(COORDINATOR, call.block, call.generation))
            self.memory.doorbell(COORDINATOR).ring()


class CoordinatorTree:
    """Shared memory, a forked coordinator, the fakes, and what a supervisor does to them."""

    def __init__(
        self,
        directory: Path,
        public: Path,
        handlers: int = 2,
        slots: int = 1024,
        real_log: bool = False,
        reply_limit_bytes: int = 1 << 30,
        **settings: object,
    ) -> None:
        self.directory = directory
        self.config = BrokerConfig(log_dirs=(str(directory),), **settings)  # type: ignore[arg-type]
        sizes = Sizes(partition_slots=slots, arena_extent_bytes=64 << 20, reply_limit_bytes=reply_limit_bytes)
        self.memory = SharedMemory(public, sizes)
        self.roles = self.memory.words("roles")
        self.pid = 0
        self._fences = 0
        for index in range(PROCESSES):
            self.memory.doorbell(index).arm()
        self.handlers = [FakeHandler(self.memory, handler(number)) for number in range(handlers)]
        for fake in self.handlers:
            self.roles.store(fake.index, 1)
        self.log_lives = 1
        self.log: FakeLog | None = None
        if real_log:
            name_log_dirs(self.config, check_log_dirs(self.config))
            return
        (directory / "meta.properties").write_text(f"version=1\ncluster.id={CLUSTER_ID}\nnode.id=1\n")
        self.log = FakeLog(self.memory, directory, 1)
        self.roles.store(LOG, 1)

    def start(self, incarnation: int = 1) -> None:
        """Forks the coordinator."""
        self.memory.words("orders").store(COORDINATOR, Order.RUN)
        self.memory.words("states").store(COORDINATOR, State.STARTING)
        self.roles.store(COORDINATOR, 1)
        # Never armed by the dead: the coordinator arms its own bell before it sleeps.
        self.memory.doorbell(COORDINATOR).disarm()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            context = ProcessContext(COORDINATOR, self.memory, self.config, incarnation)
            os._exit(run(context, CLUSTER_ID))
        except BaseException:  # noqa: BLE001 - the fork exits in any case
            traceback.print_exc()
        finally:
            os._exit(99)

    def serve(self, incarnation: int = 1) -> None:
        """Start a coordinator, and wait until it serves."""
        self.start(incarnation)
        self.until(self.is_ready)

    def replace(self, incarnation: int = 1) -> None:
        """Kill the coordinator; its successor serves."""
        self.kill()
        self.serve(incarnation)

    def kill(self, fence_log: Callable[[int], None] = lambda _: None) -> None:
        """SIGKILL and the fence: what is in its rings is void. `fence_log` tells a real log process."""
        os.kill(self.pid, signal.SIGKILL)
        self.reap()
        self.roles.store(COORDINATOR, 0)
        fence_log(0)
        self.memory.reset_rings_of(COORDINATOR)
        self.roles.store(COORDINATOR, 1)
        fence_log(1)
        for fake in self.handlers:
            fake.rebind()
        if self.log is not None:
            self.log.inbox.rebind()
            self.log.outbox.rebind()

    def reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def append_waits(self) -> bool:
        """Return True if the coordinator has sent a round that the log process has not taken."""
        assert self.log is not None
        return any(kind_of(slot) == SlotKind.PRODUCE_BACK for slot in self.log.inbox.untaken())

    def is_ready(self) -> bool:
        return self.memory.words("states").load(COORDINATOR) == State.READY

    def fence(self, role: int, incarnation: int, pump_log: bool = True) -> None:
        """Orders a fence (0) or a welcome and waits until the coordinator has acknowledged it."""
        self._fences += 1
        self.roles.store(role, incarnation)
        order = pack_order(self._fences, 0 if incarnation else 1, role)
        self.memory.words("fence_orders").store(COORDINATOR, order)
        self.memory.doorbell(COORDINATOR).ring()
        acks = self.memory.words("fence_acks")
        self.until(lambda: acks.load(COORDINATOR) == order, pump_log=pump_log)

    def replace_log(self) -> None:
        """The log process is dead: fences it and starts its successor from the file."""
        self.log = None
        self.fence(LOG, 0)
        self.memory.reset_rings_of(LOG)
        self.log_lives += 1
        self.log = FakeLog(self.memory, self.directory, self.log_lives)
        self.fence(LOG, self.log_lives)

    def replace_log_unseen(self) -> None:
        """Both are dead: the log process comes back before the coordinator does."""
        assert not self.pid
        self.memory.reset_rings_of(LOG)
        self.log_lives += 1
        self.log = FakeLog(self.memory, self.directory, self.log_lives)
        self.roles.store(LOG, self.log_lives)

    def pump(self, pump_log: bool = True) -> None:
        """One wake-up of everybody but the coordinator. A log process that dies is replaced."""
        if pump_log and self.log is not None:
            try:
                self.log.pump()
            except LogDied:
                self.replace_log()
        for fake in self.handlers:
            fake.pump()

    def until(self, condition: Callable[[], bool], pump_log: bool = True) -> None:
        """Pumps until it is so."""
        poll = select.poll()
        ours = [0, *(fake.index for fake in self.handlers)] + ([LOG] if self.log is not None else [])
        for index in ours:
            poll.register(self.memory.bell_fds[index], select.POLLIN)
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, "the coordinator did not do it"
            self.pump(pump_log)
            if condition():
                return
            for fd, _ in poll.poll(5):
                os.eventfd_read(fd)

    def ask(self, message: Message, number: int = 0) -> Message:
        """A call of one handler and its answer."""
        fake = self.handlers[number]
        request = fake.call(message)
        self.until(lambda: request in fake.answers)
        return fake.answers[request]

    def fill_arena(self, size: int) -> None:
        """Have the first handler take no answers, until the coordinator has lent so many bytes to it."""
        slow = self.handlers[0]
        slow.sleeps = True
        counters = self.memory.counters(COORDINATOR)
        # They do not exist: nothing is appended for the answer.
        missing = DeleteTopics([f"t{number}" for number in range(2000)])
        while counters.get(Counter.COUNT_ARENA_BYTES) < size:
            before = slow.inbox.waiting()
            slow.call(missing)
            self.until(lambda before=before: slow.inbox.waiting() > before)  # type: ignore[misc]

    def stop(self) -> int:
        self.memory.words("orders").store(COORDINATOR, Order.STOP)
        self.memory.doorbell(COORDINATOR).ring()
        self.until(lambda: self.memory.words("states").load(COORDINATOR) == State.STOPPED)
        return self.reap()

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.reap()
        self.memory.close()
