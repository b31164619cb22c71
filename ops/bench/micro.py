"""Benchmarks that run without a broker: `python -m ops.bench.micro shm handler log records`.

Every figure is the best of some rounds, because other work on the machine can only add time. A figure that
needs two processes is only valid with two free cores. `log` writes below `--directory`.
"""

from __future__ import annotations

import argparse
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.hot_path.topic_table import TopicTable
from mpbroker.handlers.hot_path.turn import HandlerTurn
from mpbroker.handlers.requests.metadata import Metadata
from mpbroker.ipc import calls, slots, topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.metadata import MetadataBase, PartitionImage, PartitionSlots, TopicImage
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.slots import SlotKind, job_bytes, pack_produce, write_job_batch, write_job_header
from mpbroker.ipc.topology import LOG, SharedMemory, Sizes
from mpbroker.log.process import LogProcess
from mpbroker.protocol import messages as m
from mpbroker.protocol.headers import RequestHeader, encode_request_frame
from mpbroker.records.arrow_batches import SCHEMA, arrow_batches
from mpbroker.records.batch import BATCH_OK, assign_offset_and_epoch, bench_scan, checksum, scan_batch
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs
from shm._bench import ring_drain, ring_rounds, ring_stream, table_storm, table_verify
from shm.arena import Arena
from shm.counters import CounterPage, page_bytes
from shm.doorbell import BYTES as BELL_BYTES
from shm.doorbell import Doorbell
from shm.region import sparse
from shm.ring import Ring, ring_bytes
from shm.table import SlotTable, slot_bytes

ROUNDS = 5
MIB = 1 << 20
RING_SLOTS = 1024
DESCRIPTOR = struct.Struct("<4Q32x")
ARENA_BYTES = 1 << 30
MAX_SLEEP_MS = 5000
TOPIC_ID = bytes(15) + b"\x01"
STAMP_MS = 1_700_000_000_000
PROCESSOR, HANDLER = topology.processor(0), topology.handler(0)
CONNECTIONS = 256
REPLY_BYTES = 80

Lines = Iterator[tuple[str, float, str]]
"""Rows of a measurement: name, figure and unit."""


def best(measure: Callable[..., float], *args: int) -> float:
    return min(measure(*args) for _ in range(ROUNDS))


def seconds_of(call: Callable[[], object], seconds: float = 0.1) -> float:
    """Return the seconds of one call. The first call warms up, and determines how many calls a round has."""
    began = time.perf_counter()
    call()
    calls = max(1, int(seconds / ROUNDS / max(time.perf_counter() - began, 1e-7)))

    def round_() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls

    return best(round_)


def ns_of(work: Callable[[], object], times: int) -> float:
    """Return how many nanoseconds each of the `times` steps of `work` takes."""
    began = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began) / times


