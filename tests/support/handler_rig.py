"""A broker's memory with the test in the place of processors, log process and coordinator."""

from __future__ import annotations

import itertools
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.calls.patient_client import SUCCESSOR_MS
from mpbroker.handlers.process import Handler
from mpbroker.handlers.requests.metadata import Metadata
from mpbroker.ipc import calls, slots, topology
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.metadata import (
    MetadataBase,
    MetadataDelta,
    PartitionImage,
    PartitionSlots,
    QuotaImage,
    TopicImage,
)
from mpbroker.ipc.nodes import Nodes
from mpbroker.ipc.process import SETTINGS_CHANGED, ProcessContext, pack_order
from mpbroker.ipc.session import SessionGone
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.table import Partition, PartitionFlag, pack_partition
from mpbroker.ipc.topology import COORDINATOR, SharedMemory, Sizes
from mpbroker.protocol.api_keys import FIRST_FLEXIBLE, ApiKey
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import Message, MetadataRequest
from mpbroker.records.batch import assign_offset_and_epoch
from shm.arena import Arena
from shm.clock import monotonic_ms

PROCESSOR = topology.processor(0)
HANDLER = topology.handler(0)
ROOM_FOR_ANSWER = 2048
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


@contextmanager
def shared_memory(reply_limit_bytes: int = 64 << 20, log_workers: int = 1) -> Iterator[SharedMemory]:
    sizes = Sizes(
        partition_slots=64,
        request_limit_bytes=64 << 20,
        reply_limit_bytes=reply_limit_bytes,
        arena_extent_bytes=256 << 20,
        log_workers=log_workers,
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        memory = SharedMemory(Path(directory) / "public", sizes)
        try:
            yield memory
        finally:
            memory.close()


def topic_id(number: int) -> bytes:
    return bytes(14) + number.to_bytes(2, "big")


def topic_image(
    name: str,
    number: int,
    partitions: int = 1,
    first_slot: int = 0,
    internal: bool = False,
    version: int = 1,
    **configs: str,
) -> TopicImage:
    return TopicImage(
        name,
        topic_id(number),
        PartitionSlots.of(PartitionImage(i, first_slot + i, 5) for i in range(partitions)).packed,
        {key.replace("_", "."): value for key, value in configs.items()},
        version,
        internal,
    )


def base(
    *topics: TopicImage,
    version: int = 1,
    quotas: Sequence[QuotaImage] = (),
    acls: Sequence[AclImage] = (),
    nodes: Nodes | None = None,
) -> bytes:
    return msgspec.msgpack.encode(
        MetadataBase(version, CLUSTER, 1, list(topics), list(quotas), list(acls), nodes=nodes)
    )


def delta(
    *topics: TopicImage,
    version: int = 2,
    removed: tuple[bytes, ...] = (),
    quotas: Sequence[QuotaImage] = (),
    acls: Sequence[AclImage] = (),
    removed_acls: Sequence[AclImage] = (),
) -> bytes:
    return msgspec.msgpack.encode(
        MetadataDelta(version, list(topics), list(removed), list(quotas), list(acls), list(removed_acls))
    )


def partition_payload(topic: TopicImage, number: int = 0, **changes: Any) -> bytes:
    live = PartitionFlag.PARTITION_LIVE
    partition = Partition(topic.topic_id, number, 5, live, topic.config_version, *[0] * 10)
    return pack_partition(partition._replace(**changes))


def request_frame(
    api_key: int, version: int, body: Message, *, correlation: int = 77, client: str = "test"
) -> bytes:
    return b"".join(encode_request_frame(RequestHeader(api_key, version, correlation, client), body))


def for_python(batch: bytes) -> bytes:
    """Return a compressed batch that the turn leaves to Python: a piece of a second one is behind it."""
    return batch + bytes(5)


def piece(arena: Arena, block: int, position: int, length: int) -> memoryview:
    """Some bytes of a block."""
    return arena.view(block, position + length)[position:]


def channel_of(connection: int) -> int:
    return connection % topology.CHANNELS_PER_PROCESSOR


class ProcessorEnd:
    """What a processor does for its connections, without sockets."""

    def __init__(self, memory: SharedMemory, index: int = PROCESSOR, handler: int = HANDLER) -> None:
        self.memory = memory
        self.index = index
        self.arena = memory.arena(index)
        self.to_handler = memory.ring(index, handler)
        self.from_handler = memory.ring(handler, index)
        self.handler_bell = memory.doorbell(handler)
        self.sessions = memory.sessions(index)
        self._request = itertools.count(1)

    def place(self, frame: bytes, room: int = ROOM_FOR_ANSWER) -> tuple[int, int]:
        """(block, generation) of a frame in this processor's arena."""
        block = self.arena.allocate(len(frame) + room)
        self.arena.view(block, len(frame))[:] = frame
        return block, self.arena.lend(block, HANDLER)

    def slot(
        self,
        frame: bytes,
        *,
        connection: int = 7,
        room: int = ROOM_FOR_ANSWER,
        flags: int = 0,
        network_ns: int = 0,
        listener: int = 0,
    ) -> bytes:
        api_key, version, correlation, client = struct.unpack_from(">hhih", frame, 4)
        body = 14 + max(client, 0) + is_flexible_header(api_key, version)
        block, generation = self.place(frame, room)
        self.open_session(connection)
        return slots.pack_request(
            SlotKind.REQUEST,
            self.index,
            channel_of(connection),
            connection,
            block,
            generation,
            len(frame),
            body,
            api_key,
            version,
            correlation,
            time.monotonic_ns(),
            listener,
            next(self._request),
            flags,
            network_ns,
        )

    def open_session(self, connection: int, protocol: int = 0) -> None:
        """Make a session as for a new connection, if it has none yet. `protocol`: SecurityProtocol."""
        channel = channel_of(connection)
        try:
            self.sessions.of(channel, connection)
        except SessionGone:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                self.sessions.open(channel, connection, ours.fileno(), 0, 0, protocol, False)

    def send(self, frame: bytes, **options: int) -> bytes:
        slot = self.slot(frame, **options)
        assert self.to_handler.push(slot)
        self.handler_bell.ring()
        return slot

    def cancel(self, connection: int) -> None:
        assert self.to_handler.push(
            slots.pack_request(SlotKind.CANCEL, self.index, channel_of(connection), connection)
        )
        self.handler_bell.ring()

    def replies(self) -> list[Any]:
        taken, _ = self.from_handler.take(1 << 16)
        return [slots.unpack_reply(taken, i) for i in range(len(taken) // 64)]

    def frame_of(self, reply: Any) -> bytes:
        """The bytes of a SEND; hands the block back."""
        assert reply.kind == SlotKind.SEND
        frame = bytes(piece(self.memory.arena(reply.owner), reply.block, reply.position, reply.length))
        self.give_back(reply)
        return frame

    def give_back(self, reply: Any) -> None:
        """Ends the lease; an answer in the request's own block has none."""
        if reply.owner == self.index:
            return
        assert self.to_handler.push(slots.pack_return(reply.owner, reply.block, reply.generation))


def is_flexible_header(api_key: int, version: int) -> bool:
    return version >= FIRST_FLEXIBLE.get(api_key, 1 << 15)


class LogEnd:
    """What a log worker does with jobs: gives offsets, fills holes and answers."""

    def __init__(self, memory: SharedMemory, handler: int = HANDLER, worker: int = 0) -> None:
        self.memory = memory
        self.worker = worker
        self.role = topology.log_worker(worker)
        self.jobs = memory.ring(handler, self.role)
        self.back = memory.ring(self.role, handler)
        self.handler_bell = memory.doorbell(handler)
        self.next_offset = 1000

    def take(self) -> list[Any]:
        taken, wants = self.jobs.take(1 << 16)
        if wants:
            self.handler_bell.ring()
        return [slots.unpack_produce(taken, i) for i in range(len(taken) // 64)]

    def batches(self, job: Any) -> list[Any]:
        arena = self.memory.arena(job.owner)
        head = piece(arena, job.block, job.job, 16)
        count, _, _ = slots.read_job_header(head)
        view = piece(arena, job.block, job.job, slots.job_bytes(count))
        return [slots.read_job_batch(view, i) for i in range(count)]

    def data_of(self, job: Any, batch: Any) -> memoryview:
        """The bytes of a batch, which stand in the block of its job."""
        assert batch.data_owner == job.owner
        return piece(self.memory.arena(job.owner), job.block, batch.data - job.block, batch.length)

    def append(self, job: Any, error: int = 0) -> bytes | None:
        """Serves a job; the frame of the answer for PRODUCE, None for PRODUCE_BACK, which goes back."""
        arena = self.memory.arena(job.owner)
        count, reply, reply_length = slots.read_job_header(piece(arena, job.block, job.job, 16))
        view = piece(arena, job.block, job.job, slots.job_bytes(count))
        is_shared = job.kind == SlotKind.PRODUCE_BACK and job.owner != job.sender
        for i, batch in enumerate(self.batches(job)):
            if is_shared and batch.slot % self.memory.sizes.log_workers != self.worker:
                continue
            offset, log_start = (-1, -1) if error else (self.next_offset, 11)
            self.next_offset += 0 if error else batch.record_count
            if not error:
                assign_offset_and_epoch(self.data_of(job, batch), offset, 0)
            slots.fill_job_batch(view, i, error, offset, -1, log_start)
            if batch.hole:
                filled = struct.pack(">hqq", error, offset, -1)
                filled += struct.pack(">q", log_start) if batch.has_log_start else b""
                piece(arena, job.block, batch.hole, len(filled))[:] = filled
        if job.kind == SlotKind.PRODUCE:
            return bytes(piece(arena, job.block, reply, reply_length))
        assert self.back.push(
            slots.pack_produce(
                SlotKind.PRODUCED,
                job.acks,
                job.processor,
                job.channel,
                job.connection,
                job.block,
                job.generation,
                job.job,
                job.owner,
                self.role,
                request=job.request,
            )
        )
        self.handler_bell.ring()
        return None


class CoordinatorEnd:
    """The coordinator's side of calls, or that of another role."""

    def __init__(self, memory: SharedMemory, handler: int = HANDLER, role: int = COORDINATOR) -> None:
        self.memory = memory
        self.role = role
        self.arena = memory.arena(role)
        self.calls = memory.ring(handler, role)
        self.back = memory.ring(role, handler)
        self.handler_bell = memory.doorbell(handler)
        self.returned: list[int] = []
        # What was asked, by the number of the call.
        self.asked: dict[int, Any] = {}
        # How often the handler has said that nothing is open of what predecessors have held.
        self.holds_ended = 0

    def take(self) -> list[tuple[Any, Any]]:
        """(slot, message) of each call but HoldsEnded, which every coordinator hears; that is answered."""
        taken, _ = self.calls.take(1 << 10)
        found = []
        for i in range(len(taken) // 64):
            if slots.kind_of(taken, i) == SlotKind.RETURN:
                ended = slots.unpack_return(taken, i)
                assert self.arena.take_back(ended.block, ended.generation)
                self.returned.append(ended.block)
                continue
            call = slots.unpack_call(taken, i)
            arena = self.memory.arena(call.owner)
            assert arena.check(call.block, call.generation)
            message = calls.decode(bytes(arena.view(call.block, call.length)))
            self.asked[call.request] = message
            if isinstance(message, calls.HoldsEnded):
                self.holds_ended += 1
                self.answer(call, calls.Acknowledged())
            else:
                found.append((call, message))
        return found

    def answer(self, call: Any, message: Any) -> None:
        payload = calls.encode(message)
        block = self.arena.allocate(len(payload))
        self.arena.view(block, len(payload))[:] = payload
        generation = self.arena.lend(block, HANDLER)
        slot = slots.pack_call(
            SlotKind.ANSWER, self.role, call.request, block, generation, len(payload), call.connection
        )
        assert self.back.push(slot)
        self.handler_bell.ring()


class Rig:
    """A handler in this very process, with all its peers played by the test."""

    def __init__(self, memory: SharedMemory, config: BrokerConfig | None = None) -> None:
        self.memory = memory
        roles = memory.words("roles")
        workers = range(memory.sizes.log_workers)
        for role in (*map(topology.log_worker, workers), COORDINATOR, topology.TIER, PROCESSOR, HANDLER):
            roles.store(role, 1)
        acks = memory.words("bulletin_acks")
        self.bulletin = BulletinPublisher(memory.private.block("bulletin"), acks, lambda: [HANDLER])
        self.context = ProcessContext(HANDLER, memory, config or BrokerConfig())
        self.handler = Handler(self.context)
        self.processor = ProcessorEnd(memory)
        self.logs = [LogEnd(memory, worker=worker) for worker in workers]
        self.log = self.logs[0]
        self.coordinator = CoordinatorEnd(memory)
        self.table = memory.table()
        self.turn()
        assert self.coordinator.take() == []
        self.turn()
        assert self.coordinator.take() == []
        self.coordinator.returned.clear()

    @property
    def metadata(self) -> Metadata:
        return self.handler.broker.metadata

    def publish(self, *topics: TopicImage, acls: Sequence[AclImage] = ()) -> None:
        """A first base; each partition is live and empty."""
        for topic in topics:
            for partition in topic.partitions.values():
                self.table.write(partition.slot, partition_payload(topic, partition.partition))
        self.bulletin.publish_base(base(*topics, acls=acls))
        self.turn()

    def turn(self) -> None:
        self.handler.run_once(0)

    def take_all(self) -> None:
        """Turn until each request is taken: a turn takes nothing more after some time."""
        while self.memory.ring(PROCESSOR, self.context.index).waiting():
            self.turn()

    def work_off(self) -> None:
        """Turn until no request is worked on in pieces."""
        self.turn()
        while self.handler.scheduler.has_work():
            self.turn()

    def serve_others(self) -> int:
        """Work off what is done in pieces, and serve another connection before each. Return their number."""
        pieces = 0
        while self.handler.scheduler.has_work():
            assert self.processor.replies() == []
            self.processor.send(request_frame(ApiKey.METADATA, 5, MetadataRequest([])), connection=2)
            self.handler.take_and_serve(0)
            assert [reply.connection for reply in self.processor.replies()] == [2]
            self.handler.work()
            pieces += 1
        return pieces

    def coordinator_dies(self) -> None:
        self.handler.fenced_servers.add(COORDINATOR)
        self.handler.broker.transactions.holds.coordinator_died()
        self.handler.broker.coordinator.server_died()

    def no_successor_comes(self) -> None:
        """Let so much time pass that nobody waits for a coordinator any more."""
        self.handler.broker.coordinator.expire(monotonic_ms() + SUCCESSOR_MS)
        self.turn()

    def send(self, api_key: int, version: int, body: Message, **options: Any) -> None:
        """Send a request, and turn."""
        self.processor.send(request_frame(api_key, version, body), **options)
        self.turn()

    def asked(self, api_key: int, version: int, body: Message, **options: Any) -> tuple[Any, Any]:
        """Send a request that makes one call to the coordinator. Return its slot and its message."""
        self.send(api_key, version, body, **options)
        ((call, message),) = self.coordinator.take()
        return call, message

    def reply(self, call: Any, message: Any) -> None:
        """Let the coordinator answer a call, and turn."""
        self.coordinator.answer(call, message)
        self.turn()

    def append(self) -> list[Any]:
        """Let the log worker serve its only job, and turn. Return the batches of the job."""
        (job,) = self.log.take()
        batches = self.log.batches(job)
        self.log.append(job)
        self.turn()
        return batches

    def welcome(self, role: int) -> None:
        """Give a role that died a successor, with empty rings."""
        self.memory.reset_rings_of(role)
        fence(self, role, alive=True)

    def ask_in_vain(self, api_key: int, version: int, body: Message) -> Any:
        """The decoded response to a request that waits for a coordinator which does not come."""
        self.send(api_key, version, body)
        self.no_successor_comes()
        return self.answer(api_key, version)

    def ask(self, api_key: int, version: int, body: Message) -> Any:
        """The decoded response to a request that waits for nobody."""
        self.processor.send(request_frame(api_key, version, body))
        self.work_off()
        return self.answer(api_key, version)

    def answer(self, api_key: int, version: int) -> Any:
        (reply,) = (one for one in self.processor.replies() if one.kind != SlotKind.PARKED)
        correlation, response = decode_response_frame(api_key, version, self.processor.frame_of(reply)[4:])
        assert correlation == 77
        return response


@contextmanager
def rig(
    config: BrokerConfig | None = None, reply_limit_bytes: int = 64 << 20, log_workers: int = 1
) -> Iterator[Rig]:
    with shared_memory(reply_limit_bytes, log_workers) as memory:
        yield Rig(memory, config)


def fence(made: Rig, role: int, *, alive: bool, stage: int = 1) -> None:
    """Says that a role has died, or has a successor, as the supervisor does; the handler has let go then."""
    made.memory.words("roles").store(role, 2 if alive else 0)
    _order(made, 0 if alive else stage, role)


def order_settings(made: Rig) -> None:
    """Says that there is another configuration, as the supervisor does."""
    _order(made, SETTINGS_CHANGED, 0)


def _order(made: Rig, stage: int, role: int) -> None:
    orders = made.memory.words("fence_orders")
    orders.store(HANDLER, pack_order((orders.load(HANDLER) >> 16) + 1, stage, role))
    made.turn()
    assert made.memory.words("fence_acks").load(HANDLER) == orders.load(HANDLER)