def repeat(call: Callable[[], object], times: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(times):
            call()

    return work


# ---- shared memory


def with_child(work: Callable[[], None], measure: Callable[[], float]) -> float:
    """Return the measurement taken while a child runs `work`. Raises RuntimeError if the child fails."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        return measure()
    finally:
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise RuntimeError("the other process of the benchmark failed")


def native_ring(batch: int, slots: int) -> float:
    ring = Ring(sparse(ring_bytes(RING_SLOTS)), RING_SLOTS)
    return ns_of(lambda: ring_rounds(ring, slots // batch, batch), slots)


def streamed_ring(batch: int, slots: int) -> float:
    """Return ns per slot through a ring from one process to another, with seven check words in each slot."""
    memory = sparse(ring_bytes(RING_SLOTS))

    def drain() -> None:
        if ring_drain(Ring(memory, RING_SLOTS), slots):
            raise RuntimeError("slots arrived damaged")

    return with_child(
        lambda: ring_stream(Ring(memory, RING_SLOTS), slots, batch), lambda: ns_of(drain, slots)
    )


def python_ring(batch: int, slots: int) -> float:
    ring, data = Ring(sparse(ring_bytes(RING_SLOTS)), RING_SLOTS), bytes(64 * batch)
    push = ring.push if batch == 1 else ring.push_batch

    def rounds() -> None:
        for _ in range(slots // batch):
            push(data)
            ring.take(batch)

    return ns_of(rounds, slots)


class Pair:
    """Two sides with a ring and a doorbell towards each other. Make the pair before the fork."""

    def __init__(self, slots: int = 64) -> None:
        size = ring_bytes(slots)
        self._rings, self._bells, self._slots = sparse(2 * size), sparse(2 * BELL_BYTES), slots
        self._fds = [Doorbell.new_fd(), Doorbell.new_fd()]

    def side(self, mine: int) -> tuple[Callable[[bytes], None], Callable[[], bytes]]:
        """Return two functions of a side: one sends slots, the other waits for slots and takes them."""
        size = ring_bytes(self._slots)
        outbox, inbox = (
            Ring(self._rings[size * (place ^ mine) : size * ((place ^ mine) + 1)], self._slots)
            for place in (1, 0)
        )
        other, own = (Doorbell(self._bells[BELL_BYTES * (p ^ mine) :], self._fds[p ^ mine]) for p in (1, 0))

        def send(slots: bytes) -> None:
            outbox.push_batch(slots)
            other.ring()

        def receive() -> bytes:
            while not (taken := inbox.take()[0]):
                own.wait(MAX_SLEEP_MS, lambda: inbox.waiting() > 0)
            return taken

        return send, receive

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


def wake_up(rounds: int) -> float:
    """Return the ns from a send until the sleeping receiver has the slot: half a round trip."""
    pair = Pair(16)

    def play(side: int) -> None:
        send, receive = pair.side(side)
        for number in range(rounds + side):
            if number or not side:
                send(bytes(64))
            if number < rounds:
                receive()

    try:
        return with_child(lambda: play(1), lambda: ns_of(lambda: play(0), 2 * rounds))
    finally:
        pair.close()


def unheard_ring(rounds: int) -> float:
    """Return ns for ringing a doorbell whose consumer is awake, which takes a fence and a load."""
    fd = Doorbell.new_fd()
    bell = Doorbell(sparse(BELL_BYTES), fd)
    took = ns_of(repeat(bell.ring, rounds), rounds)
    os.close(fd)
    return took


def arena_transfer(size: int, blocks: int) -> float:
    """Return ns a byte of copying into a block, lending it by descriptor, and copying it out elsewhere."""
    memory, pair = sparse(ARENA_BYTES), Pair()

    def borrow() -> None:
        arena, (send, receive) = Arena(memory, 1), pair.side(1)
        into, left = bytearray(size), blocks
        while left:
            taken = receive()
            for block, generation, length, _ in DESCRIPTOR.iter_unpack(taken):
                if not arena.check(block, generation):
                    raise RuntimeError("a lent block changed its generation")
                into[:length] = arena.view(block, length)
                left -= 1
            send(taken)

    def lend() -> None:
        arena, (send, receive) = Arena(memory, ARENA_BYTES // 4), pair.side(0)
        data, given, returned = os.urandom(size), 0, 0
        while returned < blocks:
            while given < blocks and given - returned < 16:
                block = arena.allocate(size)
                arena.view(block, size)[:] = data
                send(DESCRIPTOR.pack(block, arena.lend(block, 1), size, 0))
                given += 1
            for block, generation, length, _ in DESCRIPTOR.iter_unpack(receive()):
                arena.take_back(block, generation)
                arena.free(block, length)
                returned += 1

    try:
        return with_child(borrow, lambda: ns_of(lend, size * blocks))
    finally:
        pair.close()


def allocations(size: int, rounds: int) -> float:
    arena = Arena(sparse(ARENA_BYTES), ARENA_BYTES)
    return ns_of(repeat(lambda: arena.free(arena.allocate(size), size), rounds), rounds)


def table_reads(reads: int) -> float:
    """Return ns for a consistent copy of a slot without a concurrent writer."""
    table = SlotTable(sparse(slot_bytes(128)), 1, 128)
    table_storm(table, 0, 1)
    return ns_of(lambda: table_verify(table, 0, reads), reads)


def counter_adds(adds: int) -> float:
    page = CounterPage(sparse(page_bytes(8, 1)), 8, 1)
    return ns_of(repeat(lambda: page.add(3), adds), adds)


def shm(_: argparse.Namespace) -> Lines:
    """Measure ring, doorbell, arena, table and counters."""
    for batch in (1, 64):
        yield f"ring, native, batches of {batch}", best(native_ring, batch, 4_000_000), "ns"
        yield f"ring, Python, batches of {batch}", best(python_ring, batch, 200_000 * batch), "ns"
    yield "ring, two processes, batches of 64", best(streamed_ring, 64, 2_000_000), "ns"
    yield "doorbell, to a sleeper elsewhere", best(wake_up, 10_000), "ns"
    yield "doorbell, to who is awake", best(unheard_ring, 500_000), "ns"
    for size, blocks in ((16 << 10, 20_000), (128 << 10, 6_000), (MIB, 1_000)):
        ns = best(arena_transfer, size, blocks)
        yield f"arena, in and out, {size >> 10} KiB", 1 / ns, "GB/s"
    for size in (1000, MIB):
        yield f"arena, allocate and free {size}", best(allocations, size, 200_000), "ns"
    yield "table, read 128 bytes, native", best(table_reads, 2_000_000), "ns"
    yield "counter, add, Python", best(counter_adds, 500_000), "ns"


# ---- a handler's turn


def handler_requests(memory: SharedMemory, version: int) -> list[bytes]:
    """Return a request slot for each connection: a Produce of one record, in a block as if just received."""
    data = m.ProduceRequest.PartitionProduceData(
        0, bytes(build_batch([NewRecord(bytes(100), None, STAMP_MS)]))
    )
    request = m.ProduceRequest(
        None, -1, 30_000, [m.ProduceRequest.TopicProduceData("bench", TOPIC_ID, [data])]
    )
    frame = b"".join(encode_request_frame(RequestHeader(0, version, 1, "bench"), request))
    arena, body = memory.arena(PROCESSOR), 4 + 8 + 2 + len("bench") + (version >= 9)
    found = []
    for one in range(CONNECTIONS):
        block = arena.allocate(len(frame) + 512)
        arena.view(block, len(frame))[:] = frame
        where = (one, one, block, arena.lend(block, HANDLER), len(frame), body, 0, version)
        found.append(slots.pack_request(SlotKind.REQUEST, PROCESSOR, *where))
    return found


def handler_turns(memory: SharedMemory, version: int, batch: int, seconds: float) -> float:
    """Return ns per request, without the time for emptying the log ring between turns."""
    topics = TopicTable()
    images = [TopicImage("bench", TOPIC_ID, PartitionSlots.of([PartitionImage(0, 0, 1)]).packed)]
    news = msgspec.msgpack.encode(MetadataBase(1, "bench", 1, images))
    Metadata(BrokerConfig(), topics).apply([news])
    turn = HandlerTurn(HANDLER, memory, memory.counters(HANDLER), topics, {})
    into, out = memory.ring(PROCESSOR, HANDLER), memory.ring(HANDLER, LOG)
    every = handler_requests(memory, version)
    groups = [b"".join(every[at : at + batch]) for at in range(0, CONNECTIONS, batch)]
    spent_ns, done, until = 0, 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for group in groups:
            into.push_batch(group)
            taken = 0
            # A turn ends early when its time is over.
            while taken < len(group):
                before = time.perf_counter_ns()
                left = turn.run(0)
                spent_ns += time.perf_counter_ns() - before
                assert not left, "the turn handed a common request back"
                taken += len(out.take(1024)[0])
            done += taken // 64
    return spent_ns / done


def handler(given: argparse.Namespace) -> Lines:
    """Measure one-record Produce requests in the handler's native turn."""
    sizes = Sizes(partition_slots=16, arena_extent_bytes=1 << 30)
    for batch in (1, 8, 64, 256):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            memory = SharedMemory(Path(directory) / "bench", sizes)
            each_ns = handler_turns(memory, 7, batch, given.seconds)
            memory.close()
        yield f"Produce v7, {batch} a turn", each_ns, "ns"


# ---- the log worker's turn


def jobs(memory: SharedMemory, targets: list[tuple[int, int]], number: int) -> bytes:
    """Return `number` produce jobs of one record, for the partitions in turn. They may be sent repeatedly."""
    replies, requests, out = memory.arena(HANDLER), memory.arena(PROCESSOR), bytearray()
    data = build_batch([NewRecord(value=bytes(100), timestamp=STAMP_MS)])
    stamp, head = scan_batch(data).max_timestamp, job_bytes(1)
    for one in range(number):
        at = requests.allocate(len(data))
        requests.view(at, len(data))[:] = data
        block = replies.allocate(head + REPLY_BYTES)
        view = replies.view(block, head + REPLY_BYTES)
        write_job_header(view, 1, head, REPLY_BYTES)
        batch = (*targets[one % len(targets)], at, PROCESSOR, len(data), 1, -1, -1, -1, stamp, 1)
        write_job_batch(view, 0, *batch, 0, head + 40, 1)
        lease = replies.lend(block, LOG)
        where = (PROCESSOR, 1, 1, block, lease, 0, HANDLER, HANDLER)
        out += pack_produce(SlotKind.PRODUCE, -1, *where, 30_000, one)
    return bytes(out)


def log_turns(directory: Path, policy: str, at_once: int, given: argparse.Namespace) -> Lines:
    config = msgspec.structs.replace(BrokerConfig(), log_dirs=(str(directory),), log_flush_policy=policy)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as public:
        memory = SharedMemory(Path(public) / "region", Sizes(partition_slots=4096))
        name_log_dirs(config, check_log_dirs(config))
        process = LogProcess(ProcessContext(LOG, memory, config))
        process.start()
        topic = calls.EnsureTopic("bench", bytes(range(16)), list(range(given.partitions)), {}, 1)
        targets = [(p.slot, p.slot_generation) for p in process.manager.ensure(topic).partitions]
        inbox, outbox = memory.ring(HANDLER, LOG), memory.ring(LOG, PROCESSOR)
        slots, done, in_turn_s = jobs(memory, targets, at_once), 0, 0.0
        began = time.perf_counter()
        while time.perf_counter() < began + given.seconds:
            inbox.push_batch(slots)
            before = time.perf_counter()
            process.work(0 if policy == "os" else 5)
            in_turn_s += time.perf_counter() - before
            while outbox.waiting() < at_once and policy == "group":
                process.work(5)
            done += len(outbox.take(4096)[0]) // 64
        wall_s, counters = time.perf_counter() - began, process.context.counters
        name = f"{policy}, {at_once} jobs at once"
        yield f"{name}: jobs", done / wall_s, "a second"
        yield f"{name}: of the turn", in_turn_s / done * 1e9, "ns"
        yield f"{name}: commit rounds", counters.get(Counter.COUNT_COMMIT_ROUNDS) / wall_s, "a second"
        yield f"{name}: by Python", counters.get(Counter.COUNT_PRODUCE_SLOW), "jobs"
        while not process.turn.is_settled:
            process.work(5)
        process.manager.close_cleanly()
        process.turn.close()
        memory.close()


def log(given: argparse.Namespace) -> Lines:
    """Measure one-record jobs in the log worker's turn, for both flush policies."""
    for policy in ("os", "group"):
        for at_once in (1, 64, 512):
            with tempfile.TemporaryDirectory(dir=given.directory) as directory:
                yield from log_turns(Path(directory), policy, at_once, given)


# ---- records


def batch_of(number: int, value_bytes: int, kind: Codec = Codec.NONE) -> bytearray:
    records = [NewRecord(b"v" * value_bytes, b"%08d" % one, STAMP_MS + one) for one in range(number)]
    return build_batch(records, codec=kind)


def decode_arrow(data: bytes, columns: list[str], check_crc: bool) -> int:
    schema = pa.schema([SCHEMA.field(column) for column in columns])
    return sum(batch.num_rows for batch in arrow_batches(data, schema, check_crc=check_crc))


def records(given: argparse.Namespace) -> Lines:
    """Measure the checksum, the check of a batch, and the decode into Arrow."""
    for size in (150, 16 << 10, MIB):
        yield f"checksum, {size} bytes", size / seconds_of(partial(checksum, bytes(size))) / 1e9, "GB/s"
    for number, value_bytes in ((1, 100), (160, 100), (9000, 100), (900, 1024)):
        batch = batch_of(number, value_bytes)
        verdict, each_ns = bench_scan(
            batch, max(1, int(given.seconds * 1e9 / ROUNDS / (50 + len(batch) / 8)))
        )
        assert verdict == BATCH_OK
        yield f"validate {number} x {value_bytes} bytes", each_ns, "ns"
    for kind in (Codec.NONE, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        batch, data, rows = batch_of(500, 100, kind), bytearray(), 0
        while len(data) < (16 << 20 if kind is Codec.NONE else 4 << 20):
            assign_offset_and_epoch(batch, rows, 0)
            data, rows = data + batch, rows + 500
        choices = [SCHEMA.names[:5], *([SCHEMA.names, ["value"]] if kind is Codec.NONE else [])]
        for columns in choices:
            for check_crc in (True, False):
                decode = partial(decode_arrow, bytes(data), columns, check_crc)
                name = f"Arrow, {kind.name.lower()}, {len(columns)} columns{'' if check_crc else ', no CRC'}"
                yield name, rows / seconds_of(decode, given.seconds) / 1e6, "million records/s"


NAMES: dict[str, Callable[[argparse.Namespace], Lines]] = {
    "shm": shm,
    "handler": handler,
    "log": log,
    "records": records,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=list(NAMES), metavar="NAME", help=", ".join(NAMES))
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of a line, where it is not the work that ends"
    )
    parser.add_argument("--directory", help="where to write (TMPDIR)")
    parser.add_argument("--partitions", type=int, default=1, help="of `log`")
    given = parser.parse_args()
    for name in given.names:
        for what, figure, unit in NAMES[name](given):
            print(f"{name}: {what:<50} {figure:12,.1f} {unit}", flush=True)


if __name__ == "__main__":
    main()
